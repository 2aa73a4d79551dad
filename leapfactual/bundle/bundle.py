"""What was trained, on disk: a folder of safetensors and one JSON manifest, safe to share.

====================  ======================================================================
``manifest.json``     format, shapes, classes, plan, preprocessing, training record, hashes
``generator…``        the generator's weights, if it is one of ours
``flow…``             the flow's weights
``probes…``           some images, and the answers of the classifier that the flow explains
``reconstructions…``  a picture: images of each class beside their reconstructions
====================  ======================================================================

A flow explains the classifier it was trained with. The bundle knows that classifier by its answers
on the probes, and refuses another one unless it is forced. Nothing in a bundle is executed.
"""

import errno
import html
import json
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from .. import checks
from .._engine.memory import in_halves
from ..classifiers import Preprocessing, open_classifier
from ..errors import InputError, MissingData
from ..explainer import LeapFactual
from ..fields import VelocityField
from ..files import read_safetensors, write_safetensors
from ..flow import Flow
from ..generators import io
from ..leaps import Plan, RatedPlan, Stage, check_plan, describe, parse
from ..solvers import Solver
from ..types import Classifier, Generator
from .manifest import (
    FILES,
    FORMAT,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    PICTURE,
    rated_plan_to_json,
    read_manifest,
    read_names,
    read_preprocessing,
    read_rated_plan,
    read_stage,
    refuse_foreign_files,
    sha256,
    stage_to_json,
    verify,
)

PROBES = "leapfactual probes 1"
# Few enough for a classifier that is slow; at least 8, whatever the images' size.
MAX_PROBES, MIN_PROBES, MAX_PROBE_BYTES = 64, 8, 1 << 20
# So many tell what a classifier answers with.
EXAMPLES = 8
# Probes are chosen where classifiers differ, so the flow's own agrees on all of them.
MIN_LIKENESS = 1.0
# Probabilities of one network differ by less between devices and precisions, those of another
# network by more on unsure probes.
PROBE_ATOL = 0.05


@dataclass(frozen=True, eq=False)
class Bundle:
    """All that is needed to explain a classifier, but for the classifier itself.

    Arguments:
        generator: The generator.
        flow: The flow.
        classes: The names of the classes.
        plan: The plan: a list of stages.
        probes: Images in [0, 1] to recognize the classifier by, with shape ``(N, C, H, W)``, or
            rows.
        answers: The classifier's probabilities of the probes, with shape ``(N, K)``.
        classifier_name: The name of the classifier, or of the people who voted.
        preprocessing: The preprocessing of the classifier, for the record.
        training: How all this was trained, for the record; values that JSON can hold.
        agreement: Whether the classifier answers the same on reconstructions, for the record: what
            :meth:`Agreement.to_json` gives.
        front: The Pareto front of plans, by rising reliability, from
            :func:`~leapfactual.jobs.plans.search_plans`.
        fast: The cheapest plan that is no worse than the paper's reliable one, if there is one.
        keep_pixels: Whether counterfactuals keep the input's own pixels where nothing has changed.
        picture: A PNG file of images of each class beside their reconstructions, if there is one.
    """

    generator: Generator
    flow: Flow
    classes: tuple[str, ...]
    plan: tuple[Stage, ...]
    probes: Tensor
    answers: Tensor
    classifier_name: str = "a classifier"
    preprocessing: Preprocessing | None = None
    training: Mapping[str, object] = field(default_factory=dict)
    agreement: Mapping[str, object] | None = None
    front: tuple[RatedPlan, ...] = ()
    fast: RatedPlan | None = None
    keep_pixels: bool = False
    picture: bytes | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(str(name) for name in self.classes))
        object.__setattr__(self, "plan", tuple(self.plan))
        if len(self.classes) != self.flow.classes or len(set(self.classes)) != len(self.classes):
            raise InputError(
                f"`classes` must name each of the flow's {self.flow.classes} classes once, got "
                f"{list(self.classes)}."
            )
        plans = self.front if self.fast is None else (*self.front, self.fast)
        for plan in (self.plan, *(rated.plan for rated in plans)):
            check_plan(plan)
        heights = [rated.reliability for rated in self.front]
        if heights and (heights != sorted(heights) or heights[0] != 0 or heights[-1] != 1):
            raise InputError(f"`front` must rise from 0 to 1, got {heights}.")
        checks.images(self.probes, "probes")
        checks.probabilities(self.answers, len(self.probes), self.flow.classes, "answers")
        if not len(self.probes):
            raise InputError("`probes` must hold at least one image, got none.")
        self._check_record()
        self._check_generator()

    def _check_record(self) -> None:
        try:
            text = json.dumps([dict(self.training), self.agreement], allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"`training` and `agreement` must hold what JSON can: numbers, text, lists "
                f"({error}). Convert arrays with .tolist()."
            ) from error
        if len(text) > MAX_MANIFEST_BYTES // 2:
            raise InputError(
                f"`training` has {len(text)} characters, too many for a manifest. Keep a summary."
            )

    @torch.no_grad()
    def _check_generator(self) -> None:
        x = self._on_device(self.probes[:1])
        try:
            z = self.generator.encode(x)
            checks.one_row_each(z, x, "encode")
            x_hat = self.generator.decode(z)
            checks.one_row_each(x_hat, x, "decode")
        except (TypeError, RuntimeError, InputError) as error:
            raise InputError(
                f"the generator does not take the probes, of shape {checks.shape(x)} ({error})."
            ) from error
        if tuple(z.shape) != (1, self.flow.features) or x_hat.shape != x.shape:
            raise InputError(
                f"generator and flow do not fit: the flow has {self.flow.features} features, the "
                f"generator encodes {checks.shape(x)} to {checks.shape(z)} and decodes to "
                f"{checks.shape(x_hat)}."
            )

    @property
    def device(self) -> torch.device:
        """The device of the flow."""
        return self.flow.mean.device

    def to(self, device: torch.device | str) -> Self:
        """Moves generator and flow to a device, and returns the bundle."""
        self.flow.to(device)
        if isinstance(self.generator, nn.Module):
            self.generator.to(device)
        return self

    def _on_device(self, x: Tensor) -> Tensor:
        return x.to(self.device)

    @classmethod
    def make(
        cls,
        generator: Generator,
        flow: Flow,
        classifier: Classifier,
        images: Tensor,
        *,
        classes: Sequence[str],
        plan: Sequence[Stage],
        **record: Any,  # noqa: ANN401 - classifier_name, preprocessing and training, as above
    ) -> Self:
        """Makes a bundle, querying the classifier about some of ``images`` to recognize it by.

        Classifiers differ where they are unsure. The probes are therefore those images of each
        class that the classifier is least sure of, and blends of images of different classes.
        """
        checks.images(images, "images")
        if not len(images):
            raise InputError("`images` must hold at least one image, got none.")
        room = min(MAX_PROBES, max(MIN_PROBES, MAX_PROBE_BYTES // math.prod(images.shape[1:])))
        with torch.no_grad():
            few = images[torch.linspace(0, len(images) - 1, min(len(images), 512)).long()].detach()
            few = _quantize(few.float())
            p = in_halves(classifier, few)
            checks.probabilities(p, len(few), flow.classes, "the classifier's answer")
            chosen = few[_unsure(p, room // 2)]
            order = p.argmax(1).argsort(stable=True)
            partner = order.roll(len(order) // 2)
            blends = _quantize((few[order] + few[partner]) / 2)
            rows = torch.linspace(0, len(few) - 1, min(len(few), room - room // 2)).long()
            probes = torch.cat([chosen, blends[rows]])
            answers = in_halves(classifier, probes)
        return cls(
            generator,
            flow,
            tuple(classes),
            tuple(plan),
            probes.cpu(),
            answers.float().cpu(),
            **record,
        )

    def operating_point(self, reliability: float) -> RatedPlan:
        """Returns the operating point: the first plan of the front that is at least that reliable.

        Arguments:
            reliability: From 0, just across the boundary, to 1, as typical as the class's own
                images.
        """
        if not 0 <= checks.number(reliability, "reliability") <= 1:
            raise InputError(f"`reliability` must be between 0 and 1, got {reliability!r}.")
        if not self.front:
            raise InputError(
                "this bundle has one plan and no front of plans, so there is no choice of "
                "reliability. Make it with `leapfactual fit`, or give a plan."
            )
        return next(rated for rated in self.front if rated.reliability >= reliability)

    def choose_plan(
        self,
        *,
        plan: str | Sequence[Stage] | None = None,
        reliability: float | None = None,
        fast: bool = False,
    ) -> tuple[Plan, Solver | None]:
        """Returns a plan, and its solver where that is not the flow's own.

        Arguments:
            plan: The stages, or the same as text. Defaults to the bundle's.
            reliability: An operating point on the front, see :meth:`operating_point`.
            fast: Whether to take the fast plan.
        """
        if (plan is not None) + (reliability is not None) + fast > 1:
            raise InputError(
                "plan, reliability and fast (--plan, --reliability, --fast) each choose a plan: "
                "give one of them."
            )
        if plan is not None:
            return (parse(plan) if isinstance(plan, str) else tuple(plan)), None
        if reliability is not None:
            rated = self.operating_point(reliability)
            return rated.plan, rated.solver
        if not fast:
            return self.plan, None
        if self.fast is None:
            raise InputError(
                "this bundle has no fast plan: none that was tried came up to the paper's. Leave "
                "fast out, or give a plan."
            )
        return self.fast.plan, self.fast.solver

    def recognizes(self, classifier: Classifier) -> bool:
        """Returns whether a classifier answers on the probes as the flow's own did."""
        return self._likeness(classifier) >= MIN_LIKENESS

    def explainer(
        self,
        classifier: object,
        *,
        plan: str | Sequence[Stage] | None = None,
        reliability: float | None = None,
        fast: bool = False,
        solver: Solver | None = None,
        force: bool = False,
        batch_size: int | None = None,
        keep_path: bool = False,
        accelerate: bool = True,
        mask: Tensor | None = None,
        keep_pixels: bool | None = None,
    ) -> LeapFactual:
        """Returns an explainer of the classifier that this bundle was made for.

        Arguments:
            classifier: The classifier: all that the command line takes, by name or as it is, see
                :func:`~leapfactual.classifiers.open_classifier`.
            plan: The plan, as stages or as text. Defaults to the bundle's.
            reliability: Instead, from 0, the nearest, to 1, reliable.
            fast: Instead, whether to take the fast plan.
            solver: The solver. Defaults to the plan's.
            force: Whether to explain another classifier than the bundle's.
            batch_size: As in :class:`LeapFactual`.
            keep_path: As in :class:`LeapFactual`.
            accelerate: As in :class:`LeapFactual`.
            mask: As in :class:`LeapFactual`.
            keep_pixels: As in :class:`LeapFactual`. Defaults to what was best on held-out images.
        """
        chosen, own_solver = self.choose_plan(plan=plan, reliability=reliability, fast=fast)
        solver = solver or own_solver
        example = self._on_device(self.probes[:EXAMPLES])
        model = open_classifier(classifier, example, self.classes)
        likeness = self._likeness(model)
        if likeness < MIN_LIKENESS and not force:
            raise InputError(
                f"this bundle was made for {self.classifier_name}, but the given classifier "
                f"agrees with it on only {likeness:.0%} of {len(self.probes)} probe images. A "
                "flow explains the classifier it was trained with: make a bundle for this one, or "
                "pass --force, in Python force=True."
            )
        return LeapFactual(
            self.generator,
            model,
            self.flow if solver is None else self.flow.with_solver(solver),
            chosen,
            batch_size=batch_size,
            keep_path=keep_path,
            accelerate=accelerate,
            mask=mask,
            keep_pixels=self.keep_pixels if keep_pixels is None else keep_pixels,
            classes=self.classes,
        )

    @torch.no_grad()
    def _likeness(self, classifier: Classifier) -> float:
        """Returns the share of probes that a classifier answers as the flow's own did.

        Where both give probabilities, those must be close; otherwise decisions must be equal.
        """
        p = in_halves(classifier, self._on_device(self.probes))
        if not isinstance(p, Tensor) or p.shape != self.answers.shape:
            got = checks.shape(p) if isinstance(p, Tensor) else type(p).__name__
            if isinstance(p, Tensor) and p.ndim == 2 and len(p) == len(self.probes):
                got = f"{p.shape[1]} columns"
            raise InputError(
                f"this bundle knows {self.flow.classes} classes, {', '.join(self.classes)}; the "
                f"given classifier answers {len(self.probes)} images with {got}. Give the one "
                "that the bundle was made for, or make a bundle for this one."
            )
        checks.probabilities(p, len(p), self.flow.classes, "the classifier's answer")
        p = p.float().cpu()
        hard = (p.max(1).values == 1).all() or (self.answers.max(1).values == 1).all()
        if hard:
            same = p.argmax(1) == self.answers.argmax(1)
        else:
            same = (p - self.answers).abs().max(1).values < PROBE_ATOL
        return same.double().mean().item()

    def save(
        self,
        folder: str | Path,
        *,
        overwrite: bool = False,
        half: bool = False,
        staging: Path | None = None,
    ) -> None:
        """Writes the bundle to a folder, all of it or nothing.

        A bundle that is replaced is moved aside first, so that a process killed in between leaves
        the old one in a hidden folder in ``staging``.

        Arguments:
            folder: The folder to make.
            overwrite: Whether to replace a bundle that is there.
            half: Whether to write weights in half precision, to make the bundle small.
            staging: Where it is written before it takes its name, on the same disk. Defaults to
                the folder around it.
        """
        folder = checks.path(folder).absolute()
        if folder.is_symlink() or (folder.exists() and not overwrite):
            raise InputError(
                f"there is something at {folder} already. Give another folder, or pass "
                "overwrite=True."
            )
        if folder.exists():
            refuse_foreign_files(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        hidden = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=staging or folder.parent))
        new, old = hidden / "new", hidden / "old"
        try:
            new.mkdir()
            self._write(new, half)
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
        except BaseException:
            if _restore(old, folder):
                shutil.rmtree(hidden, ignore_errors=True)
            raise
        shutil.rmtree(hidden, ignore_errors=True)

    def _write(self, folder: Path, half: bool) -> None:
        self.flow.save(folder / "flow.safetensors", half=half)
        ours = io.kind(self.generator) is not None
        if ours:
            io.save(self.generator, folder / "generator.safetensors", half=half)
        probes = (self.probes * 255).round().byte() if self.probes.ndim == 4 else self.probes
        tensors = {"probes": probes.contiguous(), "answers": self.answers.contiguous()}
        write_safetensors(tensors, folder / "probes.safetensors", {"format": PROBES})
        if self.picture is not None:
            (folder / PICTURE).write_bytes(self.picture)
        manifest = {
            "format": FORMAT,
            "generator": type(self.generator).__name__,
            "features": self.flow.features,
            "shape": list(self.probes.shape[1:]),
            "classes": list(self.classes),
            "classifier_name": self.classifier_name,
            "plan": [stage_to_json(stage) for stage in self.plan],
            "front": [rated_plan_to_json(rated) for rated in self.front],
            "fast": self.fast and rated_plan_to_json(self.fast),
            "preprocessing": self.preprocessing and self.preprocessing.config(),
            "training": dict(self.training),
            "agreement": self.agreement,
            "keep_pixels": self.keep_pixels,
            "files": {
                path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
                for path in sorted(folder.iterdir())
            },
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")

    @classmethod
    def load(
        cls,
        folder: str | Path,
        generator: Generator | None = None,
        field: VelocityField | None = None,
    ) -> Self:
        """Reads a bundle, checking every file against its hash.

        Arguments:
            folder: The folder.
            generator: The generator, where the bundle was made with one that is not ours.
            field: An untrained field, where the flow was made with one that is not ours.
        """
        folder = checks.path(folder)
        manifest = read_manifest(folder)
        try:
            files = manifest["files"]
            if not {"flow.safetensors", "probes.safetensors"} <= set(files) <= FILES:
                raise InputError(f"the manifest of {folder} names the wrong files: {list(files)}.")
            for name in files:
                verify(folder, name, files[name])
            flow = Flow.load(folder / "flow.safetensors", field)
            if generator is None:
                generator = _generator(folder, manifest)
            _, tensors = read_safetensors(folder / "probes.safetensors", PROBES, "Copy it again.")
            probes = tensors["probes"]
            if [flow.features, list(probes.shape[1:])] != [
                manifest["features"],
                manifest["shape"],
            ]:
                raise InputError(
                    f"the manifest of {folder} speaks of {manifest['features']} features and "
                    f"images of shape {manifest['shape']}; its files have {flow.features} and "
                    f"{list(probes.shape[1:])}."
                )
            wanted = manifest["preprocessing"]
            return cls(
                generator=generator,
                flow=flow,
                classes=read_names(manifest["classes"]),
                plan=tuple(read_stage(**stage) for stage in manifest["plan"]),
                probes=probes.float() / 255 if probes.dtype == torch.uint8 else probes,
                answers=tensors["answers"],
                classifier_name=str(manifest["classifier_name"]),
                preprocessing=None if wanted is None else read_preprocessing(wanted),
                training=dict(manifest["training"]),
                agreement=manifest["agreement"],
                front=tuple(read_rated_plan(**rated) for rated in manifest["front"]),
                fast=manifest["fast"] and read_rated_plan(**manifest["fast"]),
                keep_pixels=bool(manifest.get("keep_pixels", False)),
                picture=(folder / PICTURE).read_bytes() if PICTURE in files else None,
            )
        except (InputError, MissingData):
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise InputError(
                f"the manifest of {folder} does not describe a bundle ({type(error).__name__}: "
                f"{error}). Copy the bundle again."
            ) from error

    def __repr__(self) -> str:
        kind = type(self.generator).__name__
        return f"Bundle({kind}, {self.flow.features} features, {len(self.classes)} classes)"

    def _repr_html_(self) -> str:
        facts = [
            ("classifier", self.classifier_name),
            ("classes", ", ".join(self.classes)),
            ("plan", describe(self.plan)),
            *((f"front, reliability {r.reliability:.2f}", describe(r.plan)) for r in self.front),
            *([("fast plan", describe(self.fast.plan))] if self.fast else []),
        ]
        lines = (f"<tr><th>{n}</th><td>{html.escape(v)}</td></tr>" for n, v in facts)
        return f"<p>{html.escape(repr(self))}</p><table>{''.join(lines)}</table>"


def _restore(old: Path, folder: Path) -> bool:
    """Puts a bundle back that was moved aside, and returns whether it is no longer needed there.

    Another process may have saved to the same folder meanwhile: then its bundle stays.
    """
    try:
        old.rename(folder)
    except FileNotFoundError:
        return True
    except OSError as error:
        return error.errno in (errno.ENOTEMPTY, errno.EEXIST)
    return True


def _unsure(p: Tensor, n: int) -> Tensor:
    """Returns the rows that the classifier is least sure of, the classes taking turns."""
    best = p.topk(min(2, p.shape[1]), dim=1).values
    margin = best[:, 0] - best[:, -1]
    labels = p.argmax(1)
    turn = torch.zeros(len(p), device=p.device)
    for label in range(p.shape[1]):
        rows = (labels == label).nonzero()[:, 0]
        order = rows[margin[rows].argsort(stable=True)]
        turn[order] = torch.arange(len(order), device=p.device).float()
    return (turn + 0.5 * margin).argsort(stable=True)[:n]


def _generator(folder: Path, manifest: dict[str, Any]) -> Generator:
    name = "generator.safetensors"
    if name not in manifest["files"]:
        raise InputError(
            f"{folder} was made with a generator of its maker's own, {manifest['generator']}. "
            "Pass it: Bundle.load(folder, generator=…)."
        )
    return io.load(folder / name)


def _quantize(x: Tensor) -> Tensor:
    """Rounds images to the 256 levels that a bundle keeps; rows stay as they are."""
    return (x * 255).round() / 255 if x.ndim == 4 else x
