"""The main table: every method, every metric, on the test digits."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from leapfactual.baselines import ConditionalGenerator, Optimization
from leapfactual.classifiers import from_logits
from leapfactual.explainer import Explainer, LeapFactual
from leapfactual.explanation import Explanation
from leapfactual.flow import Flow
from leapfactual.leaps import Stage, blend, inject
from leapfactual.metrics import (
    LPIPS,
    METRICS,
    cout,
    morphology_errors,
    morphometrics,
    oracle_validity,
    perceptual,
    realism,
    stability,
)
from leapfactual.pretrained import PLAN, RELIABLE_PLAN
from leapfactual.types import Classifier

from .training import Parts, Settings

PAPER_PLAN = (blend(15, 0.1),)
PAPER_RELIABLE_PLAN = (blend(15, 0.1), inject(5, lift=0.0, land=0.1))
STROKES = ("D(area)", "D(length)", "D(slant)", "D(thickness)", "D(width)", "D(height)")
COLUMNS = ("ACC", "AUC", *STROKES)
PAPER = {
    "Opt-based": (0.8277, 0.8814, 0.2475, 0.2472, 4.3667, 0.1724, 0.2912, 0.0620),
    "CGM-based": (0.9422, 0.9979, 0.2556, 0.2999, 3.4613, 0.0859, 0.3069, 0.0288),
    "LeapFactual": (0.9868, 0.9990, 0.1665, 0.2128, 2.5026, 0.0807, 0.2061, 0.0265),
    "LeapFactual_R": (0.9906, 0.9999, 0.2295, 0.2732, 3.3144, 0.0895, 0.2784, 0.0303),
}


def explainers(parts: Parts, settings: Settings) -> dict[tuple[str, str], Explainer]:
    """Returns the methods of the table, by setting and name."""
    classifier: Classifier = from_logits(parts.network)

    def leaps(flow: Flow, plan: tuple[Stage, ...], batch_size: int) -> LeapFactual:
        return LeapFactual(parts.vae, classifier, flow, plan, batch_size=batch_size)

    def optimization(loss: str) -> Optimization:
        return Optimization(
            parts.vae,
            classifier,
            10,
            steps=settings.opt_steps,
            loss=loss,
            weight_decay=0.01,
            batch_size=10_000,
        )

    return {
        ("paper", "Opt-based"): optimization("squared"),
        ("paper", "CGM-based"): ConditionalGenerator(parts.cvae, classifier, batch_size=10_000),
        ("paper", "LeapFactual"): leaps(parts.flow, PAPER_PLAN, 512),
        ("paper", "LeapFactual_R"): leaps(parts.flow, PAPER_RELIABLE_PLAN, 512),
        ("ours", "Opt-based, cross-entropy"): optimization("cross_entropy"),
        ("ours", "LeapFactual"): leaps(parts.our_flow, PLAN, 10_000),
        ("ours", "LeapFactual_R"): leaps(parts.our_flow, RELIABLE_PLAN, 10_000),
    }


def oracle_features(oracle: nn.Module) -> Callable[[Tensor], Tensor]:
    """Returns the oracle's features: its last convolutions, averaged over the picture."""
    assert isinstance(oracle, nn.Sequential)
    body = oracle[:-3]

    def features(x: Tensor) -> Tensor:
        out: Tensor = body(x).mean((2, 3))
        return out

    return features


class Comparison:
    """Measures one method after the other, with the metrics and strokes that they share.

    Arguments:
        parts: The parts of one seed.
        x: The digits to explain.
        target: Their targets.
        settings: The study's settings.
        lpips: The perceptual distance.
        workers: How many processes measure strokes on a CPU.
    """

    def __init__(
        self,
        parts: Parts,
        x: Tensor,
        target: Tensor,
        settings: Settings,
        lpips: LPIPS,
        workers: int,
    ) -> None:
        self.x, self.target, self.workers = x, target, workers
        self.few = slice(0, settings.effect_digits)
        self.explainers = explainers(parts, settings)
        self.metrics = [
            *METRICS.values(),
            oracle_validity(from_logits(parts.oracle)),
            cout(from_logits(parts.network)),
            realism(oracle_features(parts.oracle), x),
            perceptual(lpips),
            perceptual(lpips, "x"),
        ]
        self.strokes: list[tuple[Tensor, dict[str, Tensor]]] = []

    def measure(self, setting: str, method: str) -> dict[str, float]:
        """Returns the numbers of one method, by ``setting | method | metric``."""
        explainer = self.explainers[setting, method]
        explanation = explainer.explain(self.x, self.target)
        numbers = {metric.name: metric.mean(explanation) for metric in self.metrics}
        numbers["stability"] = stability(explainer, explanation[self.few], l1).mean().item()
        true = self._true_strokes(explanation)
        for name, values in morphology_errors(explanation, self.workers, true).items():
            finite = values[torch.isfinite(values)]
            numbers[name] = finite.mean().item()
            numbers[f"{name}, median"] = finite.median().item()
        return {f"{setting} | {method} | {name}": value for name, value in numbers.items()}

    def _true_strokes(self, explanation: Explanation) -> dict[str, Tensor]:
        for reconstruction, strokes in self.strokes:
            if torch.equal(reconstruction, explanation.reconstruction):
                return strokes
        strokes = morphometrics(explanation.reconstruction, self.workers)
        self.strokes.append((explanation.reconstruction, strokes))
        return strokes


def l1(a: Tensor, b: Tensor) -> Tensor:
    """The mean absolute difference of pixels."""
    return (a - b).abs().flatten(1).mean(1)
