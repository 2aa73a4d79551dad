"""Walks that are cut short: one long walk says what every shorter one would have given."""

from dataclasses import replace

import torch
from torch import Tensor

from leapfactual.explainer import LeapFactual
from leapfactual.explanation import Explanation, Trajectory
from leapfactual.flow import Flow
from leapfactual.leaps import blend, inject
from leapfactual.types import Classifier, Generator
from leapfactual.walk import Walker, drive


class Blended:
    """Is a batch of images after blending, from where injections go on.

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
        plan = [blend(leaps, gamma)]
        walker = LeapFactual(
            generator, classifier, flow, plan, batch_size=len(x), keep_path=True, accelerate=False
        )
        found = walker.explain(x, target, z)
        assert found.path is not None
        self.way, self.found = found.path, replace(found, path=None)

    def after(self, leaps: int) -> Explanation:
        """Returns what so many leaps of blending would have given, at the whole walk's cost."""
        return self._stopped(self.way, leaps)

    @torch.no_grad()
    def injected(self, after: int, n: int, lift: float, land: float) -> Trajectory:
        """Goes on with injections after so many leaps of blending, and returns their way."""
        start = self.after(after).z_counterfactual
        plan = [inject(n, lift=lift, land=land)]
        walker = Walker(self.generator, self.flow, plan, keep_path=True)
        walk = drive(walker.run(start, self.found.target), self.classifier)
        way = walk.explanation(self.found.x, 0.0).path
        assert way is not None
        for k in range(n + 1):
            if way.probabilities[:, k].isnan().any():
                way.probabilities[:, k] = self._asked(way.z[:, k])[1]
        return way

    def injections(self, way: Trajectory, n: int) -> Explanation:
        """Returns what so many injections on a way would have given."""
        return self._stopped(way, n)

    @torch.no_grad()
    def _stopped(self, way: Trajectory, leaps: int) -> Explanation:
        """Returns the last of so many iterates that is in the target class, or else the last."""
        at = way.taken.clamp_max(leaps)
        steps = torch.arange(way.z.shape[1], device=way.z.device)
        inside = way.probabilities.argmax(2) == self.found.target[:, None]
        last = (steps * (inside & (steps <= at[:, None]))).max(1).values
        chosen = torch.where(inside[:, 0] | (last > 0), last, at)
        z = way.z[torch.arange(len(chosen), device=chosen.device), chosen]
        image, p = self._asked(z)
        return replace(
            self.found,
            z_counterfactual=z,
            counterfactual=image,
            probabilities=p,
            label=p.argmax(1),
        )

    def _asked(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the images of latents, and what the classifier says of them."""
        images = [self.generator.decode(part) for part in torch.split(z, self.batch_size)]
        image = torch.cat(images)
        return image, self.classifier(image)
