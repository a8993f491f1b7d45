"""Why a layout wins, and what will limit the next ones: sentences about predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.planning.layouts import ANY, Constraints, layout_words
from hybridnn.cost.planning.plan import best_exact
from hybridnn.cost.prediction.predict import Prediction, StepSeconds
from hybridnn.cost.prediction.workload import Workload
from hybridnn.errors import SettingError
from hybridnn.utils.text import format_bytes, format_seconds, plural

MOST_DOUBLINGS = 3

MOST_OF_IT = 0.75
"""Share of all communication from which on its largest part is what a sentence names."""

LIMITS = {"communication": "communication-bound", "bubble": "bubble-bound", "overhead": "overhead-bound"}

OPERATIONS = {"allreduce": "all-reduce", "allgather": "all-gather", "reduce_scatter": "reduce-scatter"}
"""How sentences write what code writes in one word."""


def limit_of(prediction: Prediction) -> str | None:
    """``communication``, ``bubble`` or ``overhead`` where that takes more of a step than computing does."""
    parts = prediction.parts
    name = max((item.name for item in fields(StepSeconds)), key=lambda item: getattr(parts, item))
    return None if name == "computing" else name


def reason_sentence(best: Prediction, other: Prediction | None) -> str:
    """Why `best` is faster than `other`, the fastest on another process grid."""
    name = layout_words(best.layout)
    if other is None:
        return f"{name} is the only process grid that can be used and fits the memory."
    saved = {
        item.name: getattr(other.parts, item.name) - getattr(best.parts, item.name) for item in fields(StepSeconds)
    }
    gain = other.seconds_per_step - best.seconds_per_step
    most, least = max(saved, key=lambda key: saved[key]), min(saved, key=lambda key: saved[key])
    if gain <= 0 or saved[most] <= 0:
        return f"{name} and {layout_words(other.layout)} are equally fast; the first needs no more memory."
    text = f"{name} wins over {layout_words(other.layout)} by {_time(gain)} a step: {_time(saved[most])} less {most}"
    # What it pays is worth a word where it is more than a tenth of what it gains.
    if -saved[least] > saved[most] / 10:
        text += f", {_time(-saved[least])} more {least}"
    return text + "."


def bottleneck_sentence(best: Mapping[int, Prediction]) -> str:
    """From how many ranks on something other than computing takes most of a step, and what.

    Parameters
    ----------
    best : mapping of int to Prediction
        The best layout for numbers of ranks.
    """
    ranks = sorted(best)
    limits = [limit_of(best[count]) for count in ranks]
    bound = next((place for place, limit in enumerate(limits) if limit is not None), None)
    if bound is None:
        last = best[ranks[-1]]
        share = f"computing takes {_time(last.parts.computing)} of {_time(last.seconds_per_step)}"
        return f"Compute-bound up to {_ranks(ranks[-1])}: {share}."
    first, limit = best[ranks[bound]], str(limits[bound])
    where = f"above {_ranks(ranks[bound - 1])}" if bound else f"from {_ranks(ranks[0])} on"
    at = f" at {ranks[bound]}" if bound else ""
    return f"{LIMITS[limit].capitalize()} {where}: {_detail(first, limit)} of {_time(first.seconds_per_step)}{at}."


def best_by_ranks(
    workload: Workload, machine: Machine, best: Prediction, constraints: Constraints = ANY
) -> dict[int, Prediction]:
    """The best exact layouts around the number of ranks of `best`: where its limit begins, or will begin.

    Half as many ranks, and half of these, while they are not bound by computing; else twice as many, and twice these,
    until something else takes most of the step, the model cannot use them or the machine does not have them, three
    times at most.
    """
    found = {best.layout.ranks: best}
    for ranks in _looked_at(best):
        if ranks > max(machine.ranks, best.layout.ranks):  # they would take turns, which is no limit of the layout
            break
        try:
            found[ranks] = best_exact(workload, machine, ranks, constraints)
        except SettingError:  # more ranks than can be used, or too few for the memory
            break
        if (limit_of(found[ranks]) is None) == (limit_of(best) is not None):
            break
    return found


def _looked_at(best: Prediction) -> Iterator[int]:
    ranks = best.layout.ranks
    if limit_of(best) is None:
        yield from (ranks << doubling for doubling in range(1, MOST_DOUBLINGS + 1))
    else:
        yield from (ranks >> halving for halving in range(1, ranks.bit_length()))


def _detail(prediction: Prediction, limit: str) -> str:
    seconds = getattr(prediction.parts, limit)
    if limit == "bubble":
        return f"waiting for other stages takes {_time(seconds)}"
    if limit == "overhead":
        return f"loading, copying and Python take {_time(seconds)}"
    name, nbytes, alone = prediction.largest_collective
    operation, _, axis = name.partition(" ")
    words = " ".join(filter(None, (OPERATIONS.get(operation, operation), axis, f"of {_bytes(nbytes)}")))
    if alone >= MOST_OF_IT * seconds:
        return f"{words} takes {_time(min(alone, seconds))}"
    return f"communication, of which {words} is the largest part, takes {_time(seconds)}"


def _ranks(count: int) -> str:
    return f"{count:,} {plural('rank', count)}"


def _time(seconds: float) -> str:
    return format_seconds(seconds, "µs")


def _bytes(count: int) -> str:
    return f"{count} bytes" if count < 1000 else format_bytes(count)
