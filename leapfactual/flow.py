r"""The flow between latents that carry their class and latents that do not.

Training regresses a velocity on straight lines between noise :math:`z_0 \sim q(z_0)` and latents
:math:`z_1`, given the class :math:`c` that the classifier sees in them (the CE-CFM objective):

.. math::
    \mathcal{L}(\psi) = \mathbb{E} \left\| v_\psi(t, z, c) - (z_1 - z_0) \right\|^2 , \qquad
    z \sim \mathcal{N}\big((1 - t) z_0 + t z_1, \; \sigma^2 I\big) .

Because the noise knows nothing of the class, integrating from :math:`t = 1` to :math:`0` under
:math:`c` takes the class out (*lifting*), and integrating from :math:`0` to :math:`1` puts one in
(*landing*). A step size :math:`\gamma < 1` goes only part of the way. *Guidance* :math:`w > 1`
lands past the target, on the far side from another class :math:`c'`, along
:math:`v(c') + w \, (v(c) - v(c'))`.
"""

import copy
import json
import math
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import checks, typicality
from .bases import BASES, Base, Gaussian
from .couplings import Coupling, independent
from .errors import InputError, IntegrationError, MissingData
from .fields import FIELDS, VelocityField
from .files import load_weights, parse_json, read_safetensors, write_safetensors
from .solvers import RK4, SOLVERS, Midpoint, Solver
from .types import no_op

# The exact divergence takes one backward pass per feature and Hutchinson's estimate one per probe,
# so that from these sizes on the estimate is cheaper; a score only ranks latents and may be rough.
MAX_EXACT_FEATURES = 64
MAX_EXACT_SCORE_FEATURES = 16
PROBES, SCORE_PROBES = 16, 8
# The trace of a map has thousands of terms, of which one direction's estimate is good to some per
# cent; and a U-Net is a hundred times as dear.
MAP_PROBES = 1
FORMAT = "leapfactual flow 1"
T = TypeVar("T")


class Flow(nn.Module):
    r"""Creates a flow between class-free and class-bearing latents.

    .. math:: \frac{dz}{dt} = \gamma \, v(t, z, c) \, , \quad t \in [0, 1]

    Lifting integrates from :math:`t = 1` to :math:`0` and takes the class :math:`c` out of
    :math:`z`. Landing integrates from :math:`0` to :math:`1` and puts it in. For equal :math:`c`
    and :math:`\gamma` they undo each other.

    References:
        | LeapFactual: Reliable Visual Counterfactual Explanation Using Conditional Flow
        | Matching (Cao et al., 2025)
        | https://arxiv.org/abs/2510.14623

    Arguments:
        field: The velocity :math:`v`.
        solver: How to integrate.
        soft: Whether the condition keeps the classifier's probabilities or only its decision. It
            belongs to the flow, so that training and explaining cannot differ.
        base: The noise at :math:`t = 0`.
        sigma: The width :math:`\sigma` of the training path.

    Example:
        >>> from leapfactual import Flow, MLPField
        >>> flow = Flow(MLPField(features=2, classes=4))
        >>> flow.lift(torch.zeros(3, 2), torch.eye(4)[:3]).shape
        torch.Size([3, 2])
    """

    mean: Tensor
    scale: Tensor
    quantiles: Tensor

    def __init__(
        self,
        field: VelocityField,
        solver: Solver = RK4(10),  # noqa: B008 - frozen
        *,
        soft: bool = False,
        base: Base = Gaussian(),  # noqa: B008 - frozen
        sigma: float = 0.0,
    ) -> None:
        super().__init__()
        if not isinstance(field, VelocityField):
            raise InputError(
                f"`field` must be a VelocityField such as MLPField, got {type(field).__name__}."
            )
        if not isinstance(base, Base):
            raise InputError(f"`base` must be a base such as Uniform(), got {base!r}.")
        if not isinstance(soft, bool):
            raise InputError(f"`soft` must be True or False, got {soft!r}.")
        _check_solver(solver)
        if not 0 <= checks.number(sigma, "sigma") < math.inf:
            raise InputError(
                f"`sigma` must be a number of at least 0, got {sigma!r}. The paper uses 0, and "
                "1e-4 for faces."
            )
        self.field, self.solver, self.base = field, solver, base
        self.soft, self.sigma = soft, sigma
        self.register_buffer("mean", torch.zeros(field.features))
        self.register_buffer("scale", torch.ones(field.features))
        self.register_buffer("quantiles", torch.full((field.classes, typicality.LEVELS), math.nan))
        self.eval()

    @property
    def features(self) -> int:
        """The number of latent features D."""
        return self.field.features

    @property
    def classes(self) -> int:
        """The number of classes K."""
        return self.field.classes

    def condition(self, p: Tensor) -> Tensor:
        """Turns probabilities ``(B, K)`` into the condition that this flow is trained on.

        Example:
            >>> from leapfactual import Flow, MLPField
            >>> Flow(MLPField(features=2, classes=3)).condition(torch.tensor([[0.2, 0.7, 0.1]]))
            tensor([[0., 1., 0.]])
        """
        checks.probabilities(p, _rows(p), self.classes)
        return p.to(self.mean.dtype) if self.soft else self.one_hot(p.argmax(1))

    def one_hot(self, y: Tensor) -> Tensor:
        """Writes class numbers ``(B,)`` as condition rows ``(B, K)``."""
        y = checks.targets(y, _rows(y), self.classes, y.device)
        return F.one_hot(y, self.classes).to(self.mean.dtype)

    def check_latents(self, z: Tensor) -> None:
        """Refuses latents that this flow cannot work on, with an error that says why."""
        checks.latents(z, self.features)
        if z.dtype != self.mean.dtype:
            raise InputError(
                f"`z` must have the type of the flow, {self.mean.dtype}, got {z.dtype}. "
                f"Convert one of them, for example with z.to(flow.mean.dtype) or flow.double()."
            )

    # -- transport --

    def lift(self, z: Tensor, c: Tensor, gamma: float = 1.0) -> Tensor:
        r"""Takes the class :math:`c` out of :math:`z`.

        Arguments:
            z: Latents at :math:`t = 1`, with shape ``(B, D)``.
            c: The condition that they carry, with shape ``(B, K)``.
            gamma: The step size; 1 goes all the way.
        """
        return self.transport(z, c, gamma, 1.0, 0.0)

    def land(
        self,
        z: Tensor,
        c: Tensor,
        gamma: float = 1.0,
        *,
        guidance: float = 1.0,
        other: Tensor | None = None,
    ) -> Tensor:
        r"""Puts the class :math:`c` into :math:`z`.

        Arguments:
            z: Latents at :math:`t = 0`, with shape ``(B, D)``.
            c: The condition that they are to carry, with shape ``(B, K)``.
            gamma: The step size; 1 goes all the way.
            guidance: The guidance :math:`w`, at least 1; 1 lands on the class itself.
            other: The condition :math:`c'` to be guided away from, with shape ``(B, K)``.
        """
        return self.transport(z, c, gamma, 0.0, 1.0, guidance=guidance, other=other)

    def transport(
        self,
        z: Tensor,
        c: Tensor,
        gamma: float,
        start: float,
        end: float,
        *,
        guidance: float = 1.0,
        other: Tensor | None = None,
    ) -> Tensor:
        """Moves ``z`` from time ``start`` to ``end``, at ``gamma`` times the velocity."""
        self._check(z, c)
        if not 0 <= checks.number(gamma, "gamma") < math.inf:
            raise InputError(f"`gamma` must be a number of at least 0, got {gamma!r}.")
        if not 1 <= checks.number(guidance, "guidance") < math.inf:
            raise InputError(f"`guidance` must be a number of at least 1, got {guidance!r}.")
        if guidance > 1 and other is None:
            raise InputError(
                f"guidance={guidance:g} leads away from a class: pass it as other=…, with shape "
                f"({len(z)}, {self.classes})."
            )
        if other is not None:
            checks.probabilities(other, len(z), self.classes, "other")
        moved = self.integrate(z, c, gamma, start, end, guidance=guidance, other=other)
        if not checks.capturing(moved) and not torch.isfinite(moved).all():
            bad = (~torch.isfinite(moved)).any(1).nonzero()[:, 0]
            raise IntegrationError(
                f"the transport from t = {start:g} to {end:g} with gamma = {gamma:g} and "
                f"{self.solver} diverged for {len(bad)} of {len(z)} latents (first: row "
                f"{int(bad[0])}, largest input {z[bad[0]].abs().max():.3g}). Take more solver "
                "steps, or train the flow on latents of this size."
            )
        return moved

    def integrate(
        self,
        z: Tensor,
        c: Tensor,
        gamma: float,
        start: float,
        end: float,
        *,
        guidance: float = 1.0,
        other: Tensor | None = None,
    ) -> Tensor:
        """Does what :meth:`transport` does, without any check of inputs and outputs."""
        if gamma == 0 or not len(z):
            return z.clone()
        v = _Velocity(self.field, c.to(self.mean), gamma, guidance, other)
        u = self.solver.integrate(v, self._standardized(z), start, end)
        return u * self.scale + self.mean

    def round_trip(
        self,
        z: Tensor,
        c: Tensor,
        c_target: Tensor,
        *,
        lift: float,
        land: float,
        guidance: float = 1.0,
        other: Tensor | None = None,
    ) -> Tensor:
        """Lifts and lands, without any check of inputs and outputs."""
        if lift == 0:
            return self.integrate(z, c_target, land, 0.0, 1.0, guidance=guidance, other=other)
        if not len(z):
            return z.clone()
        down = _Velocity(self.field, c.to(self.mean), lift)
        up = _Velocity(self.field, c_target.to(self.mean), land, guidance, other)
        u = self.solver.round_trip(down, up, self._standardized(z), max(lift, land))
        return u * self.scale + self.mean

    def trace(self, z: Tensor, c: Tensor, gamma: float, times: list[float]) -> Tensor:
        """Returns where a transport passes: ``z`` at each of the ``times``, the start among them.

        The result has shape ``(len(times), B, D)``.
        """
        points = [z]
        for start, end in pairwise(times):
            points.append(self.transport(points[-1], c, gamma, start, end))
        return torch.stack(points)

    def with_solver(self, solver: Solver) -> Self:
        """Returns the same flow, sharing its weights, with another way to integrate.

        Example:
            >>> from leapfactual import Flow, Midpoint, MLPField
            >>> Flow(MLPField(features=2, classes=4)).with_solver(Midpoint(2)).solver
            Midpoint(steps=2)
        """
        _check_solver(solver)
        other = copy.copy(self)
        other.solver = solver
        return other

    def with_field(self, field: VelocityField) -> Self:
        """Returns the same flow with another field."""
        other = copy.copy(self)
        other._modules = {**self._modules, "field": field}
        return other

    def _check(self, z: Tensor, c: Tensor) -> None:
        self.check_latents(z)
        checks.probabilities(c, len(z), self.classes, "c")

    def _standardized(self, z: Tensor) -> Tensor:
        return (z - self.mean) / self.scale

    # -- training --

    def loss(
        self,
        z: Tensor,
        c: Tensor,
        coupling: Coupling = independent,
        rng: torch.Generator | None = None,
    ) -> Tensor:
        r"""Returns the CE-CFM objective on a batch of latents, as a scalar.

        Arguments:
            z: Latents :math:`z_1` of images, with shape ``(B, D)``.
            c: What :meth:`condition` makes of the classifier's answers on those images, with shape
                ``(B, K)``.
            coupling: How noise meets latents.
            rng: The random number generator.
        """
        z1 = self._standardized(z)
        z0 = coupling(self.base.sample_like(z1, rng), z1, c)
        t = torch.rand(len(z1), 1, dtype=z1.dtype, device=z1.device, generator=rng)
        zt = (1 - t) * z0 + t * z1
        if self.sigma:
            noise = torch.randn(zt.shape, dtype=zt.dtype, device=zt.device, generator=rng)
            zt = zt + self.sigma * noise
        v = _Velocity(self.field, c.to(self.mean))
        return (v(t[:, 0], zt) - (z1 - z0)).square().mean()

    def standardize(self, z: Tensor) -> None:
        """Sets the mean and the scale that latents are standardized with to those of ``z``.

        Every feature of a row is standardized by itself; of a map, every channel, since the same
        thing looks the same wherever it stands. Features that do not vary are shifted only. What
        :meth:`fit_typicality` learnt is dropped.
        """
        self.check_latents(z)
        if not len(z):
            raise InputError("`z` must hold at least one latent, got none. Embed some images.")
        channels = self.field.latent_channels
        values = z.detach().reshape(-1, channels)
        std = values.std(0, correction=0)
        varies = std > 1e-6 * std.max()
        scale = torch.where(varies, std / self.base.std, 1.0)
        self.quantiles.fill_(math.nan)
        self.mean.copy_(values.mean(0).repeat(self.features // channels))
        self.scale.copy_(scale.repeat(self.features // channels))

    # -- density --

    def log_prob(
        self,
        z: Tensor,
        c: Tensor,
        *,
        solver: Solver = RK4(20),  # noqa: B008 - frozen
        probes: int | None = None,
        seed: int = 0,
    ) -> Tensor:
        r"""Returns the log density :math:`\log p(z \mid c)` under the flow, with shape ``(B,)``.

        .. math::
            \log p_1(z \mid c) = \log q(z(0)) - \int_0^1 \operatorname{div} v(t, z(t), c) \, dt

        Arguments:
            z: Latents at :math:`t = 1`, with shape ``(B, D)``.
            c: The condition, with shape ``(B, K)``.
            solver: How to integrate. It is not the flow's own, so that the density does not
                depend on how finely leaps are integrated.
            probes: How many random directions estimate the divergence (Hutchinson's estimator; the
                same directions for every row). Defaults to the exact divergence up to 64 features
                and to 16 probes beyond.
            seed: The seed of the directions.
        """
        self._check(z, c)
        _check_solver(solver)
        if probes is None:
            probes = 0 if self.features <= MAX_EXACT_FEATURES else PROBES
        elif checks.whole(probes, "probes") < 0:
            raise InputError(f"`probes` must be at least 0, which is exact, got {probes}.")
        with torch.inference_mode(False), torch.enable_grad():
            u = self._standardized(z.detach().clone())
            v = _Velocity(self.field, c.to(self.mean))
            log_p = typicality.log_density(v, u, solver, self.base, probes, seed)
        return log_p - self.scale.log().sum()

    def fit_typicality(
        self,
        z: Tensor,
        p: Tensor,
        per_class: int = 1000,
        batch_size: int = 1024,
        on_batch: Callable[[int], object] = no_op,
    ) -> None:
        """Learns how likely training latents are, so that :meth:`typicality` has a scale.

        Arguments:
            z: The training latents, with shape ``(N, D)``.
            p: What the classifier says of their images, with shape ``(N, K)``.
            per_class: How many latents of each class to look at; the first ones.
            batch_size: How many latents at a time.
            on_batch: Called with the number of latents that have been looked at.
        """
        self.check_latents(z)
        checks.probabilities(p, len(z), self.classes)
        checks.positive(per_class, "per_class")
        checks.positive(batch_size, "batch_size")
        self.quantiles.fill_(math.nan)
        labels, done = p.argmax(1), 0
        for label in range(self.classes):
            rows = (labels == label).nonzero()[:per_class, 0]
            scores = []
            for part in torch.split(rows, batch_size) if len(rows) else ():
                scores.append(self._score(z[part], labels[part]))
                done += len(part)
                on_batch(done)
            if scores:
                self.quantiles[label] = typicality.levels(torch.cat(scores))

    def typicality(self, z: Tensor, y: Tensor) -> Tensor:
        """Returns the percentile of latents' density among the training latents of a class.

        0 means less likely than every training latent, 50 as likely as the median one. Classes
        that :meth:`fit_typicality` never saw give NaN.

        Arguments:
            z: Latents, with shape ``(B, D)``.
            y: The class to compare each with, with shape ``(B,)``.
        """
        if self.quantiles.isnan().all():
            raise InputError(
                "this flow has no scale of typicality yet. Call flow.fit_typicality(z, p) with "
                "the training latents and what the classifier says of them."
            )
        y = checks.targets(y, len(z), self.classes, z.device)
        return typicality.percentile(self._score(z, y), self.quantiles[y])

    def _score(self, z: Tensor, y: Tensor) -> Tensor:
        """Returns a rough log density, good enough to rank latents by: 20 times as fast."""
        if self.field.latent_channels < self.features:
            return self.log_prob(z, self.one_hot(y), solver=Midpoint(4), probes=MAP_PROBES)
        probes = 0 if self.features <= MAX_EXACT_SCORE_FEATURES else SCORE_PROBES
        return self.log_prob(z, self.one_hot(y), solver=Midpoint(8), probes=probes)

    # -- keeping --

    def config(self) -> dict[str, object]:
        """Returns all that the weights do not say, as values that JSON can hold."""
        return {
            "field": {"kind": type(self.field).__name__, **self.field.config()},
            "base": {"kind": type(self.base).__name__, **self.base.config()},
            "soft": self.soft,
            "sigma": self.sigma,
        }

    def save(self, path: str | Path, *, half: bool = False) -> None:
        """Writes weights and configuration to one safetensors file, in half precision if asked."""
        kind = type(self.solver).__name__
        if kind not in SOLVERS:
            raise InputError(f"a flow is saved with one of our solvers, got {kind}.")
        solver = {"kind": kind, **asdict(self.solver)}  # type: ignore[call-overload]
        config = json.dumps({**self.config(), "solver": solver})
        write_safetensors(self.state_dict(), path, {"format": FORMAT, "config": config}, half)

    @classmethod
    def load(
        cls, path: str | Path, field: VelocityField | None = None, base: Base | None = None
    ) -> Self:
        """Reads what :meth:`save` wrote.

        Arguments:
            path: The file.
            field: An untrained field of the right shape, needed only when the flow was saved with
                a field of your own.
            base: The base, needed only when the flow was saved with a base of your own.
        """
        path = checks.path(path)
        if not path.is_file():
            raise MissingData(
                f"there is no flow at {path}. Train one with leapfactual.fit and save it there."
            )
        metadata, tensors = read_safetensors(path, FORMAT, "Copy it again, or save it again.")
        try:
            config = parse_json(metadata["config"])
            with torch.device("meta"):
                built = field or _build(FIELDS, config["field"])
                flow = cls(
                    built,
                    _build(SOLVERS, config["solver"]),
                    soft=config["soft"],
                    base=base or _build(BASES, config["base"]),
                    sigma=config["sigma"],
                )
            load_weights(flow, tensors, assign=True)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"{path} does not describe a flow ({reason}). Save it again with Flow.save."
            ) from error
        return flow

    def extra_repr(self) -> str:
        """Returns what ``print`` shows."""
        kind = "soft" if self.soft else "hard"
        return f"{kind} conditions, base={self.base}, solver={self.solver}, sigma={self.sigma:g}"


class _Velocity:
    """Creates the velocity of a transport, a function of time and standardized latents.

    Attributes:
        evaluations: How often one call evaluates the field.
    """

    def __init__(
        self,
        field: VelocityField,
        c: Tensor,
        gamma: float = 1.0,
        guidance: float = 1.0,
        other: Tensor | None = None,
    ) -> None:
        self.field, self.gamma, self.guidance = field, gamma, guidance
        self.other = None if guidance == 1 else other
        # Both conditions are evaluated as one batch, which small ones use a processor better in.
        self.bound = field.bind(c if self.other is None else torch.cat([self.other.to(c), c]))
        self.evaluations = 1 if self.other is None else 2

    def __call__(self, t: Tensor, u: Tensor) -> Tensor:
        v = self.bound(t, u if self.other is None else torch.cat([u, u]))
        if len(v) != self.evaluations * len(u) or v.shape[1:] != u.shape[1:]:
            raise InputError(
                f"the field {type(self.field).__name__} returned {checks.shape(v)} for latents "
                f"{checks.shape(u)}. A velocity must have the shape of z: mend the field's "
                "forward."
            )
        if self.other is not None:
            away, towards = v.chunk(2)
            v = away + self.guidance * (towards - away)
        return self.gamma * v


def _rows(tensor: Tensor) -> int:
    return len(tensor) if isinstance(tensor, Tensor) and tensor.ndim else 0


def _check_solver(solver: Solver) -> None:
    if not isinstance(solver, Solver):
        raise InputError(f"`solver` must be a solver such as RK4(10), got {solver!r}.")


def _build(kinds: dict[str, type[T]], config: dict[str, object]) -> T:
    """Builds what ``config`` names, with the arguments it holds."""
    arguments = dict(config)
    kind = arguments.pop("kind")
    if kind not in kinds:
        raise InputError(
            f"`{kind}` is not one of {sorted(kinds)}. If it is of your own, pass field=… or "
            "base=… to Flow.load."
        )
    return kinds[str(kind)](**arguments)
