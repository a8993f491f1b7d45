"""The least that a step of a layout can take: what its stages do, added up without a schedule.

The fastest layouts of a number of ranks, found without a prediction for every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.planning.layouts import ANY, Constraints, feasible_layouts, layout_words
from hybridnn.cost.prediction.memory import fullest_rank
from hybridnn.cost.prediction.predict import Prediction, predict
from hybridnn.cost.prediction.stage_costs import StageCosts
from hybridnn.cost.prediction.workload import Layout, Workload
from hybridnn.errors import SettingError
from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Backward,
    Forward,
    InputGradient,
    Instruction,
    Recompute,
    ReduceGradients,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.message_flow import Channel
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.utils.checks import require_whole
from hybridnn.utils.text import counted


@dataclass(frozen=True)
class StepBounds:
    """Lower bounds on the seconds of a step.

    Attributes
    ----------
    workload : Workload
    layout : Layout
    machine : Machine
    """

    workload: Workload
    layout: Layout
    machine: Machine

    @cached_property
    def rough(self) -> float:
        """The whole work of the stage with the most weights."""

        def weights(stage: int) -> int:
            return sum(chunk.parameters for chunk in self._costs.chunks[stage])

        return self._work(max(range(len(self.layout.stages)), key=weights))

    @cached_property
    def tight(self) -> float:
        """Every stage's work, and what others have to do before it can begin and after it has ended."""
        method = METHODS[self.layout.method]
        if len(self.layout.stages) == 1:
            return self._work(0)
        if method.exact:
            return self._flushed()
        return self._locked() if method.placed_messages else self._endless()

    def _flushed(self) -> float:
        """The first microbatch has to come to a stage, and the gradient of the last one has to go back to the first."""
        begin = end = bound = first = 0.0
        for stage in range(len(self.layout.stages)):
            # The first message is part of `begin`.
            bound = max(bound, begin + self._work(stage) - first, begin + self._passes(stage) - first + end)
            message = self._hop(stage, gradients=False)
            begin += self._least(stage, Forward) + message
            first = message * (1 - self._costs.hidden)
            end += self._least(stage, self._backward) + self._hop(stage, gradients=True)
        return bound

    def _locked(self) -> float:
        """``ddg`` and ``fr``: all forward passes follow one another, then all backward passes run at once."""
        stages = range(len(self.layout.stages))
        forward = [self._least(stage, Forward) for stage in stages]
        chain = sum(forward) + sum(self._hop(stage, gradients=False) for stage in stages)
        return chain + max(self._work(stage) - self._receiving(stage) - forward[stage] for stage in stages)

    def _endless(self) -> float:
        """A stage's own work; and the first stage has no more minibatches on their way than there are stages."""
        stages = range(len(self.layout.stages))
        hops = sum(self._hop(stage, gradients=gradients) for stage in stages for gradients in (False, True))
        around = hops + sum(self._least(stage, kind) for stage in stages for kind in (Forward, Backward))
        return max(around / len(stages), *map(self._work, stages))

    @cached_property
    def _costs(self) -> StageCosts:
        layout = self.layout
        if METHODS[layout.method].exact and layout.chunks == 1:  # these differ in their order alone
            layout = replace(layout, method="gpipe")
        return _stage_costs(self.workload, layout, self.machine)

    @property
    def _backward(self) -> type[Backward] | type[InputGradient]:
        """How the backward pass of a microbatch reaches the stage before."""
        layout = self.layout
        splits = METHODS[layout.method].placed_weight_gradients or (layout.merges and layout.microbatches > 1)
        return InputGradient if splits else Backward

    @cached_property
    def _sizes(self) -> tuple[tuple[int, int], ...]:
        """Microbatches that cost alike, each kind by one of its numbers: the first, and others of either size."""
        count, larger = self.layout.microbatches, self.workload.batch_size % self.layout.microbatches
        kinds = {0: 1, 1: max(0, larger - 1), max(1, larger): count - max(1, larger)}
        return tuple((number, times) for number, times in kinds.items() if times)

    def _seconds(self, stage: int, instructions: Iterable[Instruction]) -> float:
        return sum(self._costs.duration(stage, one) for one in instructions)

    def _least(self, stage: int, kind: type[Forward] | type[Backward] | type[InputGradient]) -> float:
        """Seconds of a pass through the first chunk with the microbatch that is fastest."""
        return min(self._costs.duration(stage, kind(0, number, 0)) for number, _ in self._sizes)

    def _message(self, sender: int, receiver: int, chunk: int, number: int, *, gradients: bool) -> float:
        return self._costs.message((Channel(sender, receiver, gradients, chunk), 0, number))

    def _hop(self, stage: int, *, gradients: bool) -> float:
        """Seconds of a message to the next stage, or back from it, with the fastest microbatch of the first chunk."""
        after = stage + 1
        if after == len(self.layout.stages):
            return 0.0
        ends = (after, stage) if gradients else (stage, after)
        return min(self._message(*ends, 0, number, gradients=gradients) for number, _ in self._sizes)

    def _receiving(self, stage: int) -> float:
        """Seconds in which messages occupy a stage, as far as they do not hide behind its work."""
        stages, chunks = len(self.layout.stages), self.layout.chunks
        seconds = 0.0
        for chunk in range(chunks):
            for gradients in (False, True):
                sender = (stage + (1 if gradients else -1)) % stages
                at_end = stage == stages - 1 and chunk == chunks - 1 if gradients else stage == 0 and chunk == 0
                if not at_end:
                    seconds += sum(
                        times * self._message(sender, stage, chunk, number, gradients=gradients)
                        for number, times in self._sizes
                    )
        return seconds * (1 - self._costs.hidden)

    def _passes(self, stage: int) -> float:
        """Seconds of all passes that the stage before, or behind, waits for, with the messages that they need."""
        kinds = (Forward, self._backward)
        passes = sum(
            times * self._seconds(stage, (kind(0, number, chunk) for kind in kinds))
            for chunk in range(self.layout.chunks)
            for number, times in self._sizes
        )
        return passes + self._receiving(stage)

    def _work(self, stage: int) -> float:
        """Seconds of all that a stage does for a minibatch."""
        return self._passes(stage) + self._seconds(stage, self._other_work(stage))

    def _other_work(self, stage: int) -> Iterator[Instruction]:
        layout = self.layout
        if layout.method == "fr" and stage < len(layout.stages) - 1:
            yield Recompute(0)
        if self._backward is InputGradient:
            for chunk in range(layout.chunks):
                if layout.merges:
                    yield WeightGradient(0, ALL_MICROBATCHES, chunk)
                else:
                    for number, times in self._sizes:
                        yield from [WeightGradient(0, number, chunk)] * times
        yield ReduceGradients(0)
        yield Update(0)


KEPT_COSTS = 256
"""Costs of stages that are kept: layouts that differ in the order of their instructions alone follow one another."""


@lru_cache(KEPT_COSTS)
def _stage_costs(workload: Workload, layout: Layout, machine: Machine) -> StageCosts:
    return StageCosts(workload, layout, machine)


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
            f"no layout of {counted(ranks, 'rank')} fits; the smallest, {layout_words(self.layouts[number])}, "
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
