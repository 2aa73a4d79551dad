r"""Algorithm 2, as it is printed in the paper.

Every image takes every leap, the classifier is queried about every image after each of them, and
the last iterate is returned. It is what :mod:`leapfactual.walk` is compared with, in tests and in
benchmarks; to explain images, use :class:`~leapfactual.LeapFactual`, which asks less.

References:
    | LeapFactual: Reliable Visual Counterfactual Explanation Using Conditional Flow
    | Matching (Cao et al., 2025), Algorithm 2
    | https://arxiv.org/abs/2510.14623
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .flow import Flow
from .leaps import Leaps
from .types import Classifier, Generator


@torch.no_grad()
def explain(
    generator: Generator,
    classifier: Classifier,
    flow: Flow,
    x: Tensor,
    target: Tensor,
    plan: Sequence[Leaps],
) -> Tensor:
    r"""Returns the counterfactuals :math:`x_\text{CE}` of the images :math:`x`.

    Arguments:
        generator: The generative model :math:`g_\phi`.
        classifier: The classifier :math:`f_\theta`.
        flow: The flow, trained with the CE-CFM objective.
        x: The images.
        target: The class to reach with each, with shape ``(B,)``.
        plan: ``[blend(N_b, gamma_b)]`` for LeapFactual, and for LeapFactual_R
            ``inject(N_i, lift=gamma_lift, land=gamma_land)`` after it.

    Example:
        >>> from leapfactual import blend, inject, reference
        >>> from leapfactual.generators import Identity
        >>> from leapfactual.testing import GaussianOracle
        >>> oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), scale=0.5)
        >>> x, plan = torch.tensor([[-2.0, 0.0]]), [blend(15, 0.1), inject(5, lift=0.0, land=0.1)]
        >>> parts = Identity(), oracle.classifier, oracle.flow()
        >>> oracle.classifier(reference.explain(*parts, x, torch.tensor([1]), plan)).argmax(1)
        tensor([1])
    """
    # Step 1: preprocessing.
    z = generator.encode(x)
    c = flow.condition(classifier(generator.decode(z)))
    c_source, c_target = c, flow.one_hot(target)
    # Step 2: information blending. Step 3: information injection.
    for stage in plan:
        for _ in range(stage.n):
            z = stage.leap(flow, z, c, c_target, c_source)
            c = flow.condition(classifier(generator.decode(z)))
    # Step 4: postprocessing.
    return generator.decode(z)
