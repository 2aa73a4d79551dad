"""The benchmark runs, keeps what other machines measured, and measures what it says."""

import json

import pytest
import torch

from benchmarks import suite
from benchmarks.suite import growth, published, roofline
from benchmarks.suite.clock import peak, seconds
from leapfactual.errors import InputError
from leapfactual.pretrained import load
from leapfactual.report import tables


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(growth, "GROWN", {"leaps": (1, 2)})
    monkeypatch.setattr(growth, "IMAGES", {"cpu": (8, 16)})
    monkeypatch.setattr(growth, "PIECE", {"cpu": 8})
    monkeypatch.setattr(growth, "LATENTS", 512)
    monkeypatch.setattr(growth, "EPOCHS", 1)
    monkeypatch.setattr(published, "LATENCY_DIGITS", 3)
    monkeypatch.setattr(published, "SIZES", (1, 4))


@pytest.mark.slow
def test_a_run_measures_everything_and_keeps_other_machines(small, tmp_path):
    elsewhere = [tables.row("h200-512", "fast plan", "speedup", [250.0])]
    path = tmp_path / "bench.json"
    tables.write(path, elsewhere, seed=0, command="there", machine="NVIDIA H200")
    rows = suite.run(tmp_path, "here", lambda *_: None, count=24)
    assert torch.get_num_threads() >= 1
    content = json.loads(path.read_text())
    assert content["command"] == "here; there"
    assert content["hardware"].endswith("NVIDIA H200")
    kept, _, _ = tables.read(path)
    assert [r for r in kept if r.setting == "h200-512"] == elsewhere
    found = {(r.setting, r.method, r.metric): r.mean for r in rows}
    fast = {metric: found["cpu-2", "fast plan", metric] for metric in ("validity", "queries")}
    assert fast["validity"] == 1.0
    assert fast["queries"] < found["cpu-2", "published", "queries"]
    assert found["cpu-2", "fast plan", "speedup"] > 1
    shares = [
        found["cpu roofline", "fast plan", f"share of the {x}"] for x in ("least", "layered")
    ]
    assert 0 < shares[0] <= shares[1] < 1
    assert (tmp_path / "bench.md").read_text().startswith("**cpu-2**")


def test_the_published_procedure_is_the_papers_plan(monkeypatch):
    """The same walk, asked for through the library with the adaptive solver."""
    work = published.Work.make(load(), load().digits.images[:8], 0)
    calls = []
    slow = published.explain_as_published(work, lambda: calls.append(None))
    from leapfactual import Dopri5

    found = work.explainer(published.PUBLISHED, Dopri5(1e-4, 1e-4)).explain(work.x, work.target)
    last = found.leaps == 20
    assert last.any()
    torch.testing.assert_close(found.counterfactual[last], slow[last], rtol=0, atol=5e-3)
    assert len(calls) == int(found.nfe.max())


def test_no_digits_are_refused(tmp_path):
    with pytest.raises(InputError, match="at least 1"):
        suite._digits(load(), 0)


def test_costs_are_counted():
    layer = torch.nn.Linear(10, 20)
    x = torch.zeros(4, 10)
    cost = roofline.cost([layer], lambda: layer(x), 4)
    assert cost.operations == 2 * 10 * 20
    assert cost.traffic == 2 * 20 * 4


def test_time_and_memory_are_measured():
    assert len(seconds(lambda: None, "cpu", warm=1, times=4)) == 4
    found = peak(lambda: torch.ones(2**24).sum(), "cpu")
    assert not found < 50
