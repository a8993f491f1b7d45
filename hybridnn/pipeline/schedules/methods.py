"""Pipeline methods by name, and the schedules that they define.

A method is an order of computations (`computation_orders`) and a rule for the weights that it reads
(`weight_policies`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property

from hybridnn.errors import SettingError
from hybridnn.pipeline.schedules import computation_orders as orders
from hybridnn.pipeline.schedules.computation_orders import Order, ScheduleSize
from hybridnn.pipeline.schedules.instructions import Instruction
from hybridnn.pipeline.schedules.schedule import Schedule, with_loads
from hybridnn.pipeline.schedules.weight_policies import (
    CURRENT,
    DISCREPANCY_CORRECTED,
    DOUBLE_BUFFERED,
    EXACT,
    INITIAL,
    LINEAR_PREDICTION,
    PREDICTED,
    STASHED,
    VERTICAL_SYNC,
    WeightPolicy,
)
from hybridnn.utils.checks import must_be_one_of, require_choice, require_whole

ActivationBound = Callable[[ScheduleSize, int], int]
"""From (size, stage) to the most microbatches whose activations the stage holds at a time."""


@dataclass(frozen=True)
class Method:
    """A pipeline method."""

    name: str
    summary: str  # one line for display
    order: Order
    policy: WeightPolicy
    activations: ActivationBound
    cuts_minibatches: bool = False  # splits minibatches into microbatches
    chunked: bool = False  # a stage has several chunks
    fills_pipeline: bool = False  # a minibatch needs at least as many microbatches as there are stages
    placed_weight_gradients: bool = False  # the order itself places the weight gradients
    placed_messages: bool = False  # the order itself places loads and messages
    may_have_barriers: bool = False  # the order places barriers if its size asks for them
    recomputes: bool = False  # every stage but the last computes its forward passes twice

    @property
    def exact(self) -> bool:
        """Whether every minibatch is complete before the next one begins."""
        return self.policy is EXACT

    @cached_property
    def predicts(self) -> bool:
        """Whether it reads predicted weights, which needs an optimizer with momentum."""
        stages = 4
        points = [(stage, stages, minibatch) for stage in range(stages) for minibatch in range(2 * stages)]
        return any(read(*point).ahead for read in (self.policy.forward, self.policy.backward) for point in points)

    def require(self, size: ScheduleSize, weight_grad: str) -> None:
        """Raise a `SettingError` unless the method supports the arguments, which are those of `make_schedule`."""
        _require_whole(size)
        stages, microbatches, chunks = size.stages, size.microbatches, size.chunks
        if microbatches > 1 and not self.cuts_minibatches:
            raise SettingError("parallel.microbatches", microbatches, f"1 with {self.name}, which splits no minibatch")
        if chunks > 1 and not self.chunked:
            having = ", ".join(name for name, other in METHODS.items() if other.chunked)
            raise SettingError("parallel.chunks", chunks, f"1 with {self.name}; more only with {having}")
        if self.chunked and chunks < 2:
            raise SettingError("parallel.chunks", chunks, f"2 or more with {self.name}")
        if self.fills_pipeline and microbatches < stages:
            allowed = f"at least the {stages} stages with {self.name}"
            raise SettingError("parallel.microbatches", microbatches, allowed)
        if self.chunked and microbatches % stages:
            allowed = f"a multiple of the {stages} stages with {self.name}"
            raise SettingError("parallel.microbatches", microbatches, allowed)
        if size.barriers and not self.may_have_barriers:
            having = ", ".join(name for name, other in METHODS.items() if other.may_have_barriers)
            raise SettingError("parallel.barriers", True, f"false with {self.name}; true only with {having}")
        require_choice("weight_grad", weight_grad, WEIGHT_GRADIENTS)
        if weight_grad == "merged" and self.placed_weight_gradients:
            raise SettingError("weight_grad", weight_grad, f"{self.name} places the weight gradients itself")


def _one_microbatch(size: ScheduleSize, stage: int) -> int:
    return 1


def _complete_minibatch(size: ScheduleSize, stage: int) -> int:
    return size.microbatches * size.chunks


def _complete_and_next_minibatch(size: ScheduleSize, stage: int) -> int:
    """A complete minibatch, and the microbatches of the next one that are in flight."""
    return min(size.microbatches + size.stages - 1 - stage, size.microbatches * size.minibatches)


def _in_flight_with_flush(size: ScheduleSize, stage: int) -> int:
    return min(size.stages - stage, size.microbatches)


def _in_flight_without_flush(size: ScheduleSize, stage: int) -> int:
    """Kang 2019, Table 1: K - k + 1 minibatches at device k, which counts from 1."""
    return min(size.stages - stage, size.microbatches * size.minibatches)


def _as_first_stage(size: ScheduleSize, stage: int) -> int:
    return min(size.stages, size.microbatches)


def _interleaved(size: ScheduleSize, stage: int) -> int:
    return min(orders.interleaved_warm_up(size, stage) + 1, size.microbatches * size.chunks)


_METHODS = (
    Method("sequential", "one minibatch at a time", orders.gpipe, EXACT, _one_microbatch),
    Method(
        "gpipe",
        "all forward passes of a minibatch's microbatches, then all backward passes",
        orders.gpipe,
        EXACT,
        _complete_minibatch,
        cuts_minibatches=True,
    ),
    Method(
        "1f1b",
        "one forward and one backward pass in turn, empty after every minibatch",
        orders.one_forward_one_backward,
        EXACT,
        _in_flight_with_flush,
        cuts_minibatches=True,
    ),
    Method(
        "interleaved",
        "1f1b over several chunks of layers per rank",
        orders.interleaved,
        EXACT,
        _interleaved,
        cuts_minibatches=True,
        chunked=True,
    ),
    Method(
        "zb-h1",
        "1f1b with the weight gradients moved to where the pipeline would wait",
        orders.zero_bubble_h1,
        EXACT,
        _as_first_stage,
        cuts_minibatches=True,
        placed_weight_gradients=True,
    ),
    Method(
        "ddg",
        "delayed gradients: a forward pass, then the backward pass of an earlier minibatch",
        orders.delayed_gradients,
        STASHED,
        _in_flight_without_flush,
        placed_messages=True,
        may_have_barriers=True,
    ),
    Method(
        "fr",
        "features replay: as ddg, but keeps only inputs and recomputes with current weights",
        orders.features_replay,
        CURRENT,
        _one_microbatch,
        placed_messages=True,
        may_have_barriers=True,
        recomputes=True,
    ),
    Method(
        "pipedream",
        "1f1b over minibatches that is never empty, with stashed weights",
        orders.pipedream,
        STASHED,
        _in_flight_without_flush,
    ),
    Method(
        "pipedream-vsync",
        "pipedream with vertical sync: all stages read the same version",
        orders.pipedream,
        VERTICAL_SYNC,
        _in_flight_without_flush,
    ),
    Method(
        "pipedream-2bw",
        "1f1b over microbatches that is never empty, with two weight versions",
        orders.pipedream_2bw,
        DOUBLE_BUFFERED,
        _in_flight_without_flush,
        cuts_minibatches=True,
        fills_pipeline=True,
    ),
    Method(
        "vanilla",
        "as pipedream without stashed weights",
        orders.pipedream,
        CURRENT,
        _in_flight_without_flush,
    ),
    Method(
        "spectrain",
        "as vanilla with predicted weights",
        orders.pipedream,
        PREDICTED,
        _in_flight_without_flush,
    ),
    Method(
        "lwp",
        "as vanilla, but forward passes predict the weights of the backward pass",
        orders.pipedream,
        LINEAR_PREDICTION,
        _in_flight_without_flush,
    ),
    Method(
        "pipemare",
        "as vanilla, but backward passes estimate the weights of the forward pass",
        orders.pipedream,
        DISCREPANCY_CORRECTED,
        _in_flight_without_flush,
    ),
)


class _Methods(Mapping[str, Method]):
    """Methods by name: those of hybridnn, then those of installed packages, which are looked for when needed."""

    def __init__(self, own: Sequence[Method]) -> None:
        self._own = {method.name: method for method in own}

    @cached_property
    def _all(self) -> dict[str, Method]:
        # Imported here: most commands need no installed method.
        from hybridnn.utils.plugins import installed

        others = installed("parallel.method", "pipeline method", lambda found: isinstance(found, Method), self._own)
        return self._own | dict(others)

    def __getitem__(self, name: str) -> Method:
        return self._own[name] if name in self._own else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


METHODS: Mapping[str, Method] = _Methods(_METHODS)
OWN_METHODS = frozenset(method.name for method in _METHODS)

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

    Raises
    ------
    SettingError
        If the method does not exist or does not support the arguments.
    """
    chosen, size = find_method(method), ScheduleSize(stages, minibatches, microbatches, chunks, barriers)
    chosen.require(size, weight_grad)
    size = _in_pipeline(size)
    lists = [chosen.order(size, stage) for stage in range(stages)]
    activations = chosen.activations
    if weight_grad == "merged" and microbatches > 1:
        lists = [orders.merge_weight_gradients(order, size.chunks) for order in lists]
        activations = _complete_minibatch if chosen.exact else _complete_and_next_minibatch
    schedule = _schedule(chosen.name, size, chosen.policy, lists, activations)
    return _with_messages(schedule) if messages and not chosen.placed_messages else schedule


def forward_only(stages: int, minibatches: int, chunks: int = 1) -> Schedule:
    """Build the schedule of an evaluation: pipelined forward passes with the initial weights."""
    size = ScheduleSize(stages, minibatches, 1, chunks)
    _require_whole(size)
    size = _in_pipeline(size)
    lists = [orders.evaluation(size, stage) for stage in range(stages)]
    return _with_messages(_schedule("evaluation", size, INITIAL, lists, _one_microbatch))


def _schedule(
    method: str,
    size: ScheduleSize,
    policy: WeightPolicy,
    lists: Sequence[Sequence[Instruction]],
    activations: ActivationBound,
) -> Schedule:
    bound = tuple(activations(size, stage) for stage in range(size.stages))
    counts = size.stages, size.chunks, size.minibatches, size.microbatches
    return Schedule(method, *counts, policy, tuple(map(tuple, lists)), bound)


def _require_whole(size: ScheduleSize) -> None:
    require_whole("parallel.pipeline", size.stages, 1)
    require_whole("minibatches", size.minibatches, 1)
    require_whole("parallel.microbatches", size.microbatches, 1)
    require_whole("parallel.chunks", size.chunks, 1)


def _in_pipeline(size: ScheduleSize) -> ScheduleSize:
    """The size with one chunk in a pipeline of one stage: a rank would have to send to itself."""
    return replace(size, chunks=1) if size.stages == 1 else size


def _with_messages(schedule: Schedule) -> Schedule:
    """Add loads, and messages where there are several stages."""
    schedule = with_loads(schedule)
    if schedule.stages == 1:
        return schedule
    from hybridnn.pipeline.schedules.compiled_schedule import place_messages

    return place_messages(schedule)
