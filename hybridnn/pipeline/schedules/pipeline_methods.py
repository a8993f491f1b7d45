"""The methods of pipelines of several stages: one row each."""

from __future__ import annotations

from hybridnn.pipeline.schedules import computation_orders as orders
from hybridnn.pipeline.schedules.schedule import ActivationBound, Method, ScheduleSize
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

SEVERAL = range(2, 1 << 30)
"""Numbers of chunks of a stage."""


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


def merged_activations(method: Method) -> ActivationBound:
    """The bound of a method with one weight-gradient product over all microbatches of a minibatch."""
    return _complete_minibatch if method.exact else _complete_and_next_minibatch


PIPELINE_METHODS = (
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
        chunks=SEVERAL,
        whole_groups=True,
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
