"""Sentences about predictions: why a layout is the fastest, and what limits scaling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hybridnn.cost.machine import Machine
from hybridnn.cost.planning.layouts import ANY, Wanted
from hybridnn.cost.planning.plan import best_exact
from hybridnn.cost.prediction.predict import Prediction
from hybridnn.cost.prediction.workload import Workload
from hybridnn.errors import SettingError
from hybridnn.utils.text import format_bytes, format_seconds, plural

MOST_DOUBLINGS = 3

DOMINANT_SHARE = 0.75  # share of all communication from which on a sentence names its largest item alone

LIMITS = {"communication": "communication-bound", "bubble": "bubble-bound", "overhead": "overhead-bound"}

OPERATIONS = {"allreduce": "all-reduce", "allgather": "all-gather"}


def limit_of(prediction: Prediction) -> str | None:
    """``communication``, ``bubble`` or ``overhead``, whichever takes most of a step; None if computing does."""
    parts = prediction.breakdown.parts
    largest = max(parts, key=lambda name: parts[name])
    return None if largest == "computing" else largest


def reason_sentence(best: Prediction, other: Prediction | None) -> str:
    """Why `best` is faster than `other`, the fastest on another process grid."""
    name = best.layout.describe()
    if other is None:
        return f"{name} is the only process grid that can be used and fits the memory."
    parts, other_parts = best.breakdown.parts, other.breakdown.parts
    saved = {part: other_parts[part] - parts[part] for part in parts}
    gain = other.seconds_per_step - best.seconds_per_step
    most, least = max(saved, key=lambda part: saved[part]), min(saved, key=lambda part: saved[part])
    if gain <= 0 or saved[most] <= 0:
        return f"{name} and {other.layout.describe()} are equally fast; the first needs no more memory."
    text = f"{name} wins over {other.layout.describe()} by {_time(gain)} a step: {_time(saved[most])} less {most}"
    if -saved[least] > saved[most] / 10:
        text += f", {_time(-saved[least])} more {least}"
    return text + "."


def bottleneck_sentence(best: Mapping[int, Prediction]) -> str:
    """From how many ranks on something other than computing takes most of a step, and what.

    Parameters
    ----------
    best : mapping of int to Prediction
        The best layout by number of ranks.
    """
    ranks = sorted(best)
    limits = [limit_of(best[count]) for count in ranks]
    bound = next((index for index, limit in enumerate(limits) if limit is not None), None)
    if bound is None:
        last = best[ranks[-1]]
        share = f"computing takes {_time(last.breakdown.computing)} of {_time(last.seconds_per_step)}"
        return f"Compute-bound up to {_ranks(ranks[-1])}: {share}."
    first, limit = best[ranks[bound]], str(limits[bound])
    where = f"above {_ranks(ranks[bound - 1])}" if bound else f"from {_ranks(ranks[0])} on"
    at = f" at {ranks[bound]}" if bound else ""
    return f"{LIMITS[limit].capitalize()} {where}: {_detail(first, limit)} of {_time(first.seconds_per_step)}{at}."


def best_by_ranks(
    workload: Workload, machine: Machine, best: Prediction, wanted: Wanted = ANY
) -> dict[int, Prediction]:
    """The best exact layouts for numbers of ranks around that of `best`, up to where the limit changes.

    If `best` is not compute-bound, the ranks are halved until a layout is; else they are doubled, three times at most
    and within the machine, until something else takes most of the step or the model cannot use them.
    """
    found = {best.layout.ranks: best}
    for ranks in _numbers_of_ranks(best):
        if ranks > max(machine.ranks, best.layout.ranks):  # ranks would share cores, which is no limit of the layout
            break
        try:
            found[ranks] = best_exact(workload, machine, ranks, wanted)
        except SettingError:  # more ranks than can be used, or too few for the memory
            break
        if (limit_of(found[ranks]) is None) == (limit_of(best) is not None):
            break
    return found


def _numbers_of_ranks(best: Prediction) -> Iterator[int]:
    ranks = best.layout.ranks
    if limit_of(best) is None:
        yield from (ranks << doubling for doubling in range(1, MOST_DOUBLINGS + 1))
    else:
        yield from (ranks >> halving for halving in range(1, ranks.bit_length()))


def _detail(prediction: Prediction, limit: str) -> str:
    seconds = prediction.breakdown.parts[limit]
    if limit == "bubble":
        return f"waiting for other stages takes {_time(seconds)}"
    if limit == "overhead":
        return f"loading, copying and Python take {_time(seconds)}"
    name, nbytes, largest_seconds = prediction.largest_collective
    operation, _, axis = name.partition(" ")
    text = " ".join(filter(None, (OPERATIONS.get(operation, operation), axis, f"of {_bytes(nbytes)}")))
    if largest_seconds >= DOMINANT_SHARE * seconds:
        return f"{text} takes {_time(min(largest_seconds, seconds))}"
    return f"communication, of which {text} is the largest part, takes {_time(seconds)}"


def _ranks(count: int) -> str:
    return f"{count:,} {plural('rank', count)}"


def _time(seconds: float) -> str:
    return format_seconds(seconds, "µs")


def _bytes(count: int) -> str:
    return f"{count} bytes" if count < 1000 else format_bytes(count)
