"""Planning: feasible layouts, and the fastest of them by best-first search over lower bounds of their step times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from heapq import heapify, heappop, heappush
from itertools import islice
from types import MappingProxyType
from typing import Any

from hybridnn.cost.machine import Machine
from hybridnn.cost.order_search import searched
from hybridnn.cost.prediction import Workload
from hybridnn.cost.prediction.memory import largest_memory
from hybridnn.cost.prediction.predict import (
    Prediction,
    ScalingCurve,
    ScalingPoint,
    balanced_layers,
    error_factor,
    predict,
    scaling_points,
)
from hybridnn.cost.prediction.stage_costs import StageCosts
from hybridnn.errors import SettingError
from hybridnn.parallel.dense import MODEL_SPLITS
from hybridnn.parallel.grid import StageShapes
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.partition import microbatch_counts
from hybridnn.pipeline.schedules.compiled_schedule import Channel
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
from hybridnn.pipeline.schedules.methods import METHODS, Method
from hybridnn.pipeline.schedules.placements import Placement
from hybridnn.utils.checks import require_whole
from hybridnn.utils.text import counted, format_seconds

# -- feasible layouts -------------------------------------------------------------------------------------------------

Wanted = Mapping[str, Any]
"""Values that a layout must have, by key of the settings section ``[parallel]``; any where there is none.

With ``exact``, it must train as one rank does."""

ANY: Wanted = MappingProxyType({})


def feasible_layouts(workload: Workload, machine: Machine, ranks: int, wanted: Wanted = ANY) -> Iterator[Layout]:
    """All layouts of exactly `ranks` ranks in which every rank has samples, layers and outputs.

    All stages have the same shape; layers are assigned to them by their times on the machine. Numbers of microbatches
    are powers of two and the stages times powers of two, up to eight per stage and 256 in all. Vertical synchronization
    is left out: it needs more memory and is not faster.

    Raises `SettingError` if there are more ranks than the model can use, or no layout has the wanted values.
    """
    require_whole("ranks", ranks, 1)
    grids = list(_grids(workload, ranks))
    if not grids:
        fewer = f"{most_ranks(workload, ranks)} is the largest number up to {ranks} that this model can use"
        limits = f"{len(workload.model.layers)} layers, {workload.batch_size} samples in a minibatch"
        widest = _most_model_ranks(workload)
        raise SettingError("ranks", ranks, f"{fewer}: it has {limits}, and {widest} outputs to split")
    found = False
    for grid in grids:
        for layout in _layouts_of_grid(workload, machine, grid, wanted):
            found = True
            yield layout
    if not found:
        required = ", ".join(f"{key} = {value}" for key, value in wanted.items())
        raise SettingError("parallel", required, f"no layout of {ranks} ranks that this model can use has all of these")


def most_ranks(workload: Workload, limit: int) -> int:
    """The largest number of ranks up to `limit` for which there is a layout."""
    ranks = min(limit, len(workload.model.layers) * workload.batch_size * _most_model_ranks(workload))
    while not any(_grids(workload, ranks)):
        ranks -= 1
    return ranks


def _most_model_ranks(workload: Workload) -> int:
    """Outputs of the widest layer: more model ranks would have none of any layer."""
    return max(layer.outputs for layer in workload.model.layers)


def _grids(workload: Workload, ranks: int) -> Iterator[tuple[int, int, int]]:
    """Pipeline, batch and model ranks."""
    for pipeline in range(1, len(workload.model.layers) + 1):
        replicas, rest = divmod(ranks, pipeline)
        for batch in range(min(replicas, workload.batch_size), 0, -1) if rest == 0 else ():
            if replicas % batch == 0 and replicas // batch <= _most_model_ranks(workload):
                yield pipeline, batch, replicas // batch


def _layouts_of_grid(
    workload: Workload, machine: Machine, grid: tuple[int, int, int], wanted: Wanted
) -> Iterator[Layout]:
    pipeline, batch, model = grid
    if not all(_allowed(wanted, key, size) for key, size in zip(("pipeline", "batch", "model"), grid, strict=True)):
        return
    node_ranks = machine.node_ranks(pipeline * batch * model)
    shared = batch > 1 and node_ranks > model and wanted.get("shared_replicas") is not False
    # Without gradients to send there is nothing to overlap.
    is_sent = model > 1 or (batch > 1 and not shared)
    overlaps = [it for it in (True, False) if _allowed(wanted, "overlap", it)]
    splits = [it for it in (MODEL_SPLITS if model > 1 else MODEL_SPLITS[:1]) if _allowed(wanted, "model_split", it)]
    for bare in _pipelines(workload, machine, grid, wanted):
        for split in splits:
            for overlap in overlaps if is_sent else overlaps[:1]:
                layout = replace(
                    bare, model_split=split, overlap=overlap, shared_replicas=shared, node_ranks=node_ranks
                )
                # The alternating split is that by columns, unless some stage has two layers.
                if model == 1 or split != "alternating" or max(layout.layers) > 1:
                    yield layout


def _allowed(wanted: Wanted, key: str, value: object) -> bool:
    return bool(wanted.get(key, value) == value)


def _pipelines(workload: Workload, machine: Machine, grid: tuple[int, int, int], wanted: Wanted) -> Iterator[Layout]:
    """Layouts with all methods, microbatches and chunks, and all else at its default."""
    pipeline, batch, model = grid
    stages = ((batch, model),) * pipeline
    if pipeline == 1:
        if _allowed(wanted, "method", "sequential"):
            yield Layout(stages, (len(workload.model.layers),), merges=True)
        return

    @cache
    def layers(placement: Placement, chunks: int, microbatches: int) -> tuple[int, ...]:
        placed = tuple(placement.stages(pipeline, chunks))
        return balanced_layers(workload, machine, stages, placed=placed, microbatches=microbatches)

    for method in METHODS.values():
        if not _allowed(wanted, "method", method.name) or (method.ordered and "method" not in wanted):
            continue  # an order is searched for the fastest layout: see `with_searched`
        if not method.exact and "exact" in wanted:
            continue
        if method.predicts and not workload.slots:
            continue
        for chunks in _chunks(workload, method, pipeline, wanted):
            for microbatches in _microbatches(workload, method, stages, wanted):
                yield Layout(
                    stages,
                    layers(method.placement, chunks, microbatches),
                    method=method.name,
                    microbatches=microbatches,
                    chunks=chunks,
                    merges=not method.placed_weight_gradients,
                )


def _chunks(workload: Workload, method: Method, pipeline: int, wanted: Wanted) -> list[int]:
    chunks = wanted.get("chunks", method.chunks[0])
    return (
        [chunks] if chunks in method.chunks and (chunks == 1 or chunks * pipeline <= len(workload.model.layers)) else []
    )


def _microbatches(workload: Workload, method: Method, stages: StageShapes, wanted: Wanted) -> list[int]:
    """Numbers of microbatches with which every rank has samples of each."""
    if "microbatches" not in wanted:
        return microbatch_counts(method, stages, workload.batch_size)
    count, pipeline = wanted["microbatches"], len(stages)
    is_possible = count <= workload.batch_size // stages[0][0] or not method.cuts_minibatches
    return [count] if is_possible and method.can_cut(count, pipeline) else []


# -- the fastest layouts ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The fastest layouts of a number of ranks."""

    workload: Workload
    machine: Machine
    ranks: int
    layouts: int  # number of feasible ones, including those that do not fit the memory
    # the fastest that fit the memory, in order of time; an exact one is appended if there is none among them
    options: tuple[Prediction, ...]
    # the fastest that trains as one rank does, and the fastest such one on another process grid, if any
    best_exact: Prediction | None
    runner_up: Prediction | None

    @property
    def best(self) -> Prediction:
        """The fastest, exact or not."""
        return self.options[0]


def plan(workload: Workload, machine: Machine, ranks: int, top: int = 10, wanted: Wanted = ANY) -> Plan:
    """Find the `top` fastest layouts of exactly `ranks` ranks that fit the memory.

    Layouts are visited in order of a lower bound on their time, and predicted only while they may be among the fastest.

    Raises `SettingError` if the model cannot use so many ranks, or no layout fits the memory of a rank: by how much.
    """
    require_whole("--top", top, 1)
    search = _Search(workload, machine, feasible_layouts(workload, machine, ranks, wanted))
    options = tuple(islice(search.fastest_first(lambda layout: True), top))
    if not options:
        raise search.nothing_fits(ranks)
    best = next(search.fastest_first(lambda layout: layout.exact), None)
    if best is not None and (best := with_searched(best, workload, machine, wanted)) not in options:
        options = tuple(sorted((*options, best), key=lambda found: found.seconds_per_step))
    grid = None if best is None else best.layout.stages
    runner_up = next(search.fastest_first(lambda layout: layout.exact and layout.stages != grid), None)
    return Plan(workload, machine, ranks, len(search.layouts), options, best, runner_up)


def best_exact(workload: Workload, machine: Machine, ranks: int, wanted: Wanted = ANY) -> Prediction:
    """The fastest layout that trains as one rank does and fits the memory; errors as for `plan`."""
    search = _Search(workload, machine, feasible_layouts(workload, machine, ranks, {**wanted, "exact": True}))
    best = next(search.fastest_first(lambda layout: layout.exact), None)
    if best is None:
        raise search.nothing_fits(ranks)
    return best


def with_searched(best: Prediction, workload: Workload, machine: Machine, wanted: Wanted = ANY) -> Prediction:
    """The prediction of an exact layout, or with the order that is searched for it, if that is faster and fits."""
    layout = best.layout
    if len(layout.stages) == 1 or layout.chunks > 1 or not METHODS[wanted.get("method", "searched")].ordered:
        return best
    layout = searched(layout, lambda it: StageCosts(workload, it, machine).stage_times())
    other = predict(workload, layout, machine)
    fits = other.memory_bytes <= machine.memory_bytes_per_rank
    return other if fits and other.seconds_per_step < best.seconds_per_step else best


FEW_RANKS = 8
"""Most ranks for which a run's advice searches pipelines too: in 0.2 s or less."""


def layout_advice(own: Prediction, workload: Workload, machine: Machine) -> str:
    """Sentence on a layout that is clearly faster: one rank, or all ranks.

    It states by which factor its ratios may be off: that of two predictions that err in opposite directions. Empty if
    no prediction is faster beyond the errors of both, if the machine file is doubtful, or on one rank.
    """
    if machine.doubt or own.layout.ranks == 1:
        return ""
    ranks = own.layout.ranks
    try:
        alone = best_exact(workload, machine, 1)
        best = best_exact(workload, machine, ranks, ANY if ranks <= FEW_RANKS else {"pipeline": 1})
    except SettingError:  # one of them does not fit
        return ""
    serial, fastest = alone.seconds_per_step, min(alone.seconds_per_step, best.seconds_per_step)
    factor = error_factor(fastest, machine)
    if fastest * factor >= own.seconds_per_step:
        return ""
    speed_up = f"{serial / own.seconds_per_step:.2g} times as fast"
    is_slower = serial * factor < own.seconds_per_step
    text = f"predicted slower than 1 rank ({speed_up})" if is_slower else f"predicted {speed_up} as 1 rank"
    if best.seconds_per_step < serial:
        text += f"; {best.layout.describe()} would be {serial / best.seconds_per_step:.2g} times"
    return f"{text} (within a factor of {factor:.2g}; hybridnn plan)"


def best_curve(workload: Workload, machine: Machine, ranks: Iterable[int], wanted: Wanted = ANY) -> ScalingCurve:
    """The fastest exact layout of each number of `ranks`, simulated; errors as for `plan`."""
    cases = [(workload.batch_size, best_exact(workload, machine, number, wanted).layout) for number in ranks]
    return ScalingCurve("best", tuple(scaling_points(workload, cases, machine)))


def faster_points(
    curve: ScalingCurve, workload: Workload, machine: Machine, wanted: Wanted = ANY
) -> tuple[ScalingPoint, ...]:
    """Fastest exact layouts of numbers of ranks of a curve, where they are faster by more than the errors of both.

    None are if the machine file is doubtful. The workload is that of the curve.
    """
    cases = []
    for point in () if machine.doubt else curve.points[1:]:
        with suppress(SettingError):  # no layout can be used, or fits
            grown = replace(workload, batch_size=point.batch_size)
            best = best_exact(grown, machine, point.ranks, wanted)
            if best.seconds_per_step * error_factor(best.seconds_per_step, machine) < point.seconds_per_step:
                cases.append((point.batch_size, best.layout))
    return tuple(scaling_points(workload, cases, machine))


def divided(workload: Workload, layout: Layout, machine: Machine, *, cuts: bool, balances: bool) -> Layout:
    """The layout with the microbatches, where it `cuts`, and the layers, where it `balances`, of the shortest step."""
    stages, method = layout.stages, METHODS[layout.method]
    numbers = (cuts and microbatch_counts(method, stages, workload.batch_size)) or [layout.microbatches]

    def candidate(microbatches: int) -> Layout:
        layers = layout.layers
        if balances:
            placed = layout.placement.stages(len(stages), layout.chunks)
            layers = balanced_layers(workload, machine, stages, placed=placed, microbatches=microbatches)
        return replace(layout, microbatches=microbatches, layers=layers)

    return min(map(candidate, numbers), key=lambda it: predict(workload, it, machine).seconds_per_step)


# -- search ----------------------------------------------------------------------------------------------------------


class _Search:
    """Best-first search over layouts: rough bound, tight bound, prediction; each is kept."""

    def __init__(self, workload: Workload, machine: Machine, layouts: Iterable[Layout]) -> None:
        self.layouts = tuple(layouts)
        self._workload, self._machine = workload, machine
        self._bounds = [StepBounds(workload, layout, machine) for layout in self.layouts]
        self._predictions: dict[int, Prediction] = {}

    def fastest_first(self, accept: Callable[[Layout], bool]) -> Iterator[Prediction]:
        """Predictions of the layouts that fit the memory, each computed when no other can be faster."""
        chosen = (number for number, layout in enumerate(self.layouts) if accept(layout))
        # A bound or the time, the memory, the number, and which of them it is.
        heap = [(_nine_digits(self._bounds[number].rough), 0, number, "rough bound") for number in chosen]
        heapify(heap)
        while heap:
            _, _, number, known = heappop(heap)
            if known == "time":
                yield self._predictions[number]
            elif known == "rough bound":
                heappush(heap, (_nine_digits(self._bounds[number].tight), 0, number, "tight bound"))
            elif (memory := self._memory(number)) <= self._machine.memory_bytes_per_rank:
                if number not in self._predictions:
                    self._predictions[number] = predict(self._workload, self.layouts[number], self._machine)
                heappush(heap, (_nine_digits(self._predictions[number].seconds_per_step), memory, number, "time"))

    def nothing_fits(self, ranks: int) -> SettingError:
        """The error if no layout fits the memory."""
        least, number = min((self._memory(number), number) for number in range(len(self.layouts)))
        available = self._machine.memory_bytes_per_rank
        return SettingError(
            "memory_bytes_per_rank",
            available,
            f"no layout of {counted(ranks, 'rank')} fits; the smallest, {self.layouts[number].describe()}, "
            f"needs {least:,} bytes per rank, {least - available:,.0f} more than there are",
        )

    def _memory(self, number: int) -> int:
        return largest_memory(self._workload, self.layouts[number]).total


def _nine_digits(seconds: float) -> float:
    """Round, so that sums of the same times in another order are equal."""
    return float(f"{seconds:.9g}")


# -- lower bounds ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepBounds:
    """Lower bounds on the seconds of a step: the work of its stages, added without a schedule."""

    workload: Workload
    layout: Layout
    machine: Machine

    @cached_property
    def rough(self) -> float:
        """All work of the stage with the most weights."""

        def weights(stage: int) -> int:
            return sum(chunk.parameters for chunk in self._costs.chunks[stage])

        return self._work(max(dict.fromkeys(self._costs.equal_stages), key=weights))

    @cached_property
    def tight(self) -> float:
        """Every stage's work, with what other stages do before it can begin and after it has ended.

        The first microbatch passes all earlier stages, and, with an exact method, the last gradient passes them back.
        """
        stages = range(len(self.layout.stages))
        if not self.layout.drains or len(stages) == 1:
            return max(map(self._work, stages))
        begin = end = bound = first = 0.0
        for stage in stages:
            # The first message is part of `begin`.
            bound = max(bound, begin + self._work(stage) - first, begin + self._passes(stage) - first + end)
            message = self._shortest_message(stage, gradients=False)
            begin += self._shortest_pass(stage, Forward) + message
            first = message * (1 - self._costs.hidden)
            end += self._shortest_pass(stage, self._backward) + self._shortest_message(stage, gradients=True)
        return bound

    @cached_property
    def _costs(self) -> StageCosts:
        layout, method = self.layout, METHODS[self.layout.method]
        if layout.chunks == 1 and not method.predicts:  # the instructions of all such methods cost the same
            layout = replace(layout, method="gpipe" if method.drains else "vanilla")
        return _stage_costs(self.workload, layout, self.machine)

    @property
    def _backward(self) -> type[Backward] | type[InputGradient]:
        """The instruction after which a gradient is sent to the previous stage."""
        layout = self.layout
        splits = METHODS[layout.method].placed_weight_gradients or (layout.merges and layout.microbatches > 1)
        return InputGradient if splits else Backward

    @cached_property
    def _kinds(self) -> tuple[tuple[int, int], ...]:
        """Microbatches of equal cost, as a member and their number: the first, and others of either size."""
        return tuple(Counter(self.layout.equal_microbatches(self.workload.batch_size)).items())

    def _shortest_pass(self, stage: int, kind: type[Forward] | type[Backward] | type[InputGradient]) -> float:
        """Seconds of a pass through the first chunk with the fastest microbatch."""
        return self._once(
            ("shortest pass", kind),
            stage,
            lambda: min(self._costs.duration(stage, kind(0, microbatch, 0)) for microbatch, _ in self._kinds),
        )

    def _shortest_message(self, stage: int, *, gradients: bool) -> float:
        """Seconds of a message to the next stage, or back from it, with the fastest microbatch of the first chunk."""
        after = stage + 1
        if after == len(self.layout.stages):
            return 0.0
        channel = Channel(after, stage, True, 0) if gradients else Channel(stage, after, False, 0)
        return min(self._costs.message((channel, 0, microbatch)).transit for microbatch, _ in self._kinds)

    def _receiving(self, stage: int) -> float:
        """Seconds in which messages occupy a stage: what does not overlap with its work."""
        seconds = 0.0
        for chunk, around in enumerate(self._costs.around[stage]):
            for gradients, sender in zip((False, True), around, strict=True):
                if sender is not None and sender != stage:
                    channel = Channel(sender, stage, gradients, chunk)
                    seconds += sum(
                        times * self._costs.message((channel, 0, microbatch)).transit
                        for microbatch, times in self._kinds
                    )
        return seconds * (1 - self._costs.hidden)

    def _passes(self, stage: int) -> float:
        """Seconds of all passes that a neighbouring stage waits for, with the messages that they need."""

        def passes() -> float:
            return sum(
                times * self._costs.duration(stage, kind(0, microbatch, chunk))
                for chunk in range(self.layout.chunks)
                for microbatch, times in self._kinds
                for kind in (Forward, self._backward)
            )

        return self._once("passes", stage, passes) + self._receiving(stage)

    def _work(self, stage: int) -> float:
        """Seconds of all work of a stage for a minibatch."""

        def other_work() -> float:
            return sum(times * self._costs.duration(stage, other) for other, times in self._other_work(stage))

        return self._passes(stage) + self._once(("other work", self.layout.recomputes(stage)), stage, other_work)

    def _once(self, what: Hashable, stage: int, seconds: Callable[[], float]) -> float:
        """Seconds that equal stages, of all layouts with the same costs, have in common: computed once."""
        sums = self._costs.sums
        key = what, self._backward, self._costs.equal_stages[stage]
        if key not in sums:
            sums[key] = seconds()
        return sums[key]

    def _other_work(self, stage: int) -> Iterator[tuple[Instruction, int]]:
        """Instructions other than those of `_passes`, and how many times there is one."""
        layout = self.layout
        if layout.recomputes(stage):
            yield Recompute(0), 1
        if self._backward is InputGradient:
            for chunk in range(layout.chunks):
                if layout.merges:
                    yield WeightGradient(0, ALL_MICROBATCHES, chunk), 1
                else:
                    for microbatch, times in self._kinds:
                        yield WeightGradient(0, microbatch, chunk), times
        yield ReduceGradients(0), 1
        yield Update(0), 1


_stage_costs = lru_cache(256)(StageCosts)
"""Costs that layouts which follow one another, and differ only in the order of instructions, have in common."""


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


def _time(seconds: float) -> str:
    return format_seconds(seconds, "µs")
