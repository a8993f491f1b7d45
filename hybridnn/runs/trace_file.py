"""Trace of a run, and its file in the Chrome trace event format, which Perfetto and ``chrome://tracing`` open.

Every rank is a thread; its instructions, communication and phases are nested complete events (``"ph": "X"``). Times are
integer nanoseconds, written as microseconds from the first event.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from math import inf, isfinite
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridnn._version import __version__
from hybridnn.comm.agreement import agree
from hybridnn.comm.recorder import Event
from hybridnn.errors import DataError
from hybridnn.pipeline.execution.point_to_point import StagePosition
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.instructions import Instruction
from hybridnn.runs.run_files import TRACE
from hybridnn.utils.files import FileError, read_json, write_atomically
from hybridnn.utils.text import shown_path

if TYPE_CHECKING:
    from hybridnn.comm.recorder import Recorder
    from hybridnn.parallel.grid import ProcessGrid

TRACE_BYTES = 1 << 30  # most bytes of a trace: about 80 ranks with all events that they keep, and minutes of parsing
MOST_RANKS = 1 << 16  # most ranks of a trace
MOST_MICROSECONDS = 2**53  # upper bound of the times in a trace: centuries

KINDS = ("compute", "communication", "phase")
INSTRUCTIONS: Mapping[str, type[Instruction]] = MappingProxyType(
    {kind.name: kind for kind in Instruction.__subclasses__()}
)

BARRIERS = 15  # barriers at which the clocks of several nodes are compared

TRAINING = "training"  # name of the phase of an epoch's training


@dataclass(frozen=True)
class RankTrace:
    """Events of one rank, of a run or of a phase of it: by start, an event before those nested in it."""

    position: StagePosition
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Epoch:
    """The training of an epoch, without its evaluation, or of all epochs before the pipeline drains."""

    number: int  # of the first epoch, from 1
    layout: Layout
    ranks: tuple[RankTrace, ...]  # instructions and communication, by rank
    # start and end of the training on each rank, seconds; where events were dropped, start of the rest
    spans: tuple[tuple[float, float], ...]
    is_complete: bool = True  # whether no events were dropped

    @property
    def start(self) -> float:
        """Start on the first rank."""
        return min(start for start, _ in self.spans)

    @property
    def stop(self) -> float:
        """End on the last rank."""
        return max(stop for _, stop in self.spans)

    @cached_property
    def computed(self) -> tuple[tuple[Event, Instruction], ...]:
        """Computations of all ranks, with their instructions."""
        return tuple(
            (event, event.about)
            for trace in self.ranks
            for event in trace.events
            if event.kind == "compute" and isinstance(event.about, Instruction)
        )

    @cached_property
    def minibatches(self) -> range:
        """Numbers of the minibatches that were computed."""
        numbers = [about.minibatch for _, about in self.computed]
        return range(min(numbers), max(numbers) + 1) if numbers else range(0)


@dataclass(frozen=True)
class Trace:
    """Events of all ranks of a run."""

    layout: Layout
    ranks: tuple[RankTrace, ...]  # by rank; times in seconds of one clock
    complete_since: float = 0.0  # time before which events of some rank may have been dropped

    @cached_property
    def epochs(self) -> tuple[int, ...]:
        """Numbers of the epochs of which every rank has something."""
        phases = [self._phases(trace) for trace in self.ranks]
        common = set.intersection(*(set(own) for own in phases)) if phases else set()
        return tuple(sorted(n for n in common if all(own[n].stop > self.complete_since for own in phases)))

    def epoch(self, number: int) -> Epoch:
        """Events of the training of one of the `epochs`."""
        phases = [self._phases(trace)[number] for trace in self.ranks]
        spans = tuple((max(phase.start, self.complete_since), phase.stop) for phase in phases)
        ranks = tuple(_within(trace, *span) for trace, span in zip(self.ranks, spans, strict=True))
        is_complete = all(phase.start >= self.complete_since for phase in phases)
        return Epoch(number, self.layout, ranks, spans, is_complete)

    @staticmethod
    def _phases(trace: RankTrace) -> dict[int, Event]:
        """Phases of training by number of the epoch, the first one before a drain."""
        phases = (event for event in trace.events if event.kind == "phase" and event.name == TRAINING)
        return {phase.about: phase for phase in phases if isinstance(phase.about, int)}


def _within(trace: RankTrace, start: float, stop: float) -> RankTrace:
    """The events of a rank in a span, without phases."""
    events = (event for event in trace.events if event.kind != "phase")
    return RankTrace(trace.position, tuple(event for event in events if start <= event.start and event.stop <= stop))


def write_trace(path: Path | None, grid: ProcessGrid, layout: Layout) -> None:
    """Write the events of the grid's recorder on all ranks as one file, atomically; collective over the grid.

    Ranks of one node have one clock. On several nodes the clocks are aligned at barriers, which ranks leave
    microseconds apart on a fast network, up to milliseconds on a slow or busy one. The median of some barriers counts;
    messages between nodes are off by as much. Ranks other than 0 need no `path`.

    Raises `EnvironmentProblem` on every rank: the file cannot be written.
    """
    events, lost = grid.recorder.events, _lost_until(grid.recorder)
    clock = _clock(grid)
    extremes = np.array([clock - min((event.start for event in events), default=inf), lost - clock])
    grid.world.allreduce(extremes, "max")
    if not isfinite(extremes[0]):  # no events
        extremes[0] = 0.0
    origin = clock - extremes[0]
    complete_since = max(0.0, float(extremes[1] + extremes[0]))
    # Of two events with the same start and end, the outer one was recorded later.
    ordered = sorted(reversed(events), key=_outer_first)
    lines = [*_names(grid), *(_line(event, grid.rank, origin) for event in ordered)]
    lines_of_all = _gather(grid, ",\n".join(lines).encode())
    about = {
        "hybridnn": __version__,
        "layout": asdict(layout),
        "ranks": grid.size,
        "nodes": grid.nodes,
        "complete_since_us": _nanoseconds(complete_since) / 1000,
    }
    head = f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [\n'

    def write() -> None:
        if lines_of_all is not None and path is not None:
            write_atomically(path, [head.encode(), *lines_of_all, b"\n]}\n"])

    agree(grid.world, write)


def read_trace(path: Path) -> Trace:
    """Read the trace in a run folder, or the file itself; times are in seconds from the first event, to the nanosecond.

    Raises `DataError` if there is no trace, or the file is damaged, or of another program.
    """
    from pydantic import TypeAdapter  # takes long to load, and no training reads a trace

    is_folder = os.path.isdir(path)
    file = path / TRACE if is_folder else path
    try:
        content = read_json(file, TRACE_BYTES)
    except FileError as error:
        if error.is_missing and is_folder:
            raise DataError(f"{shown_path(path)}: holds no {TRACE}; train with --set output.trace=true") from None
        if error.is_missing:
            raise DataError(f"{shown_path(path)}: there is no such run folder or trace") from None
        raise
    try:
        about = content["otherData"]
        layout: Layout = TypeAdapter(Layout).validate_python(about["layout"])
        complete_since = _read_nanoseconds(about["complete_since_us"]) / 1e9
        return Trace(layout, tuple(_rank_traces(content["traceEvents"], layout)), complete_since)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise FileError(file, f"not a trace of hybridnn: {type(error).__name__} {error}") from error


# -- writing ---------------------------------------------------------------------------------------------------------


def _lost_until(recorder: Recorder) -> float:
    """Time, by this rank's clock, before which events may have been dropped; minus infinity where none were."""
    events = recorder.events
    kept = sum(event.kind == "communication" and not event.name.endswith((".wait", ".test")) for event in events)
    return events[0].stop if events and kept < recorder.messages else -inf


def _clock(grid: ProcessGrid) -> float:
    """A common time of all ranks, by this rank's clock; 0 where they have one clock."""
    if grid.nodes == 1:
        return 0.0
    own = np.zeros(BARRIERS)
    for number in range(BARRIERS):
        grid.world.barrier()
        own[number] = perf_counter()
    first = own.copy()
    grid.world.broadcast(first)
    clock = first[-1] + np.median(own - first, keepdims=True)
    grid.node_group.broadcast(clock)
    return float(clock[0])


def _outer_first(event: Event) -> tuple[float, float]:
    return event.start, -event.stop


def _names(grid: ProcessGrid) -> list[str]:
    """Metadata events: name and order of the rank."""
    rank = grid.rank
    name = f"rank {rank}: stage {grid.pipeline_rank}, batch {grid.batch_rank}, model {grid.model_rank}"
    facts = {"thread_name": {"name": name}, "thread_sort_index": {"sort_index": rank}}
    return [json.dumps({"name": kind, "ph": "M", "pid": 0, "tid": rank, "args": args}) for kind, args in facts.items()]


def _line(event: Event, rank: int, origin: float) -> str:
    """One event as JSON."""
    args: dict[str, Any] = {}
    if isinstance(event.about, Instruction):
        about = event.about
        args = {"instruction": about.name, "minibatch": about.minibatch, "microbatch": about.microbatch}
        args["chunk"] = about.chunk
    elif event.kind == "phase":
        args = {"epoch": event.about}
    if event.axis:
        args |= {"axis": event.axis, "bytes": event.nbytes}
    start, stop = _nanoseconds(event.start - origin), _nanoseconds(event.stop - origin)
    times = {"ts": start / 1000, "dur": (stop - start) / 1000}
    return json.dumps({"name": event.name, "cat": event.kind, "ph": "X", **times, "pid": 0, "tid": rank, "args": args})


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _gather(grid: ProcessGrid, text: bytes) -> list[bytes] | None:
    """Text of all ranks on rank 0, separated by commas; None on other ranks."""
    sizes = np.zeros(grid.size, np.int64)
    sizes[grid.rank] = len(text)
    grid.world.allreduce(sizes)
    gathered = np.empty(int(sizes.sum()), np.uint8) if grid.rank == 0 else None
    grid.world.gather_rows(np.frombuffer(text, np.uint8), gathered, sizes.tolist())
    if gathered is None:
        return None
    parts = [part.tobytes() for part in np.split(gathered, np.cumsum(sizes)[:-1])]
    return [piece for part in parts for piece in (b",\n", part)][1:]


# -- reading ---------------------------------------------------------------------------------------------------------


def _rank_traces(events: Sequence[Any], layout: Layout) -> Iterator[RankTrace]:
    if layout.ranks > MOST_RANKS:
        raise ValueError(f"{layout.ranks} ranks")
    # Model varies fastest, then batch, then pipeline.
    positions = [StagePosition(n, *at) for n, shape in enumerate(layout.stages) for at in product(*map(range, shape))]
    found: list[list[Event]] = [[] for _ in positions]
    for event in events:
        if event["ph"] == "X":
            found[_count(event["tid"], 0)].append(_event(event))
    for position, own in zip(positions, found, strict=True):
        yield RankTrace(position, tuple(sorted(own, key=_outer_first)))


def _event(values: Mapping[str, Any]) -> Event:
    kind, args = values["cat"], values["args"]
    if kind not in KINDS:
        raise ValueError(f"{kind!r} events")
    start = _read_nanoseconds(values["ts"])
    stop = start + _read_nanoseconds(values["dur"])
    about: object = None
    if kind == "phase":
        about = _count(args["epoch"], 0)
    elif "instruction" in args:
        numbers = (_count(args["minibatch"], 0), _count(args["microbatch"], -1), _count(args["chunk"], 0))
        about = INSTRUCTIONS[args["instruction"]](*numbers)
    axis, sent = str(args.get("axis", "")), _count(args.get("bytes", 0), 0)
    return Event(kind, str(values["name"]), axis, start / 1e9, stop / 1e9, sent, about)


def _read_nanoseconds(microseconds: object) -> int:
    if not isinstance(microseconds, int | float) or not 0 <= microseconds < MOST_MICROSECONDS:
        raise ValueError(f"{microseconds!r} where a time belongs")
    return round(microseconds * 1000)


def _count(value: object, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{value!r} where a whole number, {least} or more, belongs")
    return value
