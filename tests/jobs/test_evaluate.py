import json
from dataclasses import replace

import pytest
import torch

import leapfactual as lf
from leapfactual.errors import InputError
from leapfactual.jobs import evaluate
from leapfactual.jobs.evaluate import evaluate_all
from leapfactual.jobs.job import Job
from leapfactual.metrics import oracle_validity


class Digits:
    def __init__(self, x):
        self.x, self.names = x, [f"{n}.png" for n in range(len(x))]

    def __getitem__(self, rows):
        return self.x[rows]


@pytest.fixture
def job(shipped):
    x = shipped.digits.images[:60]
    pairs = [(n, (3 * n) % 10) for n in range(60)]
    return Job(
        bundle=shipped.bundle,
        classifier=shipped.classifier,
        images=Digits(x),
        pairs=pairs,
        plan=(lf.blend(8, 0.4),),
    )


def test_in_pieces_it_measures_what_the_metrics_measure(job, shipped, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "PAIRS_PER_PIECE", 16)
    result = evaluate_all(job, tmp_path / "out", oracle=shipped.oracle)
    found = shipped.bundle.explainer(shipped.classifier, plan=job.plan).explain(
        job.images.x, torch.tensor([k for _, k in job.pairs])
    )
    names = ["ACC", "AUC", "validity", "L1", "SSIM", "queries"]
    expected = lf.metrics.evaluate(found, [*names, oracle_validity(shipped.oracle)])
    for name, score in expected.items():
        assert result.scores[name].mean == pytest.approx(score.mean, rel=1e-4), name
        assert result.scores[name].sem == pytest.approx(score.sem, rel=1e-3), name
    for source, target in ((0, 3), (7, 1)):
        rows = (found.source == source) & (found.target == target)
        if rows.any():
            share = found.valid[rows].double().mean().item()
            assert result.validity[source, target].item() == pytest.approx(share)
    assert result.count.sum() == 60
    written = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert written["metrics"]["L1"]["mean"] == result.scores["L1"].mean
    assert written["metrics"]["L1"]["higher is better"] is False
    assert "| validity |" in (tmp_path / "out" / "evaluation.md").read_text()


def test_another_oracle_or_no_pairs_are_refused(job, shipped, tmp_path):
    few = replace(job, pairs=job.pairs[:4])
    evaluate_all(few, tmp_path / "out", oracle=shipped.oracle)
    with pytest.raises(InputError, match="another job, which differs in its oracle"):
        evaluate_all(few, tmp_path / "out", oracle=lambda x: torch.eye(10)[[3] * len(x)])
    with pytest.raises(InputError, match="there is nothing to measure"):
        evaluate_all(replace(job, pairs=[]), tmp_path / "none")


def test_an_interrupted_evaluation_resumes(job, shipped, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "PAIRS_PER_PIECE", 16)

    def stop(share, *_):
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_all(job, tmp_path / "out", on_progress=stop)
    kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out" / "parts").iterdir()}
    assert len(kept) == 2
    seen = []

    def look(*_):
        seen.append({p.name: p.stat().st_mtime_ns for p in (tmp_path / "out" / "parts").iterdir()})

    result = evaluate_all(job, tmp_path / "out", on_progress=look)
    assert {name: seen[-1][name] for name in kept} == kept
    whole = evaluate_all(job, tmp_path / "whole")
    assert result.scores["L1"].mean == whole.scores["L1"].mean


def test_without_torchmetrics_it_says_in_a_line_what_it_left_out(job, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "find_spec", lambda _: None)
    said = []
    result = evaluate_all(job, tmp_path / "out", log=said.append)
    (line,) = said
    assert line == (
        "Some metrics (AUC, SSIM, SSIM to input) left out: pip install 'leapfactual[metrics]' "
        "adds them."
    )
    assert "PSNR" in result.scores
    assert not {"AUC", "SSIM", "SSIM to input"} & set(result.scores)


def test_a_damaged_piece_is_named_and_made_again(job, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "PAIRS_PER_PIECE", 16)
    out, said = tmp_path / "out", []

    def stop(share, *_):
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_all(job, out, on_progress=stop)
    piece = out / "parts" / "00000016.safetensors"
    piece.write_bytes(piece.read_bytes()[:-8])
    found = evaluate_all(job, out, log=said.append)
    assert said == [f"{piece} is damaged, and is made again."]
    whole = evaluate_all(job, tmp_path / "whole")
    assert found.scores["L1"].mean == whole.scores["L1"].mean
