"""Truncated walks: one long walk gives the counterfactuals of every shorter one."""

from dataclasses import replace

import torch
from torch import Tensor

from leapfactual.explainer import LeapFactual
from leapfactual.explanation import Explanation
from leapfactual.flow import Flow
from leapfactual.leaps import Stage, blend, inject
from leapfactual.types import Classifier, Generator


class BlendingWalk:
    """Walks a batch of images by blending, once; shorter walks and injections start from it.

    Arguments:
        generator: Makes latents of images and images of latents.
        classifier: The classifier to explain.
        flow: The flow.
        x: The images.
        target: The class to reach with each.
        leaps: How many blending leaps, at most.
        gamma: Their step size.
        z: The latents of the images, where they are known.
        batch_size: How many images to draw at a time.
    """

    def __init__(
        self,
        generator: Generator,
        classifier: Classifier,
        flow: Flow,
        x: Tensor,
        target: Tensor,
        leaps: int,
        gamma: float,
        *,
        z: Tensor | None = None,
        batch_size: int = 512,
    ) -> None:
        self.generator, self.classifier, self.flow = generator, classifier, flow
        self.batch_size = batch_size
        self.walk = self._walk(x, target, blend(leaps, gamma), z)

    def stop_after(self, leaps: int) -> Explanation:
        """Returns what ``leaps`` blending leaps give, at the cost of the whole walk."""
        return self._stop(self.walk, leaps)

    @torch.no_grad()
    def inject(self, after: int, n: int, lift: float, land: float) -> Explanation:
        """Injects ``n`` times after ``after`` blending leaps; the result has the path of that.

        Iterates that an open-loop stage does not query are queried here, since each of them may
        be the last one of a shorter walk.
        """
        start = self.stop_after(after).z_counterfactual
        stage = inject(n, lift=lift, land=land)
        walk = self._walk(self.walk.x, self.walk.target, stage, start)
        assert walk.path is not None
        z, p = walk.path.z, walk.path.probabilities
        for k in range(n + 1):
            if p[:, k].isnan().any():
                p[:, k] = self._query(z[:, k])[1]
        return walk

    def stop_injections_after(self, walk: Explanation, n: int) -> Explanation:
        """Returns what the first ``n`` injections of a walk give."""
        return self._stop(walk, n)

    def _walk(self, x: Tensor, target: Tensor, stage: Stage, z: Tensor | None) -> Explanation:
        explainer = LeapFactual(
            self.generator,
            self.classifier,
            self.flow,
            [stage],
            batch_size=len(x),
            keep_path=True,
            accelerate=False,
        )
        return explainer.explain(x, target, z)

    @torch.no_grad()
    def _stop(self, walk: Explanation, leaps: int) -> Explanation:
        """Returns the last iterate in the target class among the first ones, or else the last."""
        path = walk.path
        assert path is not None
        at = path.taken.clamp_max(leaps)
        steps = torch.arange(path.z.shape[1], device=path.z.device)
        inside = path.probabilities.argmax(2) == walk.target[:, None]
        last = (steps * (inside & (steps <= at[:, None]))).max(1).values
        chosen = torch.where(inside[:, 0] | (last > 0), last, at)
        z = path.z[torch.arange(len(chosen), device=chosen.device), chosen]
        image, p = self._query(z)
        return replace(
            self.walk,
            path=None,
            z_counterfactual=z,
            counterfactual=image,
            probabilities=p,
            label=p.argmax(1),
        )

    def _query(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the images of latents, and the classifier's probabilities for them."""
        images = [self.generator.decode(part) for part in torch.split(z, self.batch_size)]
        image = torch.cat(images)
        return image, self.classifier(image)
