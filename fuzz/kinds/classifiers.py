"""Classifiers that answer with anything, and names of classifiers."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import leapfactual as lf
from leapfactual.classifiers import from_labels, from_logits, from_probabilities, open_classifier

from ..mutations import TEXTS, number, value
from .kind import Kind, Read, check_explanation, is_bright, small_bundle

TYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8),
    *(torch.bool, torch.complex64, torch.float8_e4m3fn, torch.int8, torch.uint16, torch.uint64),
)


class Text(str):
    """Text of another type than str."""


class Stranger:
    """Object that is none of what a classifier may answer with."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, n: int) -> object:
        return self

    def __array__(self, *_: object, **__: object) -> np.ndarray[Any, Any]:
        raise ArithmeticError("no array")


def answer(rng: random.Random, rows: int) -> Any:
    """Returns an answer about some images, of any type and shape."""
    kind = rng.randrange(14)
    shape = rng.choice(
        ((rows,), (rows, 2), (rows, 2), (rows, 3), (rows, 1), (2,), (), (rows + 1, 2))
    )
    shape = rng.choice((shape, shape, shape, (0, 2), (rows, 0), (rows, 2, 1), (1, rows, 2)))
    if kind < 5:
        numbers = torch.rand(shape, generator=torch.Generator().manual_seed(rng.randrange(99)))
        if rng.random() < 0.4 and numbers.ndim == 2 and numbers.numel():
            numbers = numbers.softmax(1)
        elif rng.random() < 0.3:
            numbers = (numbers * 3).floor()
        if rng.random() < 0.2 and numbers.numel():
            numbers.view(-1)[rng.randrange(numbers.numel())] = (
                np.float64(number(rng)).astype("f4").item()
            )
        found: Any = numbers.to(rng.choice((torch.float32, torch.float32, *TYPES)))
        if rng.random() < 0.1:
            found = found.to_sparse() if found.dtype == torch.float32 else found.to("meta")
        if kind == 4 and found.dtype == torch.float32 and found.layout == torch.strided:
            return found.tolist() if found.device.type == "cpu" else found
        return found.requires_grad_() if kind == 3 and found.dtype == torch.float32 else found
    if kind < 8:
        made = np.random.default_rng(rng.randrange(99)).random(shape) * 2
        types = ("f4", "f8", "i8", "u1", "?", "O", "U5", "S3", "c8", "M8[s]", ">f4", "f2")
        try:
            found = made.astype(rng.choice(types))
            return np.ma.masked_array(found, found == found) if rng.random() < 0.1 else found
        except (TypeError, ValueError):
            return made
    words = ("dark", "bright", "Dark", b"dark", 1, None, 0.5, *TEXTS[:6])
    if kind == 8:
        return [rng.choice(words[:2]) for _ in range(rows)]
    if kind == 9:
        return [rng.choice(words) for _ in range(rng.choice((rows, rows, 0, 1)))]
    if kind == 10:
        return rng.choice(
            (None, 0, 1.5, "dark", b"x", object(), {}, {"a": 1}, set(), Stranger(), Text("dark"))
        )
    if kind == 11:
        return [[0.5] * rng.randrange(4) for _ in range(rows)]
    if kind == 12:
        return [value(rng) for _ in range(rows)]
    return ({n: number(rng) for n in range(2)} for _ in range(rows))


def fail(rng: random.Random) -> BaseException:
    """Returns an error that a user's code might raise."""
    kinds: tuple[type[BaseException], ...] = (
        ValueError,
        KeyError,
        RuntimeError,
        ZeroDivisionError,
    )
    return rng.choice(kinds)(rng.choice(TEXTS))


class Answers(Kind):
    """Functions of images that answer with anything, and now and then with something else."""

    name, share = "answers", 8

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(2))
        self.bundle = small_bundle()

    def make(self, rng: random.Random, given: Path, outside: Path) -> Read:
        """See :meth:`Kind.make`."""
        seed = rng.random()
        good_for = rng.choice((0, 0, 0, 1, 2, 3))
        asked = []

        def classify(x: Tensor) -> Any:
            asked.append(len(x))
            own = random.Random(f"{seed} {len(asked)}" if good_for == 3 else seed)
            if len(asked) <= good_for:
                return is_bright(x)
            return answer(own, len(x))

        kind = rng.randrange(6)
        if kind < 2:
            return lambda: self._explain(classify)
        wrapped = rng.choice(
            (
                lambda: from_probabilities(classify),
                lambda: from_labels(classify, 2),
                lambda: from_logits(classify),
                lambda: open_classifier(classify, self.images, ["dark", "bright"]),
            )
        )
        return lambda: self._explain(wrapped())

    def _explain(self, classifier: object) -> None:
        explainer = self.bundle.explainer(
            classifier, plan="blend(2, 0.5), tighten(2)", solver=lf.solvers.Euler(2), force=True
        )
        check_explanation(explainer.explain(self.images, 1), 3, 2)


MODULE = """
def label(x):
    return (x.mean((1, 2, 3)) > 0.50003).long()

nothing = None
number = 3
"""


class Spellings(Kind):
    """Names of classifiers. The one in the folder is the user's own; others are not to be run."""

    name, share = "spellings", 4

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(2))

    def make(self, rng: random.Random, given: Path, outside: Path) -> Read:
        """See :meth:`Kind.make`."""
        (given / "mine.py").write_text(MODULE)
        (given / "empty.py").write_text("")
        (given / "bad.onnx").write_bytes(b"\0" * rng.randrange(20))
        (given / "folder.py").mkdir()
        places = (
            "mine.py",
            "./mine.py",
            "mine",
            "empty.py",
            "folder.py",
            "none.py",
            "leapfactual",
        )
        names = ("label", "nothing", "number", "label.__name__", "", "other", "__doc__", "a b")
        spec = f"{rng.choice(places)}:{rng.choice(names)}"
        kind = rng.randrange(8)
        if kind == 7:
            spec = "mine.py:label"
        if kind == 0:
            spec = rng.choice(("bad.onnx", "none.onnx", "folder.onnx", ".onnx", ":.onnx"))
        elif kind == 1:
            # What runs anything is not asked for: a name is trusted by whoever writes it.
            spec = rng.choice([text for text in TEXTS if "os" not in text and "eval" not in text])
        elif kind == 2:
            at = rng.randrange(len(spec) + 1)
            spec = spec[:at] + rng.choice(TEXTS[:20]) + spec[at:]
        classes = rng.choice((["dark", "bright"], ["dark", "bright"], [], ["one"]))
        output = rng.choice((None, None, "labels", "names", "probabilities", "logits", "other"))
        return lambda: self._open(spec, classes, output)

    def _open(self, spec: str, classes: list[str], output: str | None) -> None:
        p = open_classifier(spec, self.images, classes, output_type=output)(self.images)
        assert len(p) == 3
