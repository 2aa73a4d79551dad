"""What is hard: adjudicating, voiding and changing the rule in the middle of things.

Whatever happens, no run may be left behind with nothing to vote on and nothing to decide.
"""

import random
import secrets

import pytest
from sqlalchemy import select

from leapfactual.errors import InputError
from leapfactual.people import assignment, campaigns, exclusion, status, transitions, votes
from leapfactual.people.audit import replay
from leapfactual.people.consensus import DAWID_SKENE, UNSURE, Rule
from leapfactual.people.store import tables as t
from leapfactual.people.store.assets import get_asset
from leapfactual.people.worker import JOB_LEASE_SECONDS, Worker, lookahead
from tests.people.crowd import Clock, invited, labels, play


@pytest.fixture
def walk(campaign, shipped, tmp_path):
    """Makes a campaign of one picture, in which votes are cast by segment and position."""
    from leapfactual.imaging import to_pil

    (tmp_path / "one").mkdir()
    to_pil(shipped.digits.images[0]).save(tmp_path / "one" / "digit.png")

    class Walk:
        def __init__(self, people, rule, **options):
            options = {"plan": "blend(6, 0.1)", "repeat_share": 0.0} | options
            self.db = campaign(images=tmp_path / "one", rule=rule, **options).db
            self.people = dict(zip("abcdefgh", invited(self.db, people), strict=False))
            self.worker, self.clock = Worker(self.db), Clock()
            self.work()

        def work(self):
            while self.worker.once(self.clock()):
                pass

        def vote(self, who, segment, position, answer):
            with self.db.write() as c:
                task = c.execute(self.task(segment, position)).one()
                person, key = self.people[who], secrets.token_hex(16)
                return votes.cast(c, task, person, answer, key, self.clock(), 1.0).counted

        def agree(self, who, segment, position, answer):
            for person in who:
                self.vote(person, segment, position, answer)
            self.work()

        @staticmethod
        def task(segment, position):
            return (
                select(t.task)
                .join(t.frame, t.frame.c.id == t.task.c.frame_id)
                .join(t.segment, t.segment.c.id == t.frame.c.segment_id)
                .where(
                    t.task.c.kind == t.FRAME,
                    t.segment.c.number == segment,
                    t.frame.c.position == position,
                    ~t.segment.c.discarded,
                )
            )

        def void(self, who, *, rewind=True):
            with self.db.read() as c:
                name = c.execute(
                    select(t.annotator.c.name).where(t.annotator.c.id == self.people[who])
                ).scalar_one()
            return exclusion.void(self.db, name, rewind=rewind)

        @property
        def run(self):
            with self.db.read() as c:
                return c.execute(select(t.run)).one()

        @property
        def open(self):
            with self.db.read() as c:
                return c.execute(
                    select(t.segment.c.number, t.frame.c.position)
                    .join(t.frame, t.frame.c.segment_id == t.segment.c.id)
                    .join(t.task, t.task.c.frame_id == t.frame.c.id)
                    .where(t.task.c.state == t.OPEN, t.task.c.kind == t.FRAME)
                    .order_by(t.segment.c.number, t.frame.c.position)
                ).all()

        @property
        def answers(self):
            with self.db.read() as c:
                return transitions.answers(c, 1)[0]

    return Walk


PAIR = Rule(least=2, most=2, share=0.6)
SOME = Rule(least=2, most=4, share=0.6)


def test_what_was_not_asked_to_the_end_is_asked_again_after_adjudication(walk):
    made = walk(3, PAIR)
    made.agree("ab", 0, 0, 7)
    made.vote("a", 1, 2, 7)
    made.vote("a", 1, 0, 7)
    made.vote("b", 1, 0, 8)
    assert made.run.status == "no_consensus"
    assert not made.open
    assert not made.vote("b", 1, 2, 7), "it comes late, for now"
    ((task, _),) = status.stuck(made.db)
    votes.adjudicate(made.db, task, 7, made.clock())
    assert made.run.status == "asking"
    assert made.open == [(1, 1), (1, 3), (1, 4), (1, 5)], "the late vote has decided one"
    assert replay(made.db).differences == []


def test_a_picture_that_is_decided_as_assumed_after_a_rewind_lets_the_others_be_asked(walk):
    made = walk(5, SOME)
    made.agree("ab", 0, 0, 7)
    made.agree("ae", 1, 0, 9)
    made.void("e")
    made.agree("bcd", 1, 0, 7)
    assert made.open == [(1, k) for k in range(1, 6)]
    assert replay(made.db).differences == []


def test_what_is_left_open_by_a_rewind_does_not_go_on_twice(walk):
    made = walk(5, SOME)
    made.agree("ab", 0, 0, 7)
    for position in (3, 2):
        made.agree("ae", 1, position, 9)
    for position in (0, 1):
        made.agree("ab", 1, position, 7)
    made.void("e")
    made.agree("b", 1, 2, 9)
    assert {number for number, _ in made.open} == {2}
    made.agree("ab", 2, 0, 4)
    assert made.answers == [7, 7, 7, 9, 4]
    assert replay(made.db).differences == []


def test_voiding_somebody_without_rewinding_decides_what_is_decided_now(walk):
    made = walk(4, Rule(least=2, most=4, share=0.9))
    for who, answer in zip("abc", (7, 7, 9), strict=True):
        if who == "b":
            made.vote("c", 0, 0, 9)
        if who != "c":
            made.vote(who, 0, 0, answer)
    assert made.run.status == "asking"
    made.void("c", rewind=False)
    assert made.run.status == "waiting"
    assert replay(made.db).differences == []


def test_late_votes_count_when_a_picture_is_asked_about_again(walk):
    made = walk(4, Rule(least=3, most=4, share=0.6))
    made.agree("abc", 0, 0, 7)
    assert not made.vote("d", 0, 0, 7)
    made.void("a")
    assert made.run.status == "asking"
    assert made.answers == [7], "three of four are left"
    assert replay(made.db).differences == []


def test_rewinding_leaves_pictures_alone_that_the_person_never_voted_on(walk):
    made = walk(5, Rule(least=2, most=5, share=0.6))
    made.agree("ab", 0, 0, 7)
    made.agree("ae", 1, 0, 9)
    with made.db.write() as c:
        campaigns.change_rule(c, Rule(least=3, most=5), made.clock())
    made.void("e")
    assert made.answers == [7]
    assert made.run.status == "asking"
    assert replay(made.db).differences == []


def test_where_everybody_has_voted_the_owner_decides(walk):
    made = walk(3, Rule(least=2, most=7))
    for who, answer in zip("abc", (1, 2, 3), strict=True):
        made.vote(who, 0, 0, answer)
    ((task, _),) = status.stuck(made.db)
    assert made.run.status == "asking"
    votes.adjudicate(made.db, task, 7, made.clock())
    assert made.run.status == "waiting"
    with pytest.raises(InputError, match="nothing to do"):
        votes.adjudicate(made.db, task, 3, made.clock())
    assert replay(made.db).differences == []


def test_a_new_rule_decides_what_is_open(walk):
    made = walk(3, Rule(least=2, most=7))
    for who, answer in zip("abc", (1, 2, 3), strict=True):
        made.vote(who, 0, 0, answer)
    assert made.run.status == "asking"
    with made.db.write() as c:
        campaigns.change_rule(c, Rule(least=2, most=3), made.clock())
    assert made.run.status == "no_consensus"
    assert replay(made.db).differences == []


def test_a_job_that_is_out_of_date_does_no_harm(walk):
    made = walk(5, SOME)
    made.agree("ab", 0, 0, 7)
    made.vote("a", 1, 0, 9)
    made.vote("e", 1, 0, 9)
    stale = made.worker.claim(made.clock())
    assert stale.answers == (7, 9)
    made.void("e")
    assert made.run.status == "asking"
    from leapfactual.people.worker import Lookahead

    assert not made.worker.finish(stale, Lookahead(None, None), made.clock()), "it is not wanted"
    assert made.worker.claim(made.clock() + 10 * JOB_LEASE_SECONDS) is None
    made.agree("b", 1, 0, 9)
    assert made.answers == [7, 9]
    assert {number for number, _ in made.open} == {2}, (
        "the same job is done, now that it is wanted"
    )
    assert replay(made.db).differences == []


def test_a_stale_job_is_not_begun(walk):
    made = walk(5, SOME)
    made.agree("ab", 0, 0, 7)
    made.vote("a", 1, 0, 9)
    made.vote("e", 1, 0, 9)
    made.void("e")
    assert not made.worker.once(made.clock())
    assert replay(made.db).differences == []


def test_voiding_twice_is_voiding_once(walk):
    made = walk(5, SOME)
    made.agree("ab", 0, 0, 7)
    made.agree("ae", 1, 0, 9)
    made.void("e")
    assert made.void("e", rewind=False) == []
    assert replay(made.db).differences == []


def test_whoever_says_unsure_decides_nothing(walk):
    made = walk(8, Rule(least=3, most=7, method=DAWID_SKENE))
    for who in "abcdef":
        made.vote(who, 0, 0, UNSURE)
    assert made.run.status == "asking"
    made.vote("g", 0, 0, UNSURE)
    assert made.run.status == "no_consensus"


def test_a_stalled_run_is_tried_again(walk, monkeypatch):
    made = walk(2, PAIR)
    made.vote("a", 0, 0, 7)
    made.vote("b", 0, 0, 7)
    with monkeypatch.context() as patch:
        patch.setattr(made.worker.explainer, "dialogue", lambda *_: 1 / 0 or iter(()))
        with pytest.raises(ZeroDivisionError):
            made.worker.once(made.clock())

        def unlucky(*_, **__):
            raise RuntimeError("out of memory")

        patch.setattr(made.worker.explainer, "dialogue", unlucky)
        assert made.worker.once(made.clock()), "it was given back, not held for ten minutes"
        assert not made.worker.once(made.clock()), "it is tried again after a while"
        for _ in range(6):
            made.clock.now += 1000
            made.worker.once(made.clock())
    assert (made.run.status, made.run.reason) == ("stalled", "out of memory")
    assert len(campaigns.retry(made.db)) == 1
    made.work()
    assert made.run.status == "asking"
    assert replay(made.db).differences == []


def test_two_workers_with_one_long_job_do_not_hinder_each_other(walk):
    made = walk(2, PAIR)
    made.vote("a", 0, 0, 7)
    made.vote("b", 0, 0, 7)
    from leapfactual.people.worker import decode_png

    other = Worker(made.db)
    job = made.worker.claim(made.clock())
    again = other.claim(made.clock() + 2 * JOB_LEASE_SECONDS)
    found = lookahead(other.explainer, decode_png(job.picture), job.target, job.answers, 4)
    assert made.worker.finish(job, found, made.clock())
    assert not other.finish(again, found, made.clock())


def test_people_are_invited_all_or_none(walk):
    made = walk(1, PAIR)
    with pytest.raises(InputError, match="'person 1' was invited before"):
        campaigns.invite_all(made.db, ["Dora", "person 1"])
    assert campaigns.invite(made.db, "Dora")


def test_many_pictures_wait_without_slowing_anybody_down(walk):
    made = walk(2, PAIR)
    with made.db.write() as c:
        query = "EXPLAIN QUERY PLAN " + str(
            assignment.NEEDED_FRAMES.compile(
                dialect=c.dialect, compile_kwargs={"literal_binds": False}
            )
        )
        steps = c.exec_driver_sql(query, tuple([1] * query.count("?"))).all()
    assert any("ix_task_kind_state_id" in str(row) for row in steps)
    assert not any("TEMP B-TREE" in str(row) for row in steps), "nothing is sorted"


@pytest.mark.parametrize("mode", ["batch", "step", "bisect"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2))])
def test_no_run_is_ever_left_behind(campaign, network, mode, seed):
    """Plays at random with everything that people and the owner can do."""
    chance = random.Random(f"{mode}{seed}")
    method = chance.choice(["majority", DAWID_SKENE])
    rule = Rule(least=3, most=5, method=method)
    made = campaign(mode=mode, rule=rule, plan="blend(5, 0.2)", repeat_share=0.1)
    people = invited(made.db, 9)
    right = labels(network)

    def voter(content):
        luck = chance.random()
        return right(content) if luck < 0.6 else chance.randrange(10) if luck < 0.95 else UNSURE

    voters = dict.fromkeys(people, voter)
    worker, clock, held = Worker(made.db), Clock(), []
    for _ in range(40):
        what = chance.choice(["vote", "vote", "vote", "work", "claim", "void", "rule", "decide"])
        if what == "vote":
            for person in chance.choices(sorted(voters), k=12):
                offer = assignment.take(made.db, person, clock())
                if offer is not None:
                    with made.db.read() as c:
                        content = get_asset(c, offer.asset)[1]
                    votes.vote(made.db, person, offer.key, voter(content), clock())
        elif what == "work":
            worker.once(clock())
        elif what == "claim":
            job = worker.claim(clock())
            held += [job] if job else []
        elif what == "void" and len(voters) > 5:
            gone = chance.choice(sorted(voters))
            del voters[gone]
            exclusion.void(made.db, f"person {gone}", rewind=chance.random() < 0.7)
        elif what == "rule":
            with made.db.write() as c:
                least = chance.choice([3, 4])
                new = Rule(least=least, most=chance.choice([4, 5, 6]), method=method)
                campaigns.change_rule(c, new, clock())
        elif what == "decide":
            for task, _ in status.stuck(made.db)[:1]:
                votes.adjudicate(made.db, task, chance.randrange(10), clock())
    for job in held:
        worker.give_back(job)
    for _ in range(200):
        play(made.db, voters, worker, clock)
        stuck = status.stuck(made.db)
        if not stuck:
            break
        votes.adjudicate(made.db, stuck[0][0], chance.randrange(10), clock())
    with made.db.read() as c:
        assert {run.status for run in c.execute(select(t.run))} <= set(transitions.FINISHED)
        frames = (t.task.c.kind == t.FRAME) & (t.task.c.state == t.OPEN)
        assert c.execute(select(t.task).where(frames)).all() == []
    assert replay(made.db).differences == []


def test_an_export_never_overwrites_a_campaign(walk):
    from leapfactual.people.exchange.interchange import export_votes

    made = walk(1, PAIR)
    with pytest.raises(InputError, match="is a database, perhaps the campaign itself"):
        export_votes(made.db, made.db.place, "zooniverse")
    assert made.run.status == "asking"


def test_who_has_lost_a_link_gets_another(walk):
    made = walk(1, PAIR)
    lost = campaigns.invite(made.db, "Dora")
    (token,) = campaigns.renew(made.db, ["Dora"])
    with made.db.read() as c:
        assert campaigns.find_person(c, lost) is None
        assert campaigns.find_person(c, token) == 2
    with pytest.raises(InputError, match="nobody was invited as 'Eve'"):
        campaigns.renew(made.db, ["Eve"])


def test_pictures_are_called_by_where_they_are_in_their_folder(walk):
    assert walk(1, PAIR).run.name == "digit.png"


def test_the_overview_tells_who_answers_at_random(campaign, network):
    made = campaign(rule=Rule(least=5, most=7), plan="blend(5, 0.3)", repeat_share=0.0)
    chance, right = random.Random(0), labels(network)
    voters = dict.fromkeys(invited(made.db, 6), right)
    voters[6] = lambda content: chance.randrange(10)
    play(made.db, voters, most=6)
    assert {p["estimate"] for p in status.overview(made.db).people} == {None}
    play(made.db, voters, most=150)
    *good, spammer = (person["estimate"] for person in status.overview(made.db).people)
    assert min(good) > 0.9
    assert spammer < 0.4


def test_too_few_people_are_not_a_quarrel(walk):
    made = walk(1, PAIR)
    made.vote("a", 0, 0, 7)
    seen = status.overview(made.db)
    assert seen.stuck == []
    assert seen.more
    assert not seen.done
    assert seen.alpha is None
