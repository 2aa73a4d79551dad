"""What the demo on digits puts on its page."""

import json

import torch

import leapfactual as lf
from leapfactual.demos import digits
from leapfactual.report import tables


def test_the_page_has_an_oracle_plans_and_counts(tmp_path, monkeypatch):
    shipped = lf.pretrained.load()
    plans = {"a": (lf.blend(9, 0.2),), "b": (lf.blend(9, 0.2), lf.inject(2, 0.0, 0.1))}
    monkeypatch.setattr(digits, "PLANS", plans)
    monkeypatch.setattr(digits, "SHOWN", 2)
    x, target = shipped.digits.images[:4], torch.tensor([3, 1, 4, 5])
    near, far = (shipped.bundle.explainer(shipped.classifier, plan=plan).explain(x, target)
                 for plan in plans.values())  # fmt: skip
    rows = [
        tables.row("digits", name, metric, [value])
        for metric, values in (("validity", (1.0, 0.75)), ("L1", (0.0512, 0.07)))
        for name, value in zip(plans, values, strict=True)
    ]
    digits.write_cards(shipped, near, far, rows, tmp_path / "index.html")
    page = (tmp_path / "index.html").read_text()
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert data["plans"] == [
        ["nearest counterfactual", "blend(9, 0.2)"],
        ["reliable counterfactual", "blend(9, 0.2), inject(2, 0, 0.1)"],
    ]
    assert data["table"] == [
        ["all 4", "nearest", "reliable"],
        ["validity", "4 of 4", "3 of 4"],
        ["mean L1", "0.0512", "0.07"],
    ]
    answers = [shipped.oracle(e.counterfactual).argmax(1).tolist() for e in (near, far)]
    for card in data["cards"]:
        row = int(card["name"].removeprefix("test digit "))
        assert [card["oracle"], card["reliable"]["oracle"]] == [found[row] for found in answers]
        assert "class" not in card["reason"]
