"""The methods of pipelines of several stages: one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridnn.pipeline.schedules import computation_orders as orders
from hybridnn.pipeline.schedules import wave_orders as waves
from hybridnn.pipeline.schedules import weight_policies as policies
from hybridnn.pipeline.schedules.placements import WAVES
from hybridnn.pipeline.schedules.schedule import ActivationBound, Method, Order, ScheduleSize


def _complete_minibatch(size: ScheduleSize, stage: int) -> int:
    return size.microbatches * size.chunks


def _complete_and_next_minibatch(size: ScheduleSize, stage: int) -> int:
    """A complete minibatch, and the microbatches of the next one that are in flight."""
    return min(size.microbatches + size.stages - 1 - stage, size.microbatches * size.minibatches)


def _in_flight(size: ScheduleSize, stage: int) -> int:
    """Kang 2019, Table 1: K - k + 1 minibatches at device k, which counts from 1."""
    return min(size.stages - stage, size.microbatches * size.minibatches)


def _after_warm_up(of_next: int) -> ActivationBound:
    """As many microbatches more than on the next stage; one on the last."""
    return lambda size, stage: min(of_next * (size.stages - 1 - stage) + 1, size.microbatches)


def _in_word(size: ScheduleSize, stage: int) -> int:
    word = size.order[stage] if size.order else ""
    last = "W" if "W" in word else "B"
    counts = (word[:end].count("F") - word[:end].count(last) for end in range(len(word) + 1))
    return max(counts) if word else _after_warm_up(1)(size, stage)


def _interleaved(late: int) -> ActivationBound:
    """The warm-up and the next pass, and weight gradients that are so many passes late, times k."""
    warm_up = orders.interleaved_warm_up
    return lambda size, stage: min(warm_up(size, stage) + 1 + late * stage, size.microbatches * size.chunks)


def _everywhere(most: Callable[[int], float]) -> ActivationBound:
    """As many microbatches on every stage, by the number of stages; half a one is one chunk of two."""
    return lambda size, stage: int(min(most(size.stages), size.microbatches) * size.chunks)


def _in_waves(size: ScheduleSize, stage: int) -> int:
    most = size.chunks * size.stages + (stage if size.chunks == 2 else size.stages)
    return min(most, size.microbatches * size.chunks)


def merged_activations(method: Method) -> ActivationBound:
    """The bound of a method with one weight-gradient product over all microbatches of a minibatch."""
    return _complete_minibatch if method.exact else _complete_and_next_minibatch


def _exact(name: str, summary: str, order: Order, activations: ActivationBound, **options: Any) -> Method:
    return Method(name, summary, order, policies.EXACT, activations, cuts_minibatches=True, **options)


def _in_v(name: str, summary: str, order: Order, most: Callable[[int], float], **options: Any) -> Method:
    return _exact(name, summary, order, _everywhere(most), **LATE, chunks=range(2, 3), placement=WAVES, **options)


def _over_minibatches(name: str, summary: str, policy: policies.WeightPolicy) -> Method:
    return Method(name, summary, orders.pipedream, policy, _in_flight)


SEVERAL = range(2, 1 << 30)  # numbers of chunks
LATE: dict[str, Any] = {"placed_weight_gradients": True}
IN_GROUPS: dict[str, Any] = {"chunks": SEVERAL, "whole_groups": True}
BARRIERS: dict[str, Any] = {"placed_messages": True, "may_have_barriers": True}

PIPELINE_METHODS = (
    _exact("gpipe", "all forward passes of a minibatch, then all backward passes", orders.gpipe, _complete_minibatch),
    _exact("1f1b", "one forward, one backward pass in turn", orders.one_forward_one_backward, _after_warm_up(1)),
    _exact("eager-1f1b", "1f1b with a warm-up twice as long", orders.eager_1f1b, _after_warm_up(2)),
    _exact("interleaved", "1f1b over several chunks", orders.interleaved, _interleaved(0), **IN_GROUPS),
    _exact("looped-bfs", "gpipe over several chunks", orders.looped_bfs, _complete_minibatch, chunks=SEVERAL),
    _exact("zb-h1", "1f1b with late weight gradients", orders.zero_bubble_h1, _everywhere(lambda K: K), **LATE),
    _exact("zb-h2", "no bubble", orders.zero_bubble_h2, _everywhere(lambda K: 2 * K - 1), **LATE, updates_alone=True),
    _exact("interleaved-zb", "zb-h1 over several chunks", orders.interleaved_zb, _interleaved(1), **LATE, **IN_GROUPS),
    _in_v("zb-v", "no bubble; a V", waves.zb_v, lambda K: K, microbatches_per_stage=2, updates_alone=True),
    _in_v("dualpipe-v", "half of DualPipe; a V", waves.dualpipe_v, lambda K: K + 0.5, microbatches_per_stage=2),
    _in_v("v-half", "half of the activations of 1f1b; a V", waves.v_half, lambda K: (K + 2) // 2),
    _in_v("v-min", "a third of the activations of 1f1b; a V", waves.v_min, lambda K: (K + 4) // 3),
    _exact("hanayo", "1f1b in waves", waves.hanayo, _in_waves, chunks=range(2, 1 << 30, 2), placement=WAVES),
    _exact("searched", "the fastest order found for the times of the stages", orders.in_word, _in_word, ordered=True),
    Method(
        "ddg",
        "delayed gradients: a forward pass, then the backward pass of an earlier minibatch",
        orders.delayed_gradients,
        policies.STASHED,
        _in_flight,
        **BARRIERS,
    ),
    Method(
        "fr",
        "features replay: as ddg, but keeps only inputs and recomputes with current weights",
        orders.features_replay,
        policies.CURRENT,
        lambda size, stage: 1,
        **BARRIERS,
        recomputes=True,
    ),
    _over_minibatches("pipedream", "1f1b over minibatches, never empty, with stashed weights", policies.STASHED),
    _over_minibatches(
        "pipedream-vsync", "pipedream with vertical sync: all stages read the same version", policies.VERTICAL_SYNC
    ),
    Method(
        "pipedream-2bw",
        "1f1b over microbatches that is never empty, with two weight versions",
        orders.pipedream_2bw,
        policies.DOUBLE_BUFFERED,
        _in_flight,
        cuts_minibatches=True,
        microbatches_per_stage=1,
    ),
    _over_minibatches("vanilla", "as pipedream without stashed weights", policies.CURRENT),
    _over_minibatches("spectrain", "as vanilla with predicted weights", policies.PREDICTED),
    _over_minibatches("lwp", "as vanilla; forward passes predict the backward pass's", policies.LINEAR_PREDICTION),
    _over_minibatches("pipemare", "as vanilla; backward passes estimate the forward's", policies.DISCREPANCY_CORRECTED),
)
