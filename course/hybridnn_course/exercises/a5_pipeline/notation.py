"""Notation of orders as text, one word per instruction: ``F0 F1 B0``, and with several minibatches ``F0.1``.

Orders cross from the process of a submission to the grader as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hybridnn.pipeline.checks.lint import lint
from hybridnn.pipeline.checks.simulated_schedule import Durations, Timeline, simulate
from hybridnn.pipeline.schedules.compiled_schedule import place_messages
from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Backward,
    Forward,
    InputGradient,
    Instruction,
    ReduceGradients,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.schedule import Schedule, ScheduleError, ScheduleSize, with_loads
from hybridnn.pipeline.schedules.weight_policies import EXACT

LETTERS: dict[type[Instruction], str] = {
    Forward: "F",
    Backward: "B",
    InputGradient: "I",
    WeightGradient: "W",
    ReduceGradients: "R",
    Update: "U",
}
KINDS = {letter: kind for kind, letter in LETTERS.items()}
WHOLE_MINIBATCH = (ReduceGradients, Update)
WORD = re.compile(r"([FBIWRU])(?:(\d{1,6})\.)?(\d{1,6}|\*)?")


def word(instruction: Instruction, minibatches: int) -> str:
    """The word of an instruction; TypeError if it is none that an order has."""
    kind = type(instruction)
    if kind not in LETTERS:
        raise TypeError(f"an order has a {kind.__name__}, which is not one of {', '.join(k.__name__ for k in LETTERS)}")
    t, m = int(instruction.minibatch), int(instruction.microbatch)
    shown = "*" if m == ALL_MICROBATCHES else str(m)
    if minibatches > 1 or t:
        shown = str(t) if kind in WHOLE_MINIBATCH and m == 0 else f"{t}.{shown}"
    elif kind in WHOLE_MINIBATCH and m == 0:
        shown = ""
    return LETTERS[kind] + shown + (f"/chunk{instruction.chunk}" if instruction.chunk else "")


def to_text(order: Iterable[Instruction], minibatches: int) -> str:
    """An order as text."""
    return " ".join(word(instruction, minibatches) for instruction in order)


def to_order(text: str) -> list[Instruction]:
    """The instructions of a text; ValueError if one is unknown."""
    return [_instruction(one) for one in text.split()]


def _instruction(one: str) -> Instruction:
    found = WORD.fullmatch(one)
    if found is None:
        raise ValueError(f"{one!r} is not an instruction")
    kind, minibatch, number = KINDS[found[1]], found[2], found[3]
    if kind in WHOLE_MINIBATCH and minibatch is None:
        return kind(int(number or 0))
    if number is None:
        raise ValueError(f"{one!r} has no number")
    return kind(int(minibatch or 0), ALL_MICROBATCHES if number == "*" else int(number))


def to_schedule(size: ScheduleSize, texts: Sequence[str]) -> Schedule:
    """The schedule of the stages' orders, with messages, and checked; no bound of activations is set.

    Raises
    ------
    ValueError
        If the texts are not orders.
    ScheduleError
        If the orders break a rule.
    """
    orders = tuple(tuple(to_order(text)) for text in texts)
    bound = (size.microbatches * size.minibatches,) * size.stages
    counts = size.stages, size.chunks, size.minibatches, size.microbatches
    schedule = place_messages(with_loads(Schedule("an order", *counts, EXACT, orders, bound)))
    lint(schedule)
    return schedule


KEPT = "kept"


def checked_rules(size: ScheduleSize, texts: Sequence[str]) -> str:
    """`KEPT`, or the first rule that the stages' orders break."""
    try:
        to_schedule(size, texts)
    except ScheduleError as error:
        # Positions would count the loads and messages, which the orders do not have.
        return f"broken by stage {error.stage}, {error.instruction or 'end of the list'}: {error.reason}"
    except ValueError as error:
        return f"broken: {error}"
    return KEPT


def timed(size: ScheduleSize, texts: Sequence[str]) -> Timeline:
    """The timeline of orders in which forward passes take 1, complete backward passes 2, and messages no time."""
    return simulate(to_schedule(size, texts), Durations())
