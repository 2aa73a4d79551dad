r"""The baselines that the paper compares with, behind the same verb.

**Opt-based**: gradient descent in the latent space on

.. math:: \mathcal{L}(z) = \mathcal{L}_\text{CLS}\big(f(g(z)), \hat y\big)
    + \lambda \, \|g(z) - x\|_1 ,

which needs a differentiable classifier and is slow where its gradient vanishes.

**CGM-based**: a conditional generator is trained on the classifier's probabilities; its latents
carry all but the class, so a counterfactual is the same latent under another condition. It needs a
generator of its own for each classifier and lands anywhere in the class, not near the boundary.
"""

import time

import torch
from torch import Tensor
from torch.nn import functional as F

from . import checks
from .errors import InputError, NeedsGradient
from .explainer import Explainer
from .explanation import Explanation
from .imaging import Pictures, as_images
from .types import Classifier, Conditional, Generator, Target

LOSSES = ("squared", "cross_entropy")
ANCHORS = ("input", "reconstruction")


class Optimization(Explainer):
    """Creates an explainer by gradient descent in the latent space.

    The defaults are the paper's for Morpho-MNIST. Its loss is the squared error between the
    probabilities and the one-hot target; ``cross_entropy`` is the stronger baseline, whose
    gradient does not vanish where the classifier is confident of another class. Both terms are
    means over pixels and classes. Each image is optimized as if it were alone.

    Arguments:
        generator: A differentiable generator.
        classifier: A differentiable classifier.
        classes: The number of classes K.
        steps: How many steps to take.
        learning_rate: The learning rate of Adam.
        distance_weight: The weight of the distance, the paper's lambda.
        loss: ``squared`` or ``cross_entropy``.
        anchor: What the distance is measured to: the ``input``, as in the published code, or the
            ``reconstruction``, as in the paper's text.
        weight_decay: The weight decay; the published code uses AdamW, whose default is 0.01.
        epsilon: Adam's epsilon. Gradients below it move nothing, which is how the squared error
            gets stuck. The published code takes the mean over batches of 512, which amounts to 512
            times Adam's own 1e-8.
        batch_size: How many images are explained at a time.
    """

    def __init__(
        self,
        generator: Generator,
        classifier: Classifier,
        classes: int,
        *,
        steps: int = 1000,
        learning_rate: float = 0.2,
        distance_weight: float = 0.0006,
        loss: str = "squared",
        anchor: str = "input",
        weight_decay: float = 0.0,
        epsilon: float = 512e-8,
        batch_size: int = 1024,
    ) -> None:
        checks.positive(classes, "classes")
        checks.positive(steps, "steps")
        checks.positive(batch_size, "batch_size")
        for name, value, known in (("loss", loss, LOSSES), ("anchor", anchor, ANCHORS)):
            if value not in known:
                raise InputError(f"`{name}` must be one of {list(known)}, got {value!r}.")
        self.generator, self.classifier, self.classes = generator, classifier, classes
        self.steps, self.learning_rate, self.weight_decay = steps, learning_rate, weight_decay
        self.distance_weight, self.loss, self.anchor = distance_weight, loss, anchor
        self.epsilon, self.batch_size = epsilon, batch_size

    def explain(self, x: Pictures, target: Target) -> Explanation:
        """See :meth:`Explainer.explain`."""
        x = as_images(x)
        checks.images(x)
        y = checks.targets(target, len(x), self.classes, x.device)
        parts = zip(torch.split(x, self.batch_size), torch.split(y, self.batch_size), strict=True)
        return Explanation.cat([self._explain(*part) for part in parts])

    def _explain(self, x: Tensor, y: Tensor) -> Explanation:
        started = time.perf_counter()
        with torch.no_grad():
            start = self.generator.encode(x)
            reconstruction = self.generator.decode(start)
            source = self._query(reconstruction)
        anchor = x if self.anchor == "input" else reconstruction
        one_hot = F.one_hot(y, self.classes).to(x.dtype)
        z = start.detach().clone().requires_grad_()
        optimizer = torch.optim.AdamW(
            [z], lr=self.learning_rate, weight_decay=self.weight_decay, eps=self.epsilon
        )
        for _ in range(self.steps):
            with torch.enable_grad():
                image = self.generator.decode(z)
                p = self.classifier(image)
                if not p.requires_grad:
                    raise NeedsGradient(
                        "Optimization needs a differentiable generator and classifier, but the "
                        "answers carry no gradient. LeapFactual explains such classifiers."
                    )
                distance = (image - anchor).abs().flatten(1).mean(1)
                loss = self._classification_loss(p, one_hot) + self.distance_weight * distance
                (z.grad,) = torch.autograd.grad(loss.sum(), z)
            optimizer.step()
        with torch.no_grad():
            z = z.detach()
            image = self.generator.decode(z)
            p = self._query(image)
        return Explanation.of(
            x,
            image,
            y,
            p,
            source.argmax(1),
            reconstruction=reconstruction,
            z=start,
            z_counterfactual=z,
            steps=self.steps,
            queries=self.steps + 2,
            seconds=time.perf_counter() - started,
        )

    def _classification_loss(self, p: Tensor, one_hot: Tensor) -> Tensor:
        if self.loss == "squared":
            return (p - one_hot).square().mean(1)
        return -(p.clamp_min(torch.finfo(p.dtype).tiny).log() * one_hot).sum(1)

    def _query(self, image: Tensor) -> Tensor:
        p = self.classifier(image)
        checks.probabilities(p, len(image), self.classes, "the classifier's answer")
        return p


class ConditionalGenerator(Explainer):
    """Creates an explainer that decodes the same latent under another condition.

    As in the published code, images are encoded under the classifier's probabilities and decoded
    under the one-hot target.

    Arguments:
        generator: A conditional generator, such as a :class:`leapfactual.generators.VAE` with
            classes, that was trained on the classifier's probabilities.
        classifier: The classifier.
        batch_size: How many images are explained at a time.
    """

    def __init__(
        self, generator: Conditional, classifier: Classifier, *, batch_size: int = 1024
    ) -> None:
        checks.positive(batch_size, "batch_size")
        if not getattr(generator, "classes", 0):
            raise InputError(
                f"`generator` must be conditional, got {type(generator).__name__} without "
                "classes. Build it with classes=K and train it on the classifier's answers."
            )
        self.generator, self.classifier, self.batch_size = generator, classifier, batch_size

    def explain(self, x: Pictures, target: Target) -> Explanation:
        """See :meth:`Explainer.explain`."""
        x = as_images(x)
        checks.images(x)
        y = checks.targets(target, len(x), self.generator.classes, x.device)
        parts = zip(torch.split(x, self.batch_size), torch.split(y, self.batch_size), strict=True)
        return Explanation.cat([self._explain(*part) for part in parts])

    @torch.no_grad()
    def _explain(self, x: Tensor, y: Tensor) -> Explanation:
        started = time.perf_counter()
        classes = self.generator.classes
        c = self.classifier(x)
        checks.probabilities(c, len(x), classes, "the classifier's answer")
        z = self.generator.encode(x, c.to(x))
        reconstruction = self.generator.decode(z, c.to(x))
        image = self.generator.decode(z, F.one_hot(y, classes).to(x))
        source, p = self.classifier(reconstruction), self.classifier(image)
        return Explanation.of(
            x,
            image,
            y,
            p,
            source.argmax(1),
            reconstruction=reconstruction,
            z=z,
            z_counterfactual=z,
            queries=3,
            seconds=time.perf_counter() - started,
        )
