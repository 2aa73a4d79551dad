"""What was trained, on disk: a folder of safetensors and one JSON manifest, safe to share.

====================  ======================================================================
``manifest.json``     format, shapes, classes, plan, preprocessing, training record, hashes
``generator…``        the generator's weights, if it is one of ours
``flow…``             the flow's weights
``probes…``           some images, and what the classifier that the flow was trained on says
====================  ======================================================================

A flow explains the classifier it was trained with. The bundle knows that classifier by its answers
on the probes, and refuses another one unless it is asked to. Nothing in a bundle is executed.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save_file
from torch import Tensor

from . import checks
from .classifiers import Preprocessing
from .errors import InputError, MissingData
from .explain import LeapFactual
from .files import read_safetensors
from .flow import Flow
from .generators import Identity, saved
from .leaps import Leaps
from .types import Classifier, Generator

FORMAT = "leapfactual bundle 1"
PROBES = "leapfactual probes 1"
MANIFEST = "manifest.json"
MOST_MANIFEST_BYTES = 1 << 20
MOST_FILE_BYTES = 8 << 30
PROBE_BYTES = 1 << 20
SAME = 0.98


@dataclass(frozen=True, eq=False)
class Bundle:
    """Is all that is needed to explain a classifier, but for the classifier itself.

    Arguments:
        generator: The generator.
        flow: The flow.
        classes: What the classes are called.
        plan: The stages to walk.
        probes: Images in [0, 1] to recognise the classifier by, with shape ``(N, C, H, W)``, or
            rows.
        answers: What the classifier says of the probes, with shape ``(N, K)``.
        judge: Whose judgement the flow carries, in words.
        preprocessing: What the classifier wants done to images, for the record.
        training: How all this was trained, for the record; values that JSON can hold.
    """

    generator: Generator
    flow: Flow
    classes: tuple[str, ...]
    plan: tuple[Leaps, ...]
    probes: Tensor
    answers: Tensor
    judge: str = "a classifier"
    preprocessing: Preprocessing | None = None
    training: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(str(name) for name in self.classes))
        object.__setattr__(self, "plan", tuple(self.plan))
        if len(self.classes) != self.flow.classes or len(set(self.classes)) != len(self.classes):
            raise InputError(
                f"`classes` must name each of the flow's {self.flow.classes} classes once, got "
                f"{list(self.classes)}."
            )
        if not self.plan or not all(isinstance(stage, Leaps) for stage in self.plan):
            raise InputError(f"`plan` must be a list of stages, got {self.plan!r}.")
        checks.images(self.probes, "probes")
        checks.probabilities(self.answers, len(self.probes), self.flow.classes, "answers")
        if not len(self.probes):
            raise InputError("`probes` must hold at least one image, got none.")

    @classmethod
    def make(
        cls,
        generator: Generator,
        flow: Flow,
        classifier: Classifier,
        images: Tensor,
        *,
        classes: Sequence[str],
        plan: Sequence[Leaps],
        **record: Any,  # noqa: ANN401 - judge, preprocessing and training, as above
    ) -> Self:
        """Makes a bundle, asking the classifier about some of ``images`` to recognise it by."""
        checks.images(images, "images")
        size = math.prod(images.shape[1:])
        number = min(len(images), 64, max(4, PROBE_BYTES // size))
        probes = _rounded(images[:number].detach().cpu().float())
        with torch.no_grad():
            answers = classifier(probes.to(images.device)).cpu().float()
        return cls(generator, flow, tuple(classes), tuple(plan), probes, answers, **record)

    def recognises(self, classifier: Classifier) -> bool:
        """Returns whether a classifier answers on the probes as the flow's own did."""
        return self._likeness(classifier) >= SAME

    def explainer(
        self,
        classifier: Classifier,
        *,
        plan: Sequence[Leaps] | None = None,
        anyway: bool = False,
        batch_size: int = 1024,
        keep_path: bool = False,
    ) -> LeapFactual:
        """Returns an explainer of the classifier that this bundle was made for.

        Arguments:
            classifier: The classifier.
            plan: Another plan than the bundle's.
            anyway: Explain another classifier all the same.
            batch_size: As in :class:`LeapFactual`.
            keep_path: As in :class:`LeapFactual`.
        """
        likeness = self._likeness(classifier)
        if likeness < SAME and not anyway:
            raise InputError(
                f"this bundle was made for {self.judge}, but the given classifier agrees with it "
                f"on only {likeness:.0%} of {len(self.probes)} probe images. A flow explains the "
                "classifier it was trained with: make a bundle for this one, or pass anyway=True."
            )
        return LeapFactual(
            self.generator,
            classifier,
            self.flow,
            plan or self.plan,
            batch_size=batch_size,
            keep_path=keep_path,
        )

    @torch.no_grad()
    def _likeness(self, classifier: Classifier) -> float:
        p = classifier(self.probes)
        if not isinstance(p, Tensor) or p.shape != self.answers.shape:
            got = checks.shape(p) if isinstance(p, Tensor) else type(p).__name__
            raise InputError(
                f"this bundle knows {self.flow.classes} classes, {', '.join(self.classes)}; the "
                f"given classifier answers {len(self.probes)} images with {got}."
            )
        same = p.cpu().argmax(1) == self.answers.argmax(1)
        return same.double().mean().item()

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Writes the bundle to a folder, all of it or nothing.

        Arguments:
            folder: The folder to make.
            overwrite: Whether to replace a bundle that is there.
        """
        folder = Path(folder)
        if folder.exists() and not overwrite:
            raise InputError(
                f"there is something at {folder} already. Give another folder, or pass "
                "overwrite=True."
            )
        if folder.exists() and not (folder / MANIFEST).is_file():
            raise InputError(f"{folder} is no bundle, so it is not replaced. Give another folder.")
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
        old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.mkdir()
            self._write(temporary)
            if folder.exists():
                folder.rename(old)
            temporary.rename(folder)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            if old.exists() and not folder.exists():
                old.rename(folder)

    def _write(self, folder: Path) -> None:
        self.flow.save(folder / "flow.safetensors")
        ours = saved.kind(self.generator) is not None
        if ours:
            saved.save(self.generator, folder / "generator.safetensors")
        probes = (self.probes * 255).round().byte() if self.probes.ndim == 4 else self.probes
        tensors = {"probes": probes.contiguous(), "answers": self.answers.contiguous()}
        save_file(tensors, folder / "probes.safetensors", {"format": PROBES})
        manifest = {
            "format": FORMAT,
            "generator": type(self.generator).__name__,
            "features": self.flow.features,
            "shape": list(self.probes.shape[1:]),
            "classes": list(self.classes),
            "judge": self.judge,
            "plan": [{"n": s.n, "lift": s.lift, "land": s.land} for s in self.plan],
            "preprocessing": self.preprocessing and self.preprocessing.config(),
            "training": dict(self.training),
            "files": {
                path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}
                for path in sorted(folder.iterdir())
            },
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")

    @classmethod
    def load(cls, folder: str | Path, generator: Generator | None = None) -> Self:
        """Reads a bundle, checking every file against its hash.

        Arguments:
            folder: The folder.
            generator: The generator, where the bundle was made with one that is not ours.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        try:
            files = manifest["files"]
            for name in ("flow.safetensors", "probes.safetensors"):
                _verify(folder, name, files[name])
            flow = Flow.load(folder / "flow.safetensors")
            if generator is None:
                generator = _generator(folder, manifest)
            _, tensors = read_safetensors(folder / "probes.safetensors", PROBES, "Copy it again.")
            probes = tensors["probes"]
            wanted = manifest["preprocessing"]
            return cls(
                generator=generator,
                flow=flow,
                classes=_names(manifest["classes"]),
                plan=tuple(Leaps(**stage) for stage in manifest["plan"]),
                probes=probes.float() / 255 if probes.dtype == torch.uint8 else probes,
                answers=tensors["answers"],
                judge=str(manifest["judge"]),
                preprocessing=None if wanted is None else _preprocessing(wanted),
                training=dict(manifest["training"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError | MissingData):
                raise
            raise InputError(
                f"the manifest of {folder} does not describe a bundle ({type(error).__name__}: "
                f"{error}). Copy the bundle again."
            ) from error

    def __repr__(self) -> str:
        kind = type(self.generator).__name__
        return f"Bundle({kind}, {self.flow.features} features, {len(self.classes)} classes)"


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Returns the manifest of a bundle, without reading anything else."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise MissingData(f"there is no bundle at {folder}: it has no {MANIFEST}.")
    if path.stat().st_size > MOST_MANIFEST_BYTES:
        raise InputError(f"{path} has {path.stat().st_size} bytes, too many for a manifest.")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no whole JSON file ({error}). Copy it again.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        got = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise InputError(f"{path} must describe a `{FORMAT}`, got `{got}`. Make the bundle again.")
    return manifest


def verify(folder: str | Path) -> None:
    """Checks that a bundle can be read and that every file is the one its manifest names."""
    manifest = read_manifest(folder)
    ours = "generator.safetensors" in manifest.get("files", {})
    Bundle.load(folder, None if ours else Identity())


def _generator(folder: Path, manifest: dict[str, Any]) -> Generator:
    name = "generator.safetensors"
    if name not in manifest["files"]:
        raise InputError(
            f"{folder} was made with a generator of its maker's own, {manifest['generator']}. "
            "Pass it: Bundle.load(folder, generator=…)."
        )
    _verify(folder, name, manifest["files"][name])
    return saved.load(folder / name)


def _verify(folder: Path, name: str, record: dict[str, Any]) -> None:
    path = folder / name
    if path.is_symlink() or not path.is_file():
        raise MissingData(f"the bundle {folder} has no file {name}. Copy it again.")
    size = path.stat().st_size
    if size > MOST_FILE_BYTES:
        raise InputError(f"{path} has {size} bytes, too many for a bundle.")
    if size != record["bytes"] or _sha256(path) != record["sha256"]:
        raise InputError(
            f"{path} is not the file that the manifest names: its size or SHA-256 differs. It was "
            "damaged or exchanged; copy the bundle again."
        )


def _names(names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("`classes` is no list of names")
    return tuple(names)


def _preprocessing(config: dict[str, Any]) -> Preprocessing:
    arguments: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in config.items()
    }
    return Preprocessing(**arguments)


def _rounded(x: Tensor) -> Tensor:
    """Rounds images to the 256 levels that a bundle keeps; rows stay as they are."""
    return (x * 255).round() / 255 if x.ndim == 4 else x


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
