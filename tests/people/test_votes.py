"""The round: what happens when things go right, twice, late or wrong."""

import pytest
from sqlalchemy import func, select, update

from leapfactual.errors import InputError
from leapfactual.people import assignment, campaigns, creation, exclusion, status, votes
from leapfactual.people.consensus import IMPLAUSIBLE, UNSURE, Rule
from leapfactual.people.store import tables as t
from leapfactual.people.worker import JOB_LEASE_SECONDS, Worker, decode_png, lookahead
from tests.people.crowd import Clock, invited, labels, play

THREE = Rule(least=3, most=5)


def count(db, table, *where):
    with db.read() as c:
        return c.execute(select(func.count()).select_from(table).where(*where)).scalar_one()


@pytest.fixture
def open_campaign(campaign):
    """Makes a campaign whose first pictures are asked about, with people."""

    def make(people=5, **options):
        made = campaign(**{"rule": THREE} | options)
        made.people = invited(made.db, people)
        made.worker, made.clock = Worker(made.db), Clock()
        while made.worker.once(made.clock()):
            pass
        return made

    return make


def test_three_who_agree_decide(open_campaign):
    made = open_campaign(people=3)
    for person in made.people:
        offer = assignment.take(made.db, person, made.clock())
        assert votes.vote(made.db, person, offer.key, 4, made.clock()).counted
    assert count(made.db, t.vote) == 3
    keys = {assignment.take(made.db, p, made.clock()).key for p in made.people}
    assert len(keys) == 3, "everybody has a key of their own"


def test_the_same_vote_again_is_acknowledged_again(open_campaign):
    made = open_campaign()
    person = made.people[0]
    offer = assignment.take(made.db, person, made.clock())
    first = votes.vote(made.db, person, offer.key, 4, made.clock())
    again = votes.vote(made.db, person, offer.key, 4, made.clock())
    assert first == again
    assert count(made.db, t.vote) == 1
    with pytest.raises(votes.Conflict, match="another answer"):
        votes.vote(made.db, person, offer.key, 5, made.clock())
    with pytest.raises(votes.Conflict):
        votes.vote(made.db, made.people[1], offer.key, 4, made.clock())


def test_a_task_is_kept_until_it_is_answered_and_then_gone(open_campaign):
    made = open_campaign()
    person = made.people[0]
    offer = assignment.take(made.db, person, made.clock())
    assert assignment.take(made.db, person, made.clock()) == offer
    votes.vote(made.db, person, offer.key, 4, made.clock())
    seen = {offer.asset}
    while (offer := assignment.take(made.db, person, made.clock())) is not None:
        assert offer.asset not in seen
        seen.add(offer.asset)
        votes.vote(made.db, person, offer.key, UNSURE, made.clock())
    assert len(seen) == 6


def test_nobody_votes_on_what_was_not_given_to_them(open_campaign):
    made = open_campaign()
    offer = assignment.take(made.db, made.people[0], made.clock())
    for key in (offer.key, "no such key", ""):
        with pytest.raises(votes.Refused, match="not given to you"):
            votes.vote(made.db, made.people[1], key, 4, made.clock())
    for answer in (10, -3, -4, 99):
        with pytest.raises(InputError, match="an answer is one of"):
            votes.vote(made.db, made.people[0], offer.key, answer, made.clock())
    assert count(made.db, t.vote) == 0


def test_no_more_people_are_sent_to_a_picture_than_it_needs(open_campaign):
    made = open_campaign(people=20)
    offers = [assignment.take(made.db, person, made.clock()) for person in made.people]
    given = [offer.asset for offer in offers if offer is not None]
    assert len(given) == 6 * 3
    assert all(given.count(asset) == 3 for asset in given)
    late = made.clock.now + 2 * JOB_LEASE_SECONDS
    assert assignment.take(made.db, made.people[-1], late) is not None, "leases run out"


def test_a_vote_after_the_decision_is_kept_but_does_not_count(open_campaign):
    made = open_campaign(people=4)
    slow = made.people[0]
    held = assignment.take(made.db, slow, made.clock())
    late = made.clock.now + 2 * JOB_LEASE_SECONDS
    others = {p: lambda content: 4 for p in made.people[1:]}
    while True:
        offers = {p: assignment.take(made.db, p, late) for p in others}
        if not any(offers.values()):
            break
        for p, offer in offers.items():
            if offer is not None:
                votes.vote(made.db, p, offer.key, 4, late)
    receipt = votes.vote(made.db, slow, held.key, 7, late)
    assert not receipt.counted
    assert votes.vote(made.db, slow, held.key, 7, late) == receipt
    assert count(made.db, t.vote, ~t.vote.c.counted) == 1


def test_who_does_not_agree_calls_an_adjudicator(open_campaign, network):
    made = open_campaign(people=5, images=None)
    ways = {p: (lambda content, k=k: k) for k, p in enumerate(made.people)}
    play(made.db, ways, made.worker, made.clock)
    seen = status.overview(made.db)
    assert seen.runs == {"no_consensus": 6}
    assert len(seen.stuck) == 6
    task, _ = seen.stuck[0]
    with pytest.raises(InputError, match="an outcome is one of"):
        votes.adjudicate(made.db, task, UNSURE, made.clock())
    for number in (0, -(10**30), 2**63, 10**30):
        with pytest.raises(InputError, match=f"there is no picture {number} to adjudicate"):
            votes.adjudicate(made.db, number, 4, made.clock())
    votes.adjudicate(made.db, task, 4, made.clock())
    with pytest.raises(InputError, match="nothing to do"):
        votes.adjudicate(made.db, task, 4, made.clock())
    assert status.overview(made.db).runs == {"no_consensus": 5, "waiting": 1}
    play(made.db, dict.fromkeys(made.people, labels(network)), made.worker, made.clock)
    runs = status.overview(made.db).runs
    assert runs["no_consensus"] == 5
    assert sum(runs.values()) == 6


def test_pictures_that_nobody_believes_end_a_run(open_campaign):
    made = open_campaign(people=3)
    play(made.db, dict.fromkeys(made.people, lambda _: IMPLAUSIBLE), made.worker, made.clock)
    assert status.overview(made.db).runs == {"implausible": 6}


def test_a_paused_campaign_gives_nothing_out_but_takes_answers(open_campaign):
    made = open_campaign()
    offer = assignment.take(made.db, made.people[0], made.clock())
    campaigns.pause(made.db, True)
    assert assignment.take(made.db, made.people[1], made.clock()) is None
    assert votes.vote(made.db, made.people[0], offer.key, 4, made.clock()).counted
    campaigns.pause(made.db, False)
    assert assignment.take(made.db, made.people[1], made.clock()) is not None


def test_gold_and_repeats_are_mixed_in(campaign, shipped, tmp_path, network):
    from leapfactual.imaging import to_pil

    for k in range(10):
        row = int((shipped.digits.labels == k).nonzero()[2, 0])
        place = tmp_path / "gold" / str(k)
        place.mkdir(parents=True)
        to_pil(shipped.digits.images[row]).save(place / "gold.png")
    made = campaign(
        gold=tmp_path / "gold", gold_share=0.25, repeat_share=0.2, plan="blend(12, 0.1)"
    )
    people = invited(made.db, 2)
    right = labels(network)
    play(made.db, {people[0]: right, people[1]: lambda content: (right(content) + 1) % 10})
    good, bad = status.overview(made.db).people
    assert good["gold"] > 2
    assert good["right"] > 0.7
    assert bad["right"] < 0.3
    assert good["repeats"] > 0
    assert good["steady"] == 1.0
    with made.db.read() as c:
        kinds = set(c.execute(select(t.task.c.kind)).scalars())
    assert kinds == {t.FRAME, t.GOLD, t.REPEAT}


def test_votes_on_gold_and_repeats_decide_nothing(campaign, network):
    made = campaign(gold_share=0.0, repeat_share=0.5, plan="blend(12, 0.1)")
    play(made.db, dict.fromkeys(invited(made.db, 1), labels(network)))
    with made.db.read() as c:
        decided = c.execute(
            select(t.task.c.kind).join(t.consensus, t.consensus.c.task_id == t.task.c.id)
        ).scalars()
        assert set(decided) == {t.FRAME}


def test_a_voided_person_leaves_marks_and_runs_can_be_rewound(open_campaign, network):
    made = open_campaign(people=4, rule=Rule(least=3, most=5, share=0.6))
    right = labels(network)
    liar = made.people[0]
    voters = dict.fromkeys(made.people, right)
    voters[liar] = lambda content: 3
    play(made.db, voters, made.worker, made.clock)
    before = status.overview(made.db).runs
    assert "asking" not in before
    doubted = exclusion.void(made.db, "person 1")
    assert doubted
    assert status.overview(made.db).runs == before, "finished runs do not change by themselves"
    with pytest.raises(votes.Refused, match="no longer valid"):
        assignment.take(made.db, liar, made.clock())
    exclusion.void(made.db, "person 1", rewind=True)
    assert status.overview(made.db).runs.get("asking"), "some cannot be decided without"
    del voters[liar]
    play(made.db, voters, made.worker, made.clock)
    with made.db.read() as c:
        runs = c.execute(select(t.run)).all()
        assert not any(run.doubted for run in runs)
        assert {run.status for run in runs} <= {"reached", "exhausted"}


def test_a_new_rule_is_for_what_is_not_decided(open_campaign):
    made = open_campaign(people=3)
    for person in made.people[:2]:
        offer = assignment.take(made.db, person, made.clock())
        votes.vote(made.db, person, offer.key, 4, made.clock())
    with made.db.write() as c:
        campaigns.change_rule(c, Rule(least=1, most=1), made.clock())
    with made.db.read() as c:
        decided = c.execute(select(t.consensus.c.rule_id)).scalars().all()
    assert decided, "at once, if that is enough"
    offer = assignment.take(made.db, made.people[2], made.clock())
    votes.vote(made.db, made.people[2], offer.key, 4, made.clock())
    with made.db.read() as c:
        assert set(c.execute(select(t.consensus.c.rule_id)).scalars()) == {2}


def test_a_job_whose_worker_is_gone_is_done_again(campaign, monkeypatch):
    made = campaign()
    gone, other = Worker(made.db), Worker(made.db)
    first = gone.claim(1000.0)
    assert other.claim(1000.0).run != first.run
    again = other.claim(1000.0 + 2 * JOB_LEASE_SECONDS)
    assert again.run == first.run

    found = lookahead(gone.explainer, decode_png(first.picture), first.target, first.answers, 4)
    assert other.finish(again, found, 1000.0 + 2 * JOB_LEASE_SECONDS)
    assert not gone.finish(first, found, 1000.0 + 2 * JOB_LEASE_SECONDS), "it comes too late"
    assert not other.finish(again, found, 1000.0 + 2 * JOB_LEASE_SECONDS), "and only once"
    assert count(made.db, t.segment) == 1


def test_a_job_that_always_fails_stalls_its_run(campaign, monkeypatch):
    made = campaign()
    worker = Worker(made.db)

    def fail(*_, **__):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(worker.explainer, "dialogue", fail)
    for hour in range(10):
        while worker.once(1000.0 + 3600 * hour):
            pass
    with made.db.read() as c:
        runs = c.execute(select(t.run.c.status, t.run.c.reason)).all()
    assert set(runs) == {("stalled", "out of luck")}


def test_another_bundle_is_not_taken(campaign, tmp_path, shipped):
    import shutil

    made = campaign()
    other = tmp_path / "other"
    shutil.copytree(shipped.folder, other)
    path = other / "manifest.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(InputError, match="not the bundle that this campaign was made with"):
        Worker(made.db, other)


def test_the_database_keeps_what_the_engine_promises(campaign):
    made = campaign()
    with made.db.read() as c:
        assert c.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert c.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert c.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    with pytest.raises(InputError, match="something at"):
        campaign(made.db.place)
    with pytest.raises(RuntimeError), made.db.write() as c:
        c.execute(update(t.run).values(status="x"))
        raise RuntimeError
    assert count(made.db, t.run, t.run.c.status == "x") == 0


def test_a_campaign_that_cannot_be_made_leaves_nothing(campaign, place, monkeypatch):
    def fail(*_):
        raise RuntimeError("no luck")

    with monkeypatch.context() as patch:
        patch.setattr(creation, "change_rule", fail)
        with pytest.raises(RuntimeError, match="no luck"):
            campaign(place)
    assert campaign(place).db, "and can be made then"


def test_a_rewound_run_that_is_decided_as_before_ends_again(open_campaign, network):
    made = open_campaign(people=4, plan="blend(5, 0.3)")
    right = labels(network)
    play(made.db, dict.fromkeys(made.people[:3], right), made.worker, made.clock, most=18)
    play(made.db, dict.fromkeys(made.people[1:], right), made.worker, made.clock)
    exclusion.void(made.db, "person 4", rewind=True)
    play(made.db, dict.fromkeys(made.people[:3], right), made.worker, made.clock)
    assert not {"waiting", "asking"} & set(status.overview(made.db).runs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_frames": 10**22}, "`max_frames` must be a number from 1 to 10,000"),
        ({"max_frames": 0}, "`max_frames` must be a number from 1 to 10,000, got 0"),
        ({"lease": float("nan")}, "`lease` must be some time, got nan seconds"),
        ({"lease": float("inf")}, "`lease` must be some time, got inf seconds"),
        ({"gold_share": float("nan")}, "shares of at most a half together"),
    ],
)
def test_settings_that_cannot_be_are_named(options, message):
    with pytest.raises(InputError, match=message):
        campaigns.CampaignSettings("What is it?", ("a", "b"), **options)
