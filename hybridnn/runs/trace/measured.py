"""A measured epoch as a drawing: the same boxes as those of a planned schedule, with messages and waits besides."""

from __future__ import annotations

from math import inf
from string import ascii_lowercase

from hybridnn.comm.recorder import Event
from hybridnn.pipeline.drawing.drawing import KINDS, Box, Drawing, Row
from hybridnn.pipeline.schedules.instructions import ALL_MICROBATCHES, Instruction, Update
from hybridnn.runs.trace.recorded import Epoch, RankTrace
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
"""Kinds of box by name of the event; all else is "other"."""

MINIBATCHES_PER_STAGE = 4
"""Minibatches per stage, or microbatches, that are drawn unless asked for more: the pipeline fills, and runs."""


def draw_epoch(epoch: Epoch, start: float, stop: float, what: str) -> Drawing:
    """Draw what the ranks did during a span of an epoch.

    Parameters
    ----------
    epoch : Epoch
    start, stop : float
        The span in seconds of the trace's clock; the time axis counts milliseconds from `start`.
    what : str
        The span in words, for the title.

    Returns
    -------
    Drawing
        A row per rank.
    """
    rows = tuple(
        Row(_row_label(epoch, rank), tuple(_box(epoch, event, start, stop) for event in _seen(lane, start, stop)))
        for rank, lane in enumerate(epoch.ranks)
    )
    stages = len(epoch.stages)
    parts = [epoch.method, counted(stages, "stage"), f"measured in epoch {epoch.number}", what]
    title = ", ".join(part for part in parts if part)
    return Drawing(title, rows, (stop - start) * MILLISECONDS, _numbering(epoch), "ms")


def span_of_minibatches(epoch: Epoch, minibatches: range) -> tuple[float, float]:
    """Return when the first computation of some minibatches began, and when the last one ended."""
    computed = [event for event, about in epoch.computed if about.minibatch in minibatches]
    return min(event.start for event in computed), max(event.stop for event in computed)


def readable_minibatches(epoch: Epoch) -> range:
    """Return the first minibatches, as many as make a readable drawing."""
    wanted = MINIBATCHES_PER_STAGE * len(epoch.stages) // epoch.microbatches
    return epoch.minibatches[: max(wanted, 1)]


def _seen(lane: RankTrace, start: float, stop: float) -> list[Event]:
    """Events of a span that have a box of their own.

    Messages of a model group belong to their forward or backward pass; an update shows that it waits for the loss.
    """
    seen: list[Event] = []
    passes_until = -inf
    for event in lane.events:
        if event.kind == "compute" and event.name in KINDS and KINDS[event.name].computes:
            passes_until = event.stop
        elif event.start < passes_until or event.name == "receive" or event.name.endswith(".test"):
            continue
        if event.start < stop and event.stop > start:
            seen.append(event)
    return seen


def _box(epoch: Epoch, event: Event, start: float, stop: float) -> Box:
    computes = event.kind == "compute"
    kind = event.name if computes else COMMUNICATION_KINDS.get(event.name, "")
    kind = kind if kind in KINDS else "other"
    about = event.about if isinstance(event.about, Instruction) else None
    return Box(
        (max(event.start, start) - start) * MILLISECONDS,
        (min(event.stop, stop) - start) * MILLISECONDS,
        _label(epoch, about) if computes and about is not None and kind != "other" else "",
        kind,
        -1 if about is None else about.minibatch,
        _detail(epoch, event, about, event.start - start),
    )


def _label(epoch: Epoch, about: Instruction) -> str:
    """Return the number of the minibatch, and of the microbatch where it is cut, from 1."""
    label = f"{about.minibatch + 1}"
    if epoch.microbatches > 1 and about.microbatch != ALL_MICROBATCHES and not isinstance(about, Update):
        label += f".{about.microbatch + 1}"
    return label + _chunk_letter(epoch, about)


def _chunk_letter(epoch: Epoch, about: Instruction) -> str:
    if epoch.chunks == 1 or isinstance(about, Update):
        return ""
    return ascii_lowercase[about.chunk % 26] * (about.chunk // 26 + 1)


def _detail(epoch: Epoch, event: Event, about: Instruction | None, start: float) -> str:
    parts = [event.name]
    if about is not None and event.kind == "compute":
        parts = [f"{event.name} of {_label(epoch, about)}"]
    elif about is not None:
        parts = [f"{event.name} ({about.name} {_label(epoch, about)})"]
    if event.axis not in ("", "world"):
        parts.append(f"{event.axis} group")
    duration = (event.stop - event.start) * MILLISECONDS
    return ", ".join([*parts, f"from {start * MILLISECONDS:.4g} ms for {duration:.4g} ms"])


def _row_label(epoch: Epoch, rank: int) -> str:
    stage, batch_rank, model_rank = epoch.ranks[rank].position
    batch, model = epoch.stages[stage]
    return " ".join(
        [f"stage {stage}"]
        + ([f"batch {batch_rank}"] if batch > 1 else [])
        + ([f"model {model_rank}"] if model > 1 else [])
    )


def _numbering(epoch: Epoch) -> str:
    text = "number: minibatch" + (".microbatch" if epoch.microbatches > 1 else "") + ", from 1"
    return text if epoch.chunks == 1 else f"{text}; letter after it: chunk of the stage's layers"
