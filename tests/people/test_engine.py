"""The engine: what people say leads to what the explainer would have found."""

import pytest
import torch
from safetensors.torch import load
from sqlalchemy import select

from leapfactual.people.store import tables as t
from leapfactual.people.store.assets import get_asset
from leapfactual.people.worker import build_explainer
from tests.people.crowd import invited, labels, play


def found(db):
    """Returns the runs, with the latents of those that came to an end."""
    with db.read() as c:
        rows = c.execute(select(t.run).order_by(t.run.c.id)).all()
        ends = [
            load(get_asset(c, row.result["latents"])[1]) if row.result else None for row in rows
        ]
    return rows, ends


@pytest.mark.parametrize("mode", ["step", "batch"])
def test_voters_who_agree_with_a_network_give_its_counterfactuals(
    campaign, shipped, network, mode, place
):
    made = campaign(place, mode=mode)
    play(made.db, dict.fromkeys(invited(made.db, 1), labels(network)))
    rows, ends = found(made.db)
    explainer = build_explainer(shipped.bundle, "blend(6, 0.3), inject(2, 0.1, 0.25)")
    explainer.classifier = network
    e = explainer.explain(made.images[:], 3)
    assert e.valid.double().mean() > 0.5, "there is something to compare"
    for k, (row, end) in enumerate(zip(rows, ends, strict=True)):
        assert row.status == ("reached" if e.valid[k] else "exhausted"), row.reason
        assert torch.equal(end["z"], e.z[k : k + 1])
        assert torch.equal(end["z_counterfactual"], e.z_counterfactual[k : k + 1])
        assert row.result["queries"] == e.queries[k]
        assert row.result["leaps"] == e.leaps[k]


@pytest.mark.parametrize(
    ("pictures", "plan"),
    [(1, "blend(60, 0.03)"), pytest.param(6, "blend(60, 0.03)", marks=pytest.mark.slow)],
)
def test_batch_needs_fewer_rounds(campaign, network, folder, pictures, plan):
    images = sorted(folder.glob("*.png"))[:pictures]
    rounds = {}
    for mode in ("step", "batch", "bisect"):
        made = campaign(mode=mode, plan=plan, images=images)
        play(made.db, dict.fromkeys(invited(made.db, 1), labels(network)))
        with made.db.read() as c:
            rounds[mode] = len(c.execute(select(t.round_.c.id)).all())
            votes = len(c.execute(select(t.vote.c.id)).all())
            rounds[f"{mode} votes"] = votes
    assert rounds["batch"] < rounds["step"] / 2
    assert rounds["bisect votes"] < rounds["step votes"] / 1.5, rounds
