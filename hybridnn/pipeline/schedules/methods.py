"""Schedules by the name of their method.

The pipeline methods: each an order of computations and a rule for the weights that are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from hybridnn.errors import SettingError
from hybridnn.pipeline.schedules import orders
from hybridnn.pipeline.schedules.messages import place_messages
from hybridnn.pipeline.schedules.orders import Order, ScheduleSize
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.pipeline.schedules.weight_policies import (
    CURRENT,
    EXACT,
    PREDICTED,
    STASHED,
    VERTICAL_SYNC,
    WeightPolicy,
    WeightRead,
)
from hybridnn.utils.checks import require_choice, require_whole

Activations = Callable[[ScheduleSize, int], int]
"""From (extent, stage) to the most microbatches whose activations the stage holds at a time."""


@dataclass(frozen=True)
class Method:
    """A pipeline method.

    Attributes
    ----------
    name : str
    summary : str
        One line for people.
    order : callable
        From (extent, stage) to the stage's computations.
    policy : WeightPolicy
        Which weights each pass reads.
    activations : callable
        From (extent, stage) to the most microbatches whose activations the stage holds at a time.
    exact : bool
        Every minibatch is complete before the next one begins.
    cuts_minibatches : bool
        A minibatch may be cut into microbatches.
    chunked : bool
        A rank owns several chunks of layers.
    predicts : bool
        Reads predicted weights, which needs an optimizer with momentum.
    placed_weight_gradients : bool
        The order itself says when weight gradients are computed.
    placed_messages : bool
        The order itself says where loads and messages stand.
    synchronized : WeightPolicy or None
        The policy with vertical synchronization, where the method has that option.
    """

    name: str
    summary: str
    order: Order
    policy: WeightPolicy
    activations: Activations
    exact: bool = False
    cuts_minibatches: bool = False
    chunked: bool = False
    predicts: bool = False
    placed_weight_gradients: bool = False
    placed_messages: bool = False
    synchronized: WeightPolicy | None = None


def one_part(extent: ScheduleSize, stage: int) -> int:
    """One microbatch at a time."""
    return 1


def whole_minibatch(extent: ScheduleSize, stage: int) -> int:
    """All microbatches of a minibatch, in all chunks."""
    return extent.microbatches * extent.chunks


def _microbatches_on_their_way(extent: ScheduleSize, stage: int) -> int:
    return min(extent.stages - stage, extent.microbatches)


def _minibatches_on_their_way(extent: ScheduleSize, stage: int) -> int:
    """Kang 2019, Table 1: K - k + 1 minibatches at device k, which counts from 1."""
    return min(extent.stages - stage, extent.minibatches)


def _as_first_stage(extent: ScheduleSize, stage: int) -> int:
    return min(extent.stages, extent.microbatches)


def _interleaved(extent: ScheduleSize, stage: int) -> int:
    return min(orders.interleaved_warm_up(extent, stage) + 1, extent.microbatches * extent.chunks)


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method("sequential", "one minibatch at a time", orders.gpipe, EXACT, one_part, exact=True),
            Method(
                "gpipe",
                "all forward passes of a minibatch's microbatches, then all backward passes",
                orders.gpipe,
                EXACT,
                whole_minibatch,
                exact=True,
                cuts_minibatches=True,
            ),
            Method(
                "1f1b",
                "one forward and one backward pass in turn, empty after every minibatch",
                orders.one_forward_one_backward,
                EXACT,
                _microbatches_on_their_way,
                exact=True,
                cuts_minibatches=True,
            ),
            Method(
                "interleaved",
                "1f1b over several chunks of layers per rank",
                orders.interleaved,
                EXACT,
                _interleaved,
                exact=True,
                cuts_minibatches=True,
                chunked=True,
            ),
            Method(
                "zb-h1",
                "1f1b with the weight gradients moved to where the pipeline would wait",
                orders.zero_bubble_h1,
                EXACT,
                _as_first_stage,
                exact=True,
                cuts_minibatches=True,
                placed_weight_gradients=True,
            ),
            Method(
                "ddg",
                "delayed gradients: one forward pass, then the backward passes of all stages at once",
                orders.delayed_gradients,
                STASHED,
                _minibatches_on_their_way,
                placed_messages=True,
            ),
            Method(
                "fr",
                "features replay: as ddg, but keeps inputs only and recomputes with the current weights",
                orders.features_replay,
                CURRENT,
                one_part,
                placed_messages=True,
            ),
            Method(
                "pipedream",
                "1f1b over minibatches that is never empty, with stashed weights",
                orders.pipedream,
                STASHED,
                _minibatches_on_their_way,
                synchronized=VERTICAL_SYNC,
            ),
            Method(
                "vanilla",
                "as pipedream without stashed weights",
                orders.pipedream,
                CURRENT,
                _minibatches_on_their_way,
            ),
            Method(
                "spectrain",
                "as vanilla with predicted weights",
                orders.pipedream,
                PREDICTED,
                _minibatches_on_their_way,
                predicts=True,
            ),
        )
    }
)
"""All methods by name."""


WEIGHT_GRADIENTS = ("per-microbatch", "merged")
"""How the weight gradients of a minibatch's microbatches are taken: one by one, or as one product."""

INITIAL = WeightPolicy(
    "initial", lambda *position: WeightRead(0), lambda *position: WeightRead(0), lambda stage, stages: 1
)
"""All passes read the weights there are, which nothing updates: evaluation."""


def find_method(name: str) -> Method:
    """The method of a name.

    Raises
    ------
    SettingError
        If there is none; the message names the nearest.
    """
    if name in METHODS:
        return METHODS[name]
    nearest = get_close_matches(str(name), METHODS, n=1, cutoff=0.0)[0]
    raise SettingError("parallel.method", name, f"did you mean {nearest}? Allowed are " + ", ".join(METHODS))


def too_few_stages(method: str) -> SettingError:
    """The error of a method that was asked for on one stage, where it would not be what runs."""
    more = "start it on more ranks, for example with -n 2, with parallel.pipeline at least 2 where that is set"
    return SettingError("parallel.method", method, f"needs at least 2 stages, and there is 1: {more}")


def make_schedule(
    method: str,
    *,
    stages: int,
    minibatches: int,
    microbatches: int = 1,
    chunks: int = 1,
    weight_grad: str = "per-microbatch",
    vertical_sync: bool = False,
    messages: bool = True,
) -> Schedule:
    """Build the schedule of a method.

    Parameters
    ----------
    method : str
        Name of one of `METHODS`.
    stages : int
        Ranks along the pipeline, K.
    minibatches : int
        Minibatches until the pipeline is empty, T.
    microbatches : int
        Parts that each minibatch is cut into, M.
    chunks : int
        Parts of the layers per rank, v. A pipeline of one stage has one chunk in any case.
    weight_grad : str
        ``"per-microbatch"``, or ``"merged"``: one product over all microbatches of a minibatch.
    vertical_sync : bool
        Every stage reads the weight version that the first stage's forward pass read.
    messages : bool
        Place loads and messages, which takes most of the time; to time the computations alone, they are not needed.
        Methods whose order itself says where they stand have them in any case.

    Returns
    -------
    Schedule

    Raises
    ------
    SettingError
        If the method does not exist or cannot do what is asked.
    """
    chosen = find_method(method)
    _require_counts(chosen, stages, minibatches, microbatches, chunks)
    require_choice("parallel.weight_grad", weight_grad, WEIGHT_GRADIENTS)
    if weight_grad == "merged" and chosen.placed_weight_gradients:
        raise SettingError("parallel.weight_grad", weight_grad, f"{method} places the weight gradients itself")
    policy = chosen.policy
    if vertical_sync:
        if chosen.synchronized is None:
            having = ", ".join(name for name, other in METHODS.items() if other.synchronized is not None)
            raise SettingError("parallel.vertical_sync", vertical_sync, f"only with {having}, not with {method}")
        policy = chosen.synchronized

    extent = ScheduleSize(stages, minibatches, microbatches, 1 if stages == 1 else chunks)
    merged = weight_grad == "merged" and microbatches > 1
    activations = whole_minibatch if merged else chosen.activations
    schedule = _schedule(method, extent, policy, chosen.order, activations, merged=merged)
    return place_messages(schedule) if messages and not chosen.placed_messages else schedule


def forward_only(stages: int, minibatches: int, chunks: int = 1) -> Schedule:
    """Build the schedule of an evaluation: forward passes alone, pipelined, with the weights there are.

    Parameters
    ----------
    stages, minibatches, chunks : int
        As in `make_schedule`.

    Returns
    -------
    Schedule

    Raises
    ------
    SettingError
        If a count is not a whole number, 1 or more.
    """
    _require_whole(stages, minibatches, 1, chunks)
    extent = ScheduleSize(stages, minibatches, 1, 1 if stages == 1 else chunks)
    return place_messages(_schedule("evaluation", extent, INITIAL, orders.evaluation, one_part, merged=False))


def _schedule(
    method: str,
    extent: ScheduleSize,
    policy: WeightPolicy,
    order: Order,
    activations: Activations,
    *,
    merged: bool,
) -> Schedule:
    lists = [order(extent, stage) for stage in range(extent.stages)]
    if merged:
        lists = [orders.merge_weight_gradients(one, extent.chunks) for one in lists]
    return Schedule(
        method,
        extent.stages,
        extent.chunks,
        extent.minibatches,
        extent.microbatches,
        policy,
        tuple(map(tuple, lists)),
        tuple(activations(extent, stage) for stage in range(extent.stages)),
    )


def _require_whole(stages: int, minibatches: int, microbatches: int, chunks: int) -> None:
    require_whole("parallel.pipeline", stages, 1)
    require_whole("minibatches", minibatches, 1)
    require_whole("parallel.microbatches", microbatches, 1)
    require_whole("parallel.chunks", chunks, 1)


def _require_counts(method: Method, stages: int, minibatches: int, microbatches: int, chunks: int) -> None:
    _require_whole(stages, minibatches, microbatches, chunks)
    if microbatches > 1 and not method.cuts_minibatches:
        raise SettingError("parallel.microbatches", microbatches, f"1 with {method.name}, which cuts no minibatches")
    if chunks > 1 and not method.chunked:
        having = ", ".join(name for name, other in METHODS.items() if other.chunked)
        raise SettingError("parallel.chunks", chunks, f"1 with {method.name}; more only with {having}")
    if method.chunked and chunks < 2:
        raise SettingError("parallel.chunks", chunks, f"2 or more with {method.name}")
    if method.chunked and microbatches % stages:
        allowed = f"a multiple of the {stages} stages with {method.name}"
        raise SettingError("parallel.microbatches", microbatches, allowed)
