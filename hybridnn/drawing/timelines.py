"""Schedules of pipelines on a simulated clock, as objects that notebooks draw; of a method, or from a file.

A JSON file has the lists of instructions of all stages: as texts such as ``"forward 0"`` and ``"backward 0.1"``, or as
the objects that ``hybridnn schedule METHOD --format json`` writes. Where no list has a message, loads and messages are
placed as for the methods of hybridnn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from hybridnn.drawing import DrawnObject
from hybridnn.drawing.animation import Animation, animate_timeline, html_page
from hybridnn.drawing.drawing import Arrow, Drawing, draw_timeline
from hybridnn.errors import DataError, SettingError
from hybridnn.pipeline.checks.lint import lint
from hybridnn.pipeline.checks.simulated_schedule import Durations, Timeline, simulate
from hybridnn.pipeline.schedules import instructions, weight_policies
from hybridnn.pipeline.schedules.compiled_schedule import place_messages
from hybridnn.pipeline.schedules.instructions import (
    COMPUTATIONS,
    Backward,
    Forward,
    InputGradient,
    Instruction,
    ReduceGradients,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.methods import find_method, make_schedule
from hybridnn.pipeline.schedules.placements import PLACEMENTS
from hybridnn.pipeline.schedules.schedule import Schedule, with_loads
from hybridnn.pipeline.schedules.weight_policies import WeightPolicy
from hybridnn.utils.checks import nearest, require_number, require_type, require_whole, with_advice
from hybridnn.utils.text import counted, shown_path, user_path

KINDS = {
    kind.name: kind
    for kind in vars(instructions).values()
    if isinstance(kind, type) and issubclass(kind, Instruction) and kind.name
}
POLICIES = {policy.name: policy for policy in vars(weight_policies).values() if isinstance(policy, WeightPolicy)}

TEXT = re.compile(
    r"(?P<instruction>[a-z ]+?)(?: (?P<minibatch>\d+)(?:\.(?P<microbatch>\d+))?(?: of chunk (?P<chunk>\d+))?)?"
)
MOST_INSTRUCTIONS = 1_000_000
USES_GRADIENTS = (Backward, InputGradient, WeightGradient, ReduceGradients, Update)
COUNTS = ("minibatches", "microbatches", "chunks")


@dataclass(frozen=True, repr=False)
class ScheduleTimeline(DrawnObject):
    """A schedule that has passed the linter, with the times of all instructions.

    Attributes
    ----------
    timeline : Timeline
        Instructions of every stage with their times, weight versions and memory.
    durations : Durations
    """

    timeline: Timeline
    durations: Durations

    @property
    def makespan(self) -> float:
        """Time from the first to the last instruction."""
        return self.timeline.makespan

    @property
    def bubble_fraction(self) -> float:
        """Idle share of the time of all stages."""
        return self.timeline.bubble_fraction

    @property
    def drawing(self) -> Drawing:
        """A row for each stage, a box for each computation."""
        return draw_timeline(self.timeline)

    def drawn(self, *, messages: bool = False, versions: bool = False) -> Drawing:
        """The drawing with more in it.

        Parameters
        ----------
        messages : bool
            An arrow for each message, from where it is sent to where it is used.
        versions : bool
            The weight versions that the passes read, also where none is stale.
        """
        sent = self.animation.messages if messages else ()
        arrows = tuple(Arrow(one.sender, one.receiver, one.start, one.use) for one in sent)
        return replace(draw_timeline(self.timeline, versions=versions), arrows=arrows)

    @property
    def animation(self) -> Animation:
        """The drawing, and what every stage stores and sends at a time."""
        return animate_timeline(self.timeline)

    def animate(self, path: str | Path) -> None:
        """Write a page that plays the schedule in a browser.

        Raises
        ------
        SettingError
            If it cannot be written, or its name does not end with .html.
        """
        path = user_path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            raise SettingError("page", str(path), "the page is HTML: a name that ends with .html")
        try:
            path.write_text(html_page(self.animation), encoding="utf-8")
        except OSError as error:
            raise SettingError("page", str(path), f"cannot be written: {error.strerror}") from error

    def __repr__(self) -> str:
        made = self.timeline.schedule
        minibatches, microbatches = counted(made.minibatches, "minibatch"), counted(made.microbatches, "microbatch")
        counts = f"{counted(made.stages, 'stage')}, {minibatches} of {microbatches}"
        return f"<{made.method}: {counts}, makespan {self.makespan:.6g}, bubble {self.bubble_fraction:.1%}>"


@with_advice({"ranks": "did you mean stages?"})
def schedule(
    method: str,
    *,
    stages: int = 4,
    minibatches: int | None = None,
    microbatches: int | None = None,
    chunks: int | None = None,
    weight_grad: str = "per-microbatch",
    barriers: bool = False,
    forward: float = 1.0,
    backward: float = 2.0,
    weight: float | None = None,
    message: float = 0.0,
    in_flight: int | None = None,
) -> ScheduleTimeline:
    """The schedule of a pipeline method, on a simulated clock; notebooks show its picture.

    Parameters
    ----------
    method : str
        A pipeline method, such as ``"1f1b"``, or a ``.json`` file with a schedule (see `read_schedule`), which has the
        numbers of stages, minibatches, microbatches and chunks.
    stages : int
    minibatches : int, optional
        By default twice the stages, and 1 for methods with microbatches.
    microbatches : int, optional
        Of a minibatch; by default twice the stages, and 1 for methods without microbatches.
    chunks : int, optional
        Chunks of layers of a stage; by default the fewest that the method has, 1 or 2.
    weight_grad : {"per-microbatch", "merged"}
        One weight gradient per microbatch, or one product over all of them.
    barriers : bool
        Whether ``"ddg"`` and ``"fr"`` have a barrier before each forward and each backward pass.
    forward, backward : float
        Time of a stage's forward pass, and of its whole backward pass.
    weight : float, optional
        Time of the weight gradients within the backward pass; by default half of it.
    message : float
        Time of a message between two stages.
    in_flight : int, optional
        Most microbatches in flight on a stage with ``"searched"``, which is the fastest order found for these times.

    Raises
    ------
    SettingError, DataError, ScheduleError
        If a number is not allowed, the file is no schedule, or the schedule would not work.

    Examples
    --------
    >>> from hybridnn import schedule
    >>> schedule("1f1b", stages=2, microbatches=4)
    <1f1b: 2 stages, 1 minibatch of 4 microbatches, makespan 15, bubble 20.0%>
    """
    backward = require_number("backward", backward, at_least=0)
    durations = Durations(forward, backward, backward / 2 if weight is None else weight, message)
    if isinstance(method, str) and method.endswith(".json"):
        given = {"minibatches": minibatches, "microbatches": microbatches, "chunks": chunks}
        given |= {"barriers": barriers or None}
        for name, value in given.items():
            if value is not None:
                raise SettingError(name, value, f"{method} has the instructions of every stage")
        made = read_schedule(method)
    else:
        info, stages = find_method(method), require_whole("stages", stages, 1)

        def size(name: str, value: int | None, default: int) -> int:
            return require_whole(name, default if value is None else value, 1)

        microbatches = size("microbatches", microbatches, 2 * stages if info.cuts_minibatches else 1)
        order: tuple[str, ...] = ()
        if info.ordered and weight_grad != "merged":
            from hybridnn.cost.order_search import StageTimes, search  # loads NumPy

            times = StageTimes(durations.forward, durations.backward - durations.weight, durations.weight, 0.0, message)
            order = search((times,) * stages, microbatches, in_flight or 0).order
        made = make_schedule(
            info.name,
            stages=stages,
            minibatches=size("minibatches", minibatches, 1 if info.cuts_minibatches else 2 * stages),
            microbatches=microbatches,
            chunks=size("chunks", chunks, info.chunks[0]),
            weight_grad=weight_grad,
            barriers=require_type("barriers", barriers, bool),
            order=order,
        )
    lint(made)
    return ScheduleTimeline(simulate(made, durations), durations)


# -- schedules from files ----------------------------------------------------------------------------------------------


def read_schedule(path: str | Path) -> Schedule:
    """Read a schedule.

    Parameters
    ----------
    path : str or Path
        A JSON object with ``stages``, a list of lists of instructions; ``weight_policy``, a name such as ``"exact"``,
        the default, or ``"stashed"``; and optionally ``placement``, ``"loop"`` or ``"waves"``, ``method``, a name to
        show, and the numbers of ``minibatches``, ``microbatches`` and ``chunks``, by default those that the
        instructions have.

    Raises
    ------
    DataError
        If the file cannot be read or is no schedule; the message names the stage and the instruction.
    """
    from hybridnn.utils.files import read_json  # loads NumPy, which is not needed for named methods

    path = user_path(path)
    content = read_json(path)
    try:
        return _schedule(content, path.stem)
    except DataError as error:
        raise DataError(f"{shown_path(path)}: {error}") from error


def _schedule(content: Any, name: str) -> Schedule:
    if not isinstance(content, dict) or not isinstance(content.get("stages"), list) or not content["stages"]:
        raise DataError('not a schedule: it must be an object with "stages", a list of lists of instructions')
    policy = content.get("weight_policy", "exact")
    if not isinstance(policy, str) or policy not in POLICIES:
        raise DataError(f"weight_policy = {policy!r}: must be one of {', '.join(POLICIES)}")
    placement = content.get("placement", "loop")
    if not isinstance(placement, str) or placement not in PLACEMENTS:
        raise DataError(f"placement = {placement!r}: must be one of {', '.join(PLACEMENTS)}")
    lists = [_stage(stage, number) for number, stage in enumerate(content["stages"])]
    everything = [instruction for order in lists for instruction in order]
    if not everything:
        raise DataError("there is no instruction")
    parts = zip(*(instruction.part for instruction in everything), strict=True)
    minibatches, microbatches, chunks = (
        _count(content, key, max(numbers) + 1) for key, numbers in zip(COUNTS, parts, strict=True)
    )
    made = Schedule(
        method=label if isinstance(label := content.get("method"), str) else name,
        stages=len(lists),
        chunks=chunks,
        minibatches=minibatches,
        microbatches=microbatches,
        policy=POLICIES[policy],
        orders=tuple(map(tuple, lists)),
        activation_bound=(minibatches * microbatches * chunks,) * len(lists),  # none: a file states no bound
        placement=PLACEMENTS[placement],
    )
    if any(not isinstance(item, COMPUTATIONS) for item in everything):
        return made
    _require_passes(made)
    return place_messages(with_loads(made))


def _require_passes(schedule: Schedule) -> None:
    """Raise DataError unless every stage has the passes of all parts, between which messages are placed."""
    training = any(isinstance(item, USES_GRADIENTS) for order in schedule.orders for item in order)
    counts = range(schedule.minibatches), range(schedule.microbatches), range(schedule.chunks)
    for stage, order in enumerate(schedule.orders):
        forwards = {item.part for item in order if isinstance(item, Forward)}
        backwards = {item.part for item in order if isinstance(item, Backward | InputGradient)}
        for part in product(*counts):
            for kind, found in ((Forward, forwards), (Backward, backwards if training else None)):
                if found is not None and part not in found:
                    raise DataError(f"stage {stage}: {kind(*part)} is missing")


def _count(content: dict[str, Any], key: str, found: int) -> int:
    value = content.get(key, max(found, 1))
    if type(value) is not int or value < 1:
        raise DataError(f"{key} = {value!r}: must be a whole number from 1")
    return value


def _stage(stage: Any, number: int) -> list[Instruction]:
    items = stage.get("instructions") if isinstance(stage, dict) else stage
    if not isinstance(items, list) or len(items) > MOST_INSTRUCTIONS:
        raise DataError(f"stage {number}: not a list of at most {MOST_INSTRUCTIONS:,} instructions")
    found = []
    for position, item in enumerate(items):
        try:
            found.append(_instruction(item))
        except DataError as error:
            raise DataError(f"stage {number}, instruction {position}: {error}") from None
    return found


def _instruction(item: Any) -> Instruction:
    if isinstance(item, str):
        match = TEXT.fullmatch(item.strip())
        if match is None:
            raise DataError(f"{item[:60]!r} is not an instruction such as 'forward 0' or 'backward 0.1'")
        found = {key: value for key, value in match.groupdict().items() if value is not None}
        item = {key: value if key == "instruction" else int(value) for key, value in found.items()}
    if not isinstance(item, dict):
        raise DataError("neither a text nor an object")
    name = item.get("instruction")
    if not isinstance(name, str) or name not in KINDS:
        hint = nearest(str(name), KINDS) or f"known are {', '.join(KINDS)}"
        raise DataError(f"no instruction {str(name)[:40]!r}; {hint}")
    numbers = []
    for key, least in (("minibatch", 0), ("microbatch", instructions.ALL_MICROBATCHES), ("chunk", 0)):
        value = item.get(key, 0)
        if type(value) is not int or not least <= value < MOST_INSTRUCTIONS:
            raise DataError(f"{key} = {value!r}: must be a whole number from 0")
        numbers.append(value)
    return KINDS[name](*numbers)
