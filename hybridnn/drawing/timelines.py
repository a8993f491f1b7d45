"""Schedules of pipelines on a simulated clock, as objects that notebooks draw."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hybridnn.drawing import DrawnObject
from hybridnn.drawing.animation import Animation, animate_timeline, write_html
from hybridnn.drawing.drawing import Arrow, Drawing, draw_timeline
from hybridnn.errors import SettingError
from hybridnn.pipeline.checks.lint import lint
from hybridnn.pipeline.checks.simulated_schedule import Durations, Timeline, simulate
from hybridnn.pipeline.schedules.methods import find_method, make_schedule
from hybridnn.utils.checks import require_number, require_type, require_whole, with_advice
from hybridnn.utils.text import counted


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
        write_html(self.animation, path)

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
        Chunks of layers of a stage; by default 2 for ``"interleaved"``, else 1.
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
    if isinstance(method, str) and method.endswith(".json"):
        given = {"minibatches": minibatches, "microbatches": microbatches, "chunks": chunks}
        given |= {"barriers": barriers or None}
        for name, value in given.items():
            if value is not None:
                raise SettingError(name, value, f"{method} has the instructions of every stage")
        from hybridnn.drawing.schedule_file import read_schedule  # not needed for named methods; loads NumPy

        made = read_schedule(method)
    else:
        info, stages = find_method(method), require_whole("stages", stages, 1)

        def size(name: str, value: int | None, default: int) -> int:
            return require_whole(name, default if value is None else value, 1)

        made = make_schedule(
            info.name,
            stages=stages,
            minibatches=size("minibatches", minibatches, 1 if info.cuts_minibatches else 2 * stages),
            microbatches=size("microbatches", microbatches, 2 * stages if info.cuts_minibatches else 1),
            chunks=size("chunks", chunks, 2 if info.chunked else 1),
            weight_grad=weight_grad,
            barriers=require_type("barriers", barriers, bool),
        )
    lint(made)
    backward = require_number("backward", backward, at_least=0)
    durations = Durations(forward, backward, backward / 2 if weight is None else weight, message)
    return ScheduleTimeline(simulate(made, durations), durations)
