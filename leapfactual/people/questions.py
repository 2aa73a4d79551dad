"""What to ask next: as long as people keep giving the same label, the way ahead is known.

A walk asks after every leap, but where it goes depends on labels alone. So the dialogue of
:class:`~leapfactual.LeapFactual` is led through the answers that there are, and then on, as if the
last one were given again and again: a *segment* of frames, all of which can be asked about at
once. The first frame whose label differs ends the segment, and the next one starts from there.

==========  ===================================================================================
``step``    one frame to a segment, as the paper has it
``batch``   all frames of a segment in one round: the same result, if labels belong to pictures
``bisect``  the last frame, then halfway between: the first change, if there is but one
==========  ===================================================================================
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from ..explainer import LeapFactual
from ..explanation import Explanation
from .consensus import NO_CONSENSUS

STEP, BATCH, BISECT = "step", "batch", "bisect"
MODES = (STEP, BATCH, BISECT)


@dataclass(frozen=True, eq=False)
class Ahead:
    """Is the way ahead: frames to ask about, or the end.

    Arguments:
        frames: The images of the next segment, ``(N, C, H, W)``; none at the end.
        explanation: What came of the walk, at its end.
    """

    frames: Tensor | None
    explanation: Explanation | None


@torch.no_grad()
def ahead(
    explainer: LeapFactual, x: Tensor, target: int, answers: Sequence[int], most: int
) -> Ahead:
    """Leads a walk through answers, and on for a segment of at most so many frames.

    Arguments:
        explainer: How to walk; its classifier is not asked.
        x: The image, ``(1, C, H, W)``.
        target: The class to reach.
        answers: The labels so far, in the order of the questions. Before the first one a segment
            has one frame.
        most: How many frames at most.
    """
    classes = explainer.flow.classes
    dialogue = explainer.dialogue(x, target)
    frames = []
    try:
        frame = next(dialogue)
        for answer in answers:
            frame = dialogue.send(_said(answer, classes, x))
        frames.append(frame)
        while answers and len(frames) < most:
            frames.append(dialogue.send(_said(answers[-1], classes, x)))
    except StopIteration as end:
        if not frames:
            return Ahead(None, end.value)
    return Ahead(torch.cat(frames), None)


def _said(label: int, classes: int, x: Tensor) -> Tensor:
    """Returns a label as the classifier would say it."""
    if not 0 <= label < classes:
        raise InputError(f"a walk goes on with labels of 0 to {classes - 1}, got {label}.")
    return torch.eye(classes, device=x.device)[label : label + 1]


@dataclass(frozen=True)
class Heard:
    """Is what a segment has led to so far.

    Arguments:
        ask: The frames to ask about next; none if the segment is over.
        answers: The labels of its frames, up to the first that differs, when it is over.
        guessed: How many of these nobody was asked about.
        stuck: The frame without consensus that stops the run, if there is one.
    """

    ask: tuple[int, ...] = ()
    answers: tuple[int, ...] = ()
    guessed: int = 0
    stuck: int | None = None


def heard(mode: str, frames: int, assumed: int | None, outcomes: Mapping[int, int]) -> Heard:
    """Returns what to ask next in a segment, or what it came to.

    Arguments:
        mode: ``step``, ``batch`` or ``bisect``.
        frames: How many frames the segment has.
        assumed: The label that its way was computed with; none for the first picture.
        outcomes: What is decided, by frame.

    Example:
        >>> heard("batch", 3, 0, {0: 0, 1: 1})
        Heard(ask=(), answers=(0, 1), guessed=0, stuck=None)
        >>> heard("bisect", 8, 0, {7: 1})
        Heard(ask=(3,), answers=(), guessed=0, stuck=None)
    """
    if mode not in MODES:
        raise InputError(f"`mode` must be one of {list(MODES)}, got {mode!r}.")
    if mode == BISECT and assumed is not None:
        return _bisected(frames, assumed, outcomes)
    answers: list[int] = []
    for frame in range(frames):
        outcome = outcomes.get(frame)
        if outcome is None:
            return Heard(ask=tuple(k for k in range(frame, frames) if k not in outcomes))
        if outcome == NO_CONSENSUS:
            return Heard(answers=tuple(answers), stuck=frame)
        answers.append(outcome)
        if outcome != assumed:
            break
    return Heard(answers=tuple(answers))


def _bisected(frames: int, assumed: int, outcomes: Mapping[int, int]) -> Heard:
    """Looks for the first change between the last frame known to be the same and the next one."""
    same = max((k for k, outcome in outcomes.items() if outcome == assumed), default=-1)
    other = min((k for k, o in outcomes.items() if o != assumed and k > same), default=frames)
    if other < frames and outcomes[other] == NO_CONSENSUS and other == same + 1:
        return Heard(answers=(assumed,) * other, stuck=other)
    if other == frames:
        if same < frames - 1:
            return Heard(ask=(frames - 1,))
    elif other > same + 1:
        return Heard(ask=((same + other) // 2,))
    answers = (assumed,) * (same + 1) + (() if other == frames else (outcomes[other],))
    return Heard(answers=answers, guessed=len(answers) - sum(k < len(answers) for k in outcomes))
