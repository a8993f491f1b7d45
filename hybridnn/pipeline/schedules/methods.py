"""Pipeline methods by name, and the schedules that they define.

A method is an order of computations (`computation_orders`) and a rule for the weights that it reads
(`weight_policies`). A single stage needs none but `sequential`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property

from hybridnn.errors import SettingError
from hybridnn.pipeline.schedules.instructions import Backward, Forward, Instruction, ReduceGradients, Update
from hybridnn.pipeline.schedules.placements import LOOP, Placement
from hybridnn.pipeline.schedules.schedule import EXACT, INITIAL, Schedule, ScheduleSize, with_loads
from hybridnn.pipeline.schedules.schedule import Method as Method  # of this module for users
from hybridnn.utils.checks import must_be_one_of, require_choice, require_whole


def one_minibatch_at_a_time(size: ScheduleSize, stage: int) -> list[Instruction]:
    """The passes of a whole minibatch, and its update (Kang 2019, Table 2, all columns)."""
    minibatches = range(size.minibatches)
    return [item for t in minibatches for item in (Forward(t), Backward(t), ReduceGradients(t), Update(t))]


def evaluation(size: ScheduleSize, stage: int) -> list[Instruction]:
    """Forward passes alone: a minibatch begins after every v passes, and goes from one virtual stage to the next."""
    places = [size.placement.virtual(stage, chunk, size.stages) for chunk in range(size.chunks)]
    timed = sorted((size.chunks * t + place, t, c) for t in range(size.minibatches) for c, place in enumerate(places))
    return [Forward(t, 0, chunk) for _, t, chunk in timed]


SEQUENTIAL = Method("sequential", "one minibatch at a time", one_minibatch_at_a_time, EXACT, lambda size, stage: 1)
EVALUATION = Method("evaluation", "forward passes alone", evaluation, INITIAL, lambda size, stage: size.chunks)


class _Methods(Mapping[str, Method]):
    """Methods by name: those of hybridnn, then those of installed packages; each kind is imported when needed."""

    @cached_property
    def own(self) -> dict[str, Method]:
        """The methods of hybridnn."""
        from hybridnn.pipeline.schedules.pipeline_methods import PIPELINE_METHODS

        return {method.name: method for method in (SEQUENTIAL, *PIPELINE_METHODS)}

    @cached_property
    def _all(self) -> dict[str, Method]:
        from hybridnn.utils.plugins import installed

        others = installed("parallel.method", "pipeline method", lambda found: isinstance(found, Method), self.own)
        return self.own | dict(others)

    def __getitem__(self, name: str) -> Method:
        if name == SEQUENTIAL.name:
            return SEQUENTIAL
        return self.own[name] if name in self.own else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


METHODS = _Methods()

WEIGHT_GRADIENTS = ("per-microbatch", "merged")
"""Weight gradients of a minibatch: one product per microbatch, or one over all of them."""


def find_method(name: object) -> Method:
    """The method of a name in any case; a SettingError if there is none, with a name that is close to it."""
    for spelled in (name, name.lower()) if isinstance(name, str) else ():
        if spelled in METHODS:
            return METHODS[spelled]
    close = get_close_matches(str(name).lower(), METHODS, n=1)
    hint = f"did you mean {close[0]}? It " if close else ""
    raise SettingError("parallel.method", name, hint + must_be_one_of(METHODS))


def too_few_stages(method: str) -> SettingError:
    """The error of an asynchronous method on one stage, where training would not be asynchronous."""
    advice = "use -n 2 or more, and parallel.pipeline = 2 or more, if it is set"
    return SettingError("parallel.method", method, f"needs a pipeline of at least 2 stages: {advice}")


def require_supported(method: Method, size: ScheduleSize, weight_grad: str) -> None:
    """Raise a `SettingError` unless the method supports the arguments, which are those of `make_schedule`."""
    _require_whole(size)
    stages, microbatches, chunks = size.stages, size.microbatches, size.chunks
    if microbatches > 1 and not method.cuts_minibatches:
        raise SettingError("parallel.microbatches", microbatches, f"1 with {method.name}, which splits no minibatch")
    if chunks not in method.chunks:
        first, last, step = method.chunks[0], method.chunks[-1], method.chunks.step
        allowed = f"{'even, ' * (step == 2)}{first}{' or more' * (last > first)} with {method.name}"
        having = ", ".join(name for name, other in METHODS.items() if other.chunks[-1] > 1)
        raise SettingError("parallel.chunks", chunks, allowed + f"; more only with {having}" * (last == 1))
    if not method.can_cut(microbatches, stages):
        times = f"{method.microbatches_per_stage} times " * (method.microbatches_per_stage > 1)
        allowed = f"{'a multiple of' if method.whole_groups else f'at least {times}'.rstrip()} the {stages} stages"
        raise SettingError("parallel.microbatches", microbatches, f"{allowed} with {method.name}")
    if method.recomputes and method.placement is not LOOP:
        raise SettingError("parallel.method", method.name, "recomputes, which chunks that hand arrays over cannot")
    if size.barriers and not method.may_have_barriers:
        having = ", ".join(name for name, other in METHODS.items() if other.may_have_barriers)
        raise SettingError("parallel.barriers", True, f"false with {method.name}; true only with {having}")
    require_choice("weight_grad", weight_grad, WEIGHT_GRADIENTS)
    words = "".join(size.order)
    if words and (set(words) - set("FBW") or [it.count("F") for it in size.order] != [microbatches] * stages):
        allowed = f"a word for each of {stages} stages, with F, B and W for each of {microbatches} microbatches"
        raise SettingError("parallel.order", list(size.order), allowed)
    if weight_grad == "merged" and (method.placed_weight_gradients or "W" in words):
        raise SettingError("weight_grad", weight_grad, f"{method.name} places the weight gradients itself")


def make_schedule(
    method: str,
    *,
    stages: int,
    minibatches: int,
    microbatches: int = 1,
    chunks: int = 1,
    weight_grad: str = "per-microbatch",
    messages: bool = True,
    barriers: bool = False,
    order: Sequence[str] = (),
) -> Schedule:
    """Build the schedule of a method.

    Parameters
    ----------
    stages, minibatches, microbatches, chunks : int
        K, T, M and v, as in `Schedule`. A pipeline of one stage has one chunk in any case.
    weight_grad : {"per-microbatch", "merged"}
    messages : bool
        Place loads and messages, which takes most of the time and is not needed to time computations. Methods whose
        order itself places them have them in any case.
    barriers : bool
        Whether ``ddg`` and ``fr`` have a barrier before each forward and each backward pass; other methods have none.
        Kang 2019, Tables 3 and 4, have none; the times of Table 1 are those with barriers.
    order : sequence of str
        Words of the stages for ``searched``; by default the order is that of ``1f1b``.

    Raises
    ------
    SettingError
        If the method does not exist or does not support the arguments.
    """
    chosen = find_method(method)
    size = ScheduleSize(stages, minibatches, microbatches, chunks, barriers, order=tuple(order))
    require_supported(chosen, size, weight_grad)
    return _build(chosen, size, merges=weight_grad == "merged" and microbatches > 1, messages=messages)


def forward_only(stages: int, minibatches: int, chunks: int = 1, placement: Placement = LOOP) -> Schedule:
    """Build the schedule of an evaluation: pipelined forward passes with the initial weights."""
    size = ScheduleSize(stages, minibatches, 1, chunks, placement=placement)
    _require_whole(size)
    return _build(replace(EVALUATION, placement=placement, chunks=range(1, chunks + 1)), size)


def _build(method: Method, size: ScheduleSize, *, merges: bool = False, messages: bool = True) -> Schedule:
    """The schedule of a method, of a size that it supports, with loads, and with messages between several stages."""
    if size.stages == 1:
        size = replace(size, chunks=1)  # with several, the rank would send to itself
    order = method.order
    if size.chunks not in method.chunks:  # one stage, and a method with several chunks
        from hybridnn.pipeline.schedules import computation_orders as orders

        order = orders.zero_bubble_h1 if method.placed_weight_gradients else orders.one_forward_one_backward
    lists = [order(size, stage) for stage in range(size.stages)]
    activations = method.activations
    if merges:
        from hybridnn.pipeline.schedules.computation_orders import merge_weight_gradients
        from hybridnn.pipeline.schedules.pipeline_methods import merged_activations

        lists = [merge_weight_gradients(order, size.chunks) for order in lists]
        activations = merged_activations(method)
    bound = tuple(activations(size, stage) for stage in range(size.stages))
    counts = size.stages, size.chunks, size.minibatches, size.microbatches
    schedule = Schedule(method.name, *counts, method.policy, tuple(map(tuple, lists)), bound, method.placement)
    if not messages or method.placed_messages:
        return schedule
    schedule = with_loads(schedule)
    if size.stages == 1:
        return schedule
    from hybridnn.pipeline.schedules.compiled_schedule import place_messages

    return place_messages(schedule)


def _require_whole(size: ScheduleSize) -> None:
    require_whole("parallel.pipeline", size.stages, 1)
    require_whole("minibatches", size.minibatches, 1)
    require_whole("parallel.microbatches", size.microbatches, 1)
    require_whole("parallel.chunks", size.chunks, 1)
