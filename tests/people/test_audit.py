"""The event log leads to what is there."""

import random

import pytest
from sqlalchemy import select, update

from leapfactual.people import campaigns, exclusion, status, votes
from leapfactual.people.audit import replay
from leapfactual.people.consensus import DAWID_SKENE, IMPLAUSIBLE, UNSURE, Rule
from leapfactual.people.store import tables as t
from leapfactual.people.worker import Worker
from tests.people.crowd import Clock, invited, labels, play


def wild(network, seed):
    """Answers mostly right, sometimes wrong, unsure or in disbelief."""
    chance, right = random.Random(seed), labels(network)

    def voter(content):
        luck = chance.random()
        if luck < 0.75:
            return right(content)
        if luck < 0.9:
            return chance.randrange(10)
        return UNSURE if luck < 0.98 else IMPLAUSIBLE

    return voter


@pytest.mark.parametrize(
    ("mode", "method"), [("batch", "majority"), ("step", DAWID_SKENE), ("bisect", "majority")]
)
def test_random_histories_replay_to_the_same(campaign, network, mode, method):
    made = campaign(mode=mode, rule=Rule(least=3, most=5, method=method), plan="blend(5, 0.3)")
    people = invited(made.db, 7)
    voters = {p: wild(network, p) for p in people}
    worker, clock = Worker(made.db), Clock()
    play(made.db, voters, worker, clock, most=60)
    exclusion.void(made.db, "person 2", rewind=True)
    del voters[people[1]]
    play(made.db, voters, worker, clock, most=40)
    with made.db.write() as c:
        campaigns.change_rule(c, Rule(least=3, most=4, method=method), clock())
    play(made.db, voters, worker, clock)
    for task, _ in status.overview(made.db).stuck[:2]:
        votes.adjudicate(made.db, task, 3, clock())
    play(made.db, voters, worker, clock)
    found = replay(made.db)
    assert found.differences == []
    assert found.votes > 60


def test_a_campaign_that_was_tampered_with_does_not_replay(campaign, network):
    made = campaign(plan="blend(5, 0.3)")
    play(made.db, dict.fromkeys(invited(made.db, 1), labels(network)))
    with made.db.write() as c:
        vote = c.execute(select(t.vote.c.id).limit(1)).scalar_one()
        c.execute(
            update(t.vote).where(t.vote.c.id == vote).values(answer=(t.vote.c.answer + 1) % 10)
        )
    assert replay(made.db).differences
