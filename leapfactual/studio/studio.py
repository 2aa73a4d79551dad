"""What a studio explains, and the questions that it answers.

A question is about one picture and one class. Its answer comes in events, which are values that
JSON can hold: while the walk goes on, the picture of each step, then the card that the page of
``leapfactual explain`` shows too. Between two events whoever computes may turn to another
question: an answer that nobody waits for any more is simply not continued.
"""

import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from collections.abc import Generator as Coroutine
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from .. import masks
from .._engine.copies import Copies, Networks
from ..alternatives import diverse
from ..bases import Gaussian
from ..bundle import Bundle
from ..errors import InputError, MissingData
from ..explainer import LeapFactual
from ..explanation import Explanation
from ..flow import Flow
from ..imaging import to_pil
from ..jobs.job import typicality
from ..leaps import Plan, describe
from ..report.cards import MAX_SIDE, cards, data_uri
from ..report.colors import PHOTO_SIDE
from ..solvers import Solver
from ..types import Classifier, Generator
from .gallery import Gallery, Picture

Event = dict[str, Any]
Events = Coroutine[Event | None, None, None]
# A walk of a digit is over before anybody could see a step of it.
SECONDS_PER_STEP = 0.1
# Larger pictures are not decoded again leap by leap: that would take longer than the walk.
MAX_WALKED_SIDE = 256
OTHER_WAYS = 4
# Answers that can still be kept, in bytes.
MAX_ANSWERS = 256 * 2**20
# Where a picture may change is said in cells, at most so many a side, one bit each.
MASK_CELLS = 32
# The edge of a mask is soft over a share of the picture's side, so that nothing is cut.
MASK_EDGE = 1 / 64


@dataclass(frozen=True, eq=False)
class Position:
    """A position of the dial between nearest and reliable.

    Arguments:
        reliability: From 0 to 1.
        plan: The plan.
        solver: Its solver. Defaults to the flow's own.
    """

    reliability: float
    plan: Plan
    solver: Solver | None = None


class Studio:
    """Creates what a studio explains.

    Arguments:
        generator: The generator.
        classifier: The classifier.
        flow: The flow.
        positions: The positions of the dial, by rising reliability.
        classes: The names of the classes.
        gallery: The pictures.
        oracle: A second classifier, whose opinion is shown beside.
        keep_pixels: Whether to keep the input's own pixels where nothing has changed.
        name: What the classifier is called.
    """

    def __init__(
        self,
        generator: Generator,
        classifier: Classifier,
        flow: Flow,
        positions: Sequence[Position],
        classes: Sequence[str],
        gallery: Gallery,
        *,
        oracle: Classifier | None = None,
        keep_pixels: bool = False,
        name: str = "a classifier",
    ) -> None:
        self.generator, self.classifier, self.flow = generator, classifier, flow
        self.positions, self.classes, self.gallery = tuple(positions), tuple(classes), gallery
        self.oracle, self.keep_pixels, self.name = oracle, keep_pixels, name
        self.answers: OrderedDict[str, tuple[Explanation, str]] = OrderedDict()
        self.labels_only, self._held = False, 0
        self._networks = Networks(generator, classifier)

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        classifier: Classifier,
        gallery: Gallery,
        *,
        oracle: Classifier | None = None,
        force: bool = False,
    ) -> Self:
        """Returns the studio of a bundle.

        Arguments:
            bundle: The bundle.
            classifier: The classifier that it explains.
            gallery: The pictures.
            oracle: A second classifier.
            force: Whether to explain a classifier that the bundle does not recognize.
        """
        bundle.explainer(classifier, force=force)  # refuses another classifier
        front = [Position(r.reliability, r.plan, r.solver) for r in bundle.front]
        return cls(
            bundle.generator,
            classifier,
            bundle.flow,
            front or [Position(0.0, bundle.plan)],
            bundle.classes,
            gallery,
            oracle=oracle,
            keep_pixels=bundle.keep_pixels,
            name=bundle.classifier_name,
        )

    @torch.no_grad()
    def open(self, on_progress: Callable[[float], object] = lambda _: None) -> None:
        """Gets ready for questions: looks at the pictures, and fuses the networks.

        Arguments:
            on_progress: Called with the share that is done.
        """
        self.gallery.look(self.classifier, on_progress)
        picture = self.gallery["0"]
        p = self.classifier(picture.x)
        self.labels_only = bool(((p == 0) | (p == 1)).all())
        z = self.generator.encode(picture.x) if picture.z is None else picture.z
        copies = Copies(self._networks)
        copies.refresh(z)
        self._networks = copies.networks

    def describe(self) -> Event:
        """Returns what the page has to know, as values that JSON can hold."""
        _, height, width = self.gallery.shape
        return {
            "classes": list(self.classes),
            "name": self.name,
            "positions": [
                {"reliability": position.reliability, "plan": describe(position.plan)}
                for position in self.positions
            ],
            "oracle": self.oracle is not None,
            "labels": self.labels_only,
            "pictures": [
                {"key": str(n), "name": name, "label": label}
                for n, (name, label) in enumerate(
                    zip(self.gallery.names, self.gallery.labels, strict=True)
                )
            ],
            "left out": len(self.gallery.images) - len(self.gallery),
            "size": [height, width],
            "cells": [min(MASK_CELLS, height), min(MASK_CELLS, width)],
            "grey": self.gallery.shape[0] == 1,
            "others": self._has_other_ways,
            "bring": self.gallery.z is None,
        }

    @torch.no_grad()
    def look(self, key: str) -> Events:
        """Yields what the classifier says of a picture, and of its reconstruction.

        Arguments:
            key: The picture.
        """
        picture = self.gallery[key]
        z = self.generator.encode(picture.x) if picture.z is None else picture.z
        image = self.generator.decode(z)
        yield {
            "event": "seen",
            "key": picture.key,
            "name": picture.name,
            "p": _numbers(self.classifier(picture.x)),
            "oracle": None if self.oracle is None else _numbers(self.oracle(picture.x)),
            "recognized": int(self.classifier(image).argmax(1)),
            "picture": _shown(picture.x[0]),
        }

    @torch.no_grad()
    def walk(self, key: str, target: int, number: int, cells: str = "") -> Events:
        """Yields the steps of a walk and what came of it; None where there is nothing to show.

        Arguments:
            key: The picture.
            target: The class to reach.
            number: The number of the dial's position.
            cells: Where the picture may change, as :meth:`mask` reads it.
        """
        picture = self.gallery[key]
        explainer = self._explainer(number, cells)
        dialogue = explainer.dialogue(picture.x, self._class(target), picture.z)
        image, told = next(dialogue), time.perf_counter()
        step, found = 0, None
        while found is None:
            p = self._networks.classifier(image)
            event = None
            if time.perf_counter() - told >= SECONDS_PER_STEP:
                told = time.perf_counter()
                event = {
                    "event": "step",
                    "step": step,
                    "p": _numbers(p),
                    "picture": _shown(image[0]),
                }
            yield event
            try:
                image, step = dialogue.send(p), step + 1
            except StopIteration as end:
                found = end.value
        yield {"event": "found", "position": number, **self._card(picture, found)}

    @torch.no_grad()
    def other_ways(self, key: str, target: int, number: int, seed: int, cells: str = "") -> Events:
        """Yields several different counterfactuals of a picture, as one event.

        Arguments:
            key: The picture.
            target: The class to reach.
            number: The number of the dial's position.
            seed: What they differ by from those of another seed.
            cells: Where the picture may change.
        """
        yield None
        picture = self.gallery[key]
        explainer = self._explainer(number, cells, keep_path=False)
        explainer.keep_pixels = False
        found = diverse(
            explainer,
            picture.x,
            self._class(target),
            OTHER_WAYS,
            seed=seed,
            z=picture.z,
        )
        valid = found.explanation[found.explanation.valid.nonzero()[:, 0]]
        yield {
            "event": "others",
            "position": number,
            "found": [self._card(picture, valid[n]) for n in range(len(valid))],
        }

    def answer(self, key: str) -> tuple[Explanation, str]:
        """Returns an answer that was given, and the name of its picture.

        Arguments:
            key: What it was called.
        """
        if key not in self.answers:
            raise MissingData("this answer is no longer here. Ask again, then keep it.")
        return self.answers[key]

    def mask(self, cells: str) -> Tensor | None:
        """Reads where a picture may change: a hexadecimal digit for every four cells.

        Nothing, or no cell at all, is everywhere.

        Arguments:
            cells: The digits, row by row, the highest bit first.
        """
        if not cells:
            return None
        _, height, width = self.gallery.shape
        rows, columns = min(MASK_CELLS, height), min(MASK_CELLS, width)
        count = rows * columns
        if len(cells) != math.ceil(count / 4) or set(cells) - set("0123456789abcdef"):
            raise InputError(f"a mask of this studio has {rows} × {columns} cells.")
        bits = "".join(f"{int(digit, 16):04b}" for digit in cells)[:count]
        if "1" not in bits:
            return None
        grid = torch.tensor([float(bit) for bit in bits]).reshape(1, 1, rows, columns)
        mask = torch.nn.functional.interpolate(grid, (height, width))[0]
        edge = round(MASK_EDGE * min(height, width))
        return masks.soften(masks.grow(mask, edge), edge)

    @property
    def _has_other_ways(self) -> bool:
        return isinstance(self.flow.base, Gaussian)

    def _class(self, target: int) -> int:
        if not 0 <= target < len(self.classes):
            raise InputError(f"there is no class {target}: there are {len(self.classes)}.")
        return target

    def _explainer(self, number: int, cells: str, *, keep_path: bool = True) -> LeapFactual:
        if not 0 <= number < len(self.positions):
            raise InputError(f"the dial has {len(self.positions)} positions, got {number}.")
        position = self.positions[number]
        return LeapFactual(
            self._networks.generator,
            self._networks.classifier,
            self.flow if position.solver is None else self.flow.with_solver(position.solver),
            position.plan,
            keep_path=keep_path,
            mask=self.mask(cells),
            keep_pixels=self.keep_pixels,
            classes=self.classes,
        )

    def _card(self, picture: Picture, e: Explanation) -> Event:
        """Returns the card of an explanation of one picture, and what is shown beside it."""
        typical = None
        if not bool(self.flow.quantiles.isnan().all()):
            x, y = e.counterfactual, e.target
            # What has no encoder of its own is not inverted for a number.
            ranks = (
                typicality(self.generator, self.flow, x, y)
                if picture.z is None
                else self.flow.typicality(e.z_counterfactual, y)
            )
            typical = ranks.nan_to_num(0.0)
        opinion = None if self.oracle is None else self.oracle(e.counterfactual)
        small = max(self.gallery.shape[1:]) <= MAX_WALKED_SIDE
        card = next(
            cards(
                e,
                names=[picture.name],
                typicality=typical,
                oracle=None if opinion is None else opinion.argmax(1),
                generator=self._networks.generator if small and e.path is not None else None,
            )
        )
        nearest = self.gallery.nearest(e.counterfactual, int(e.target), picture.key)
        return {
            "answer": self._remember(e, picture.name),
            "card": card,
            "p": _numbers(e.probabilities),
            "oracle": None if opinion is None else _numbers(opinion),
            "nearest": nearest and {"key": nearest.key, "name": nearest.name},
        }

    def _remember(self, e: Explanation, name: str) -> str:
        """Holds an answer in memory, as long as there is room, so that it can be kept."""
        key = secrets.token_hex(8)
        self.answers[key] = e, name
        self._held += _bytes(e)
        while self._held > MAX_ANSWERS and len(self.answers) > 1:
            _, (oldest, _) = self.answers.popitem(last=False)
            self._held -= _bytes(oldest)
        return key


def _bytes(e: Explanation) -> int:
    path = 0 if e.path is None else e.path.z.nbytes
    return 3 * e.x.nbytes + 2 * e.z.nbytes + path


def _numbers(p: Tensor) -> list[float]:
    return [round(value, 4) for value in p[0].tolist()]


def _shown(x: Tensor) -> str:
    image = to_pil(x)
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    return data_uri(image, lossless=max(image.size) < PHOTO_SIDE)
