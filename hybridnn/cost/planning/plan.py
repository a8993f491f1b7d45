"""The fastest layouts of a number of ranks, found without a prediction for every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from hybridnn.checks import require_whole
from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.planning.bounds import StepBounds
from hybridnn.cost.planning.layouts import ANY, Constraints, feasible_layouts
from hybridnn.cost.planning.words import layout_words
from hybridnn.cost.prediction.memory import fullest_rank
from hybridnn.cost.prediction.predict import predict
from hybridnn.cost.prediction.prediction import Prediction
from hybridnn.cost.prediction.workload import Layout, Workload
from hybridnn.errors import SettingError

__all__ = ["Plan", "best_exact", "plan"]


@dataclass(frozen=True)
class Plan:
    """Layouts of a number of ranks.

    Attributes
    ----------
    workload : Workload
    machine : Machine
    ranks : int
    layouts : int
        Layouts there are, those that do not fit the memory included.
    options : tuple of Prediction
        The fastest that fit, the fastest first; the last one may be there only because no other is exact.
    best_exact : Prediction or None
        The fastest that trains as one rank does; None where constraints leave none.
    runner_up : Prediction or None
        The fastest exact one on another process grid, if there is any.
    """

    workload: Workload
    machine: Machine
    ranks: int
    layouts: int
    options: tuple[Prediction, ...]
    best_exact: Prediction | None
    runner_up: Prediction | None

    @property
    def best(self) -> Prediction:
        """The fastest, exact or not."""
        return self.options[0]


def plan(workload: Workload, machine: Machine, ranks: int, top: int = 10, constraints: Constraints = ANY) -> Plan:
    """Find the fastest layouts of exactly `ranks` ranks that fit the memory.

    Layouts are looked at in the order of a lower bound on their time, and predicted only while they may still be among
    the best.

    Parameters
    ----------
    workload : Workload
    machine : Machine
    ranks : int
    top : int
        Layouts to list.
    constraints : Constraints

    Raises
    ------
    SettingError
        If the model cannot use so many ranks, or no layout fits the memory of a rank: by how much the smallest misses.
    """
    require_whole("--top", top, 1)
    search = _Search(workload, machine, feasible_layouts(workload, machine, ranks, constraints))
    options = tuple(islice(search.fastest_first(lambda layout: True), top))
    if not options:
        raise search.nothing_fits(ranks)
    best = next(search.fastest_first(lambda layout: layout.exact), None)
    if best is not None and best not in options:
        options = (*options, best)
    grid = None if best is None else best.layout.stages
    runner_up = next(search.fastest_first(lambda layout: layout.exact and layout.stages != grid), None)
    return Plan(workload, machine, ranks, len(search.layouts), options, best, runner_up)


def best_exact(workload: Workload, machine: Machine, ranks: int, constraints: Constraints = ANY) -> Prediction:
    """The fastest layout that trains as one rank does and fits the memory; parameters and errors as for `plan`."""
    search = _Search(workload, machine, feasible_layouts(workload, machine, ranks, replace(constraints, exact=True)))
    best = next(search.fastest_first(lambda layout: layout.exact), None)
    if best is None:
        raise search.nothing_fits(ranks)
    return best


class _Candidate(NamedTuple):
    """A layout, ordered by what is known of its time; of equally fast ones that which needs less memory."""

    seconds: float
    memory_bytes: int
    number: int
    refine: Callable[[int], _Candidate | None] | None


class _Search:
    """Layouts, with what has been found out about them."""

    def __init__(self, workload: Workload, machine: Machine, layouts: Iterable[Layout]) -> None:
        self.layouts = tuple(layouts)
        self._workload, self._machine = workload, machine
        self._bounds = [StepBounds(workload, layout, machine) for layout in self.layouts]
        self._known: dict[int, Prediction] = {}

    def fastest_first(self, wanted: Callable[[Layout], bool]) -> Iterator[Prediction]:
        """Predictions of the layouts that fit the memory, each computed when no other can be faster."""
        heap = [self._rough(number) for number, layout in enumerate(self.layouts) if wanted(layout)]
        heapify(heap)
        while heap:
            first = heappop(heap)
            if first.refine is None:
                yield self._known[first.number]
            elif (refined := first.refine(first.number)) is not None:
                heappush(heap, refined)

    def nothing_fits(self, ranks: int) -> SettingError:
        """The error where no layout fits the memory."""
        least, number = min((self._memory(number), number) for number in range(len(self.layouts)))
        there = self._machine.memory_bytes_per_rank
        return SettingError(
            "memory_bytes_per_rank",
            there,
            f"no layout of {ranks} rank{'s' * (ranks > 1)} fits; the smallest, {layout_words(self.layouts[number])}, "
            f"needs {least:,} bytes per rank, {least - there:,.0f} more than there are",
        )

    def _rough(self, number: int) -> _Candidate:
        return _Candidate(_without_noise(self._bounds[number].rough), 0, number, self._tight)

    def _tight(self, number: int) -> _Candidate:
        return _Candidate(_without_noise(self._bounds[number].tight), 0, number, self._predicted)

    def _predicted(self, number: int) -> _Candidate | None:
        memory = self._memory(number)
        if memory > self._machine.memory_bytes_per_rank:
            return None
        if number not in self._known:
            self._known[number] = predict(self._workload, self.layouts[number], self._machine)
        return _Candidate(_without_noise(self._known[number].seconds_per_step), memory, number, None)

    def _memory(self, number: int) -> int:
        return fullest_rank(self._workload, self.layouts[number]).total


def _without_noise(seconds: float) -> float:
    """Nine digits: the same sum in another order is no other time."""
    return float(f"{seconds:.9g}")
