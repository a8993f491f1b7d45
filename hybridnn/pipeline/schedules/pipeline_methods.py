"""The methods of pipelines of several stages: one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridnn.pipeline.schedules import computation_orders as orders
from hybridnn.pipeline.schedules import wave_orders
from hybridnn.pipeline.schedules.placements import WAVES
from hybridnn.pipeline.schedules.schedule import ActivationBound, Method, Order, ScheduleSize
from hybridnn.pipeline.schedules.weight_policies import (
    CURRENT,
    DISCREPANCY_CORRECTED,
    DOUBLE_BUFFERED,
    EXACT,
    LINEAR_PREDICTION,
    PREDICTED,
    STASHED,
    VERTICAL_SYNC,
)

SEVERAL, EVEN = range(2, 1 << 30), range(2, 1 << 30, 2)
"""Numbers of chunks of a stage."""

V: dict[str, Any] = {"chunks": range(2, 3), "placement": WAVES}


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


def _most_microbatches(of_stages: Callable[[int], int]) -> ActivationBound:
    """A bound in microbatches with all their chunks, equal on all stages."""
    return lambda size, stage: min(of_stages(size.stages), size.microbatches) * size.chunks


def _interleaved(size: ScheduleSize, stage: int) -> int:
    return min(orders.interleaved_warm_up(size, stage) + 1, size.microbatches * size.chunks)


def merged_activations(method: Method) -> ActivationBound:
    """The bound of a method with one weight-gradient product over all microbatches of a minibatch."""
    return _complete_minibatch if method.exact else _complete_and_next_minibatch


def _exact(
    name: str, summary: str, order: Order, activations: ActivationBound, *, placed: bool = False, **options: Any
) -> Method:
    """A method with one weight version; `placed` is whether its order has the weight gradients."""
    given = {"cuts_minibatches": True, "placed_weight_gradients": placed, **options}
    return Method(name, summary, order, EXACT, activations, **given)


PIPELINE_METHODS = (
    _exact(
        "gpipe",
        "all forward passes of a minibatch's microbatches, then all backward passes",
        orders.gpipe,
        _complete_minibatch,
    ),
    _exact(
        "1f1b",
        "one forward and one backward pass in turn, empty after every minibatch",
        orders.one_forward_one_backward,
        _in_flight_with_flush,
    ),
    _exact(
        "eager-1f1b",
        "1f1b with twice the warm-up, which hides messages",
        orders.eager_one_forward_one_backward,
        lambda size, stage: min(2 * (size.stages - stage) - 1, size.microbatches),
    ),
    _exact(
        "interleaved",
        "1f1b over several chunks of layers per rank",
        orders.interleaved,
        _interleaved,
        chunks=SEVERAL,
        whole_groups=True,
    ),
    _exact(
        "looped-bfs",
        "all microbatches through one chunk after the other, then back",
        orders.looped_breadth_first,
        _complete_minibatch,
        chunks=SEVERAL,
    ),
    _exact(
        "zb-h1",
        "1f1b with the weight gradients moved to where the pipeline would wait",
        orders.zero_bubble_h1,
        _most_microbatches(lambda stages: stages),
        placed=True,
    ),
    _exact(
        "zb-h2",
        "zb-h1 with twice the activations and without a bubble: each stage updates alone",
        orders.zero_bubble_h2,
        _most_microbatches(lambda stages: 2 * stages - 1),
        placed=True,
        updates_alone=True,
    ),
    _exact(
        "interleaved-zb",
        "interleaved with the weight gradients moved to where the pipeline would wait",
        orders.interleaved_zero_bubble,
        lambda size, stage: min(_interleaved(size, stage) + stage, size.microbatches * size.chunks),
        placed=True,
        chunks=SEVERAL,
        whole_groups=True,
    ),
    _exact(
        "zb-v",
        "no bubble with the activations of 1f1b; layers down the stages and up, each updates alone",
        wave_orders.zb_v,
        _most_microbatches(lambda stages: stages),
        placed=True,
        updates_alone=True,
        microbatches_per_stage=2,
        **V,
    ),
    _exact(
        "dualpipe-v",
        "half of DualPipe; layers down the stages and up",
        wave_orders.dualpipe_v,
        lambda size, stage: min(2 * size.stages + 1, 2 * size.microbatches),
        placed=True,
        microbatches_per_stage=2,
        **V,
    ),
    _exact(
        "v-half",
        "half of the activations of 1f1b; layers down the stages and up",
        wave_orders.v_half,
        _most_microbatches(lambda stages: (stages + 2) // 2),
        placed=True,
        **V,
    ),
    _exact(
        "v-min",
        "a third of the activations of 1f1b; layers down the stages and up",
        wave_orders.v_min,
        _most_microbatches(lambda stages: (stages + 4) // 3),
        placed=True,
        **V,
    ),
    _exact(
        "hanayo",
        "1f1b over chunks of layers that lie in waves, down the stages and up",
        wave_orders.hanayo,
        _most_microbatches(lambda stages: 2 * stages - 1),
        chunks=EVEN,
        placement=WAVES,
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
        lambda size, stage: 1,
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
        microbatches_per_stage=1,
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
