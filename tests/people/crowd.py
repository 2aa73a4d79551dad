"""A crowd that votes in the same process: fast, and whatever it is told to be."""

import itertools

import torch
from sqlalchemy import select

from leapfactual.people import assignment, campaigns, votes
from leapfactual.people.store import tables as t
from leapfactual.people.store.assets import get_asset
from leapfactual.people.worker import Worker, decode_png, encode_png


def seen(x):
    """Returns images as people see them: in 256 shades."""
    return torch.cat([decode_png(encode_png(image)) for image in x])


class Clock:
    """Goes on by a second whenever it is looked at."""

    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        self.now += 1.0
        return self.now


def labels(classifier):
    """Makes a voter that sees what people see, and answers as a network does."""

    def voter(content):
        return int(classifier(decode_png(content)).argmax())

    return voter


def play(db, voters, worker=None, clock=None, most=100_000, stop=lambda: False):
    """Lets voters, by the number of the person, vote until there is nothing left to do."""
    worker = worker or Worker(db)
    clock = clock or Clock()
    given = 0
    while given < most and not stop():
        while worker.once(clock()):
            pass
        idle = True
        for annotator, voter in voters.items():
            offer = assignment.take(db, annotator, clock())
            if offer is None:
                continue
            idle = False
            with db.read() as c:
                content = get_asset(c, offer.asset)[1]
            votes.vote(db, annotator, offer.key, voter(content), clock())
            given += 1
        with db.read() as c:
            jobs = c.execute(select(t.job.c.id).where(t.job.c.state == t.QUEUED)).all()
        if idle and not jobs:
            return given
    return given


def invited(db, count):
    """Invites people and returns their numbers."""
    for k in itertools.count(1):
        if k > count:
            break
        campaigns.invite(db, f"person {k}")
    with db.read() as c:
        return list(c.execute(select(t.annotator.c.id).order_by(t.annotator.c.id)).scalars())
