"""Plans of every kind, and copies of the networks that ship, for the tests of the engine."""

import torch

import leapfactual as lf
from leapfactual._engine.copies import Copies, Networks

TARGET = torch.arange(40) % 10
PLANS = {
    "blended": [lf.blend(6, 0.2)],
    "injected": [lf.blend(4, 0.2), lf.inject(3, lift=0.0, land=0.1)],
    "confidence": [lf.blend(3, 0.3), lf.inject(1, 0.0, 0.2, 0.999), lf.inject(1, 0.0, 0.4, 0.99)],
    "tightened": [lf.blend(5, 0.3), lf.tighten(4), lf.inject(1, 0.0, 0.1)],
    "open-loop first": [lf.inject(2, 0.0, 0.1), lf.blend(3, 0.3), lf.inject(1, 0.1, 0.2)],
    "all at the end": [lf.inject(3, 0.0, 0.2), lf.tighten(3)],
    "guided": [lf.blend(4, 0.1, 2), lf.inject(2, 0.0, 0.1, guidance=2), lf.blend(2, 0.1)],
    "restarted": [lf.inject(2, 0.0, 0.1), lf.restart(), lf.blend(5, 0.3), lf.tighten(2)],
    "guided and sure": [lf.blend(4, 0.1, 3), lf.inject(2, 0.1, 0.1, 0.99, 3), lf.tighten(3)],
}


def fresh_copies(shipped, x):
    copies = Copies(Networks(shipped.bundle.generator, shipped.classifier))
    with torch.no_grad():
        z = shipped.bundle.generator.encode(x)
    copies.refresh(z)
    return copies, z


def explained(shipped, x, plan, *, target=TARGET, **options):
    explainer = lf.LeapFactual(
        shipped.bundle.generator, shipped.classifier, shipped.bundle.flow, plan, **options
    )
    return explainer, explainer.explain(x, target)
