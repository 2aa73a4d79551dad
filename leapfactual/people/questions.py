"""Which frames of a segment to ask people about next, from what is decided so far.

The walk queries its classifier after every leap, but where it goes depends on labels alone. As
long as people give the same label, the way ahead is known, and a whole *segment* of frames is
computed at once; see :func:`leapfactual.people.worker.lookahead`. The first frame whose label
differs ends the segment, and the next one starts from there. The mode says how to find it:

==========  ===================================================================================
``step``    one frame to a segment, as in the paper
``batch``   all frames of a segment in one round: the same result, if labels belong to pictures
``bisect``  the last frame, then halfway between: the first change, if there is but one
==========  ===================================================================================

Nothing here computes or stores anything, so the web server can import it without torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InputError
from .consensus import NO_CONSENSUS

STEP, BATCH, BISECT = "step", "batch", "bisect"
MODES = (STEP, BATCH, BISECT)


@dataclass(frozen=True)
class SegmentState:
    """What a segment has led to so far: more questions, its labels, or a frame without consensus.

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


def next_questions(
    mode: str, frames: int, assumed: int | None, outcomes: Mapping[int, int]
) -> SegmentState:
    """Returns what to ask next in a segment, or what it came to.

    Arguments:
        mode: ``step``, ``batch`` or ``bisect``.
        frames: How many frames the segment has.
        assumed: The label that its frames were computed with; none for the first picture.
        outcomes: What is decided, by frame.

    Example:
        >>> next_questions("batch", 3, 0, {0: 0, 1: 1})
        SegmentState(ask=(), answers=(0, 1), guessed=0, stuck=None)
        >>> next_questions("bisect", 8, 0, {7: 1})
        SegmentState(ask=(3,), answers=(), guessed=0, stuck=None)
    """
    if mode not in MODES:
        raise InputError(f"`mode` must be one of {list(MODES)}, got {mode!r}.")
    if mode == BISECT and assumed is not None:
        return _bisect(frames, assumed, outcomes)
    answers: list[int] = []
    for frame in range(frames):
        outcome = outcomes.get(frame)
        if outcome is None:
            return SegmentState(ask=tuple(k for k in range(frame, frames) if k not in outcomes))
        if outcome == NO_CONSENSUS:
            return SegmentState(answers=tuple(answers), stuck=frame)
        answers.append(outcome)
        if outcome != assumed:
            break
    return SegmentState(answers=tuple(answers))


def _bisect(frames: int, assumed: int, outcomes: Mapping[int, int]) -> SegmentState:
    """Searches the first change between the last frame known to be the same and the next one."""
    same = max((k for k, outcome in outcomes.items() if outcome == assumed), default=-1)
    other = min((k for k, o in outcomes.items() if o != assumed and k > same), default=frames)
    if other < frames and outcomes[other] == NO_CONSENSUS and other == same + 1:
        return SegmentState(answers=(assumed,) * other, stuck=other)
    if other == frames:
        if same < frames - 1:
            return SegmentState(ask=(frames - 1,))
    elif other > same + 1:
        return SegmentState(ask=((same + other) // 2,))
    answers = (assumed,) * (same + 1) + (() if other == frames else (outcomes[other],))
    asked = sum(k < len(answers) for k in outcomes)
    return SegmentState(answers=answers, guessed=len(answers) - asked)
