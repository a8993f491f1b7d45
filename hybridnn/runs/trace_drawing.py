"""Drawing of a measured epoch: the boxes of a planned schedule, and those of messages, waits and collectives."""

from __future__ import annotations

from math import inf

from hybridnn.comm.recorder import Event
from hybridnn.pipeline.drawing.drawing import KINDS, Box, Drawing, Numbering, Row, is_computation
from hybridnn.pipeline.schedules.instructions import Instruction
from hybridnn.runs.trace_file import Epoch, RankTrace
from hybridnn.utils.text import counted

MILLISECONDS = 1e3
COMMUNICATION_KINDS = {
    "send": "send",
    "send.wait": "wait",
    "receive.wait": "wait",
    "barrier": "wait",
    "allreduce": "reduce",
    "allreduce.wait": "reduce",
    "alltoall": "reduce",
    "alltoall.wait": "reduce",
}
"""Kinds of box by name of the event; other events are "other"."""

MINIBATCHES_PER_STAGE = 4  # minibatches, or microbatches, per stage that are drawn by default: warm-up and steady state


def draw_epoch(epoch: Epoch, start: float, stop: float, what: str) -> Drawing:
    """Draw a span of an epoch, described as `what` in the title, with a row per rank.

    `start` and `stop` are in seconds of the trace's clock; the time axis counts milliseconds from `start`.
    """
    numbering = Numbering(True, epoch.microbatches > 1, epoch.chunks > 1)
    rows = tuple(
        Row(_row_label(epoch, rank), tuple(_box(numbering, event, start, stop) for event in _seen(trace, start, stop)))
        for rank, trace in enumerate(epoch.ranks)
    )
    stages = len(epoch.stages)
    parts = [epoch.method, counted(stages, "stage"), f"measured in epoch {epoch.number}", what]
    title = ", ".join(part for part in parts if part)
    return Drawing(title, rows, (stop - start) * MILLISECONDS, numbering.legend, "ms")


def span_of_minibatches(epoch: Epoch, minibatches: range) -> tuple[float, float]:
    """Start of the first computation of some minibatches, and end of the last one."""
    computed = [event for event, about in epoch.computed if about.minibatch in minibatches]
    return min(event.start for event in computed), max(event.stop for event in computed)


def readable_minibatches(epoch: Epoch) -> range:
    """The first minibatches of an epoch, as many as make a readable drawing."""
    wanted = MINIBATCHES_PER_STAGE * len(epoch.stages) // epoch.microbatches
    return epoch.minibatches[: max(wanted, 1)]


def _seen(trace: RankTrace, start: float, stop: float) -> list[Event]:
    """Events of a span that have a box of their own.

    Messages of a model group belong to their forward or backward pass, but an update shows its wait for the loss.
    """
    seen: list[Event] = []
    passes_until = -inf
    for event in trace.events:
        if event.kind == "compute" and is_computation(event.name):
            passes_until = event.stop
        elif event.start < passes_until or event.name == "receive" or event.name.endswith(".test"):
            continue
        if event.start < stop and event.stop > start:
            seen.append(event)
    return seen


def _box(numbering: Numbering, event: Event, start: float, stop: float) -> Box:
    computes = event.kind == "compute"
    kind = event.name if computes else COMMUNICATION_KINDS.get(event.name, "")
    kind = kind if kind in KINDS else "other"
    instruction = event.about if isinstance(event.about, Instruction) else None
    label = "" if instruction is None else numbering.label(instruction)
    parts = [event.name]
    if instruction is not None:
        parts = [f"{event.name} of {label}" if computes else f"{event.name} ({instruction.name} {label})"]
    if event.axis not in ("", "world"):
        parts.append(f"{event.axis} group")
    duration = (event.stop - event.start) * MILLISECONDS
    parts.append(f"from {(event.start - start) * MILLISECONDS:.4g} ms for {duration:.4g} ms")
    return Box(
        (max(event.start, start) - start) * MILLISECONDS,
        (min(event.stop, stop) - start) * MILLISECONDS,
        label if computes and kind != "other" else "",
        kind,
        -1 if instruction is None else instruction.minibatch,
        ", ".join(parts),
    )


def _row_label(epoch: Epoch, rank: int) -> str:
    stage, batch_rank, model_rank = epoch.ranks[rank].position
    batch, model = epoch.stages[stage]
    return " ".join(
        [f"stage {stage}"]
        + ([f"batch {batch_rank}"] if batch > 1 else [])
        + ([f"model {model_rank}"] if model > 1 else [])
    )
