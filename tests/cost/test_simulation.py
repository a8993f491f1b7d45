"""Simulated steps and scaling curves on machines on which their times are computed by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from hybridnn.cost.cost_plots import SHARE_COLORS, draw_scaling
from hybridnn.cost.machine import Machine
from hybridnn.cost.machine_file import read_machine
from hybridnn.cost.prediction.predict import predict
from hybridnn.cost.prediction.workload import Workload
from hybridnn.cost.simulation import (
    UNDISTURBED,
    Disturbance,
    ScalingCurve,
    ScalingPoint,
    SimulatedStep,
    default_minibatches,
    scaling_curve,
    simulate_layout,
)
from hybridnn.errors import SettingError
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.utils.figures import COLORS, figure_bytes
from reference.machines import make_machine
from reference.pictures import least_points

WORKLOAD = Workload(MLP([16] * 9), samples=640, batch_size=64, optimizer=SGD(momentum=0.0))
"""Eight layers of 16 x 16 weights and a minibatch of 64 samples."""

plain_machine = partial(make_machine, multiply_add=1e-6)

PASS = 16 * 16 * 1e-6
"""Seconds of a product of one layer per sample."""


def simulated(
    layout: Layout,
    machine: Machine,
    disturbance: Disturbance = UNDISTURBED,
    minibatches: int = 0,
    workload: Workload = WORKLOAD,
) -> SimulatedStep:
    return simulate_layout(workload, layout, machine, minibatches or default_minibatches(layout), disturbance)


def test_one_rank() -> None:
    """Three products per layer and sample, and two in the first, which needs no gradient of its input."""
    step = simulated(Layout(((1, 1),), (8,)), plain_machine())
    assert step.seconds_per_step == pytest.approx(64 * PASS * (3 * 8 - 1))
    assert step.seconds_per_epoch == pytest.approx(10 * step.seconds_per_step)
    assert step.stages[0].computing == pytest.approx(step.seconds_per_step)
    assert step.instructions["forward"] == pytest.approx(64 * PASS * 8)


@pytest.mark.parametrize("factor", [1.0, 1.5, 4.0])
@pytest.mark.parametrize("slow", [0, 1, 3])
def test_a_slow_stage_is_the_bottleneck(slow: int, factor: float) -> None:
    """GPipe: a microbatch through all stages and back, and between these m - 1 more through the slowest, twice."""
    layout = Layout(((1, 1),) * 4, (2, 2, 2, 2), method="gpipe", microbatches=8)
    step = simulated(layout, plain_machine(), Disturbance(slow={slow: factor}))
    forward = [2 * 8 * PASS * (factor if stage == slow else 1) for stage in range(4)]
    backward = [seconds * 2 for seconds in forward]
    backward[0] *= 3 / 4
    assert step.seconds_per_step == pytest.approx(sum(forward) + sum(backward) + 7 * (max(forward) + max(backward)))


def test_a_slow_replica_delays_the_others() -> None:
    """They wait for it where the gradients are summed, and compute no longer than before."""
    layout = Layout(((4, 1),), (8,))
    step = simulated(layout, plain_machine(), Disturbance(slow={2: 3.0}))
    alone = 16 * PASS * 23
    assert step.seconds_per_step == pytest.approx(3 * alone)
    assert step.times.busy[0].tolist() == pytest.approx([alone, alone, 3 * alone, alone])
    assert step.stages[0].bubble == pytest.approx(3 / 4 * 2 * alone)


def test_a_slow_rank_of_a_model_group_delays_its_replica() -> None:
    layout = Layout(((1, 4),), (8,))
    calm = simulated(layout, plain_machine())
    slow = simulated(layout, plain_machine(), Disturbance(slow={3: 3.0}))
    assert slow.seconds_per_step == pytest.approx(3 * calm.seconds_per_step)


def test_stages_of_different_widths() -> None:
    """One rank feeds two, of which the second is slow: the first stage waits for both gradients."""
    layout = Layout(((1, 1), (2, 1)), (4, 4), method="gpipe", microbatches=1)
    step = simulated(layout, plain_machine(), Disturbance(slow={2: 5.0}))
    first, second = 64 * PASS * 4, 32 * PASS * 4
    assert step.seconds_per_step == pytest.approx(first + 5 * 3 * second + first * 7 / 4)


def test_jitter_costs_what_the_slowest_takes() -> None:
    """Batch parallelism: the step ends with the slowest rank, forward and backward together."""
    layout = Layout(((16, 1),), (8,))
    disturbance = Disturbance(0.2, seed=3)
    step = simulated(layout, plain_machine(), disturbance)
    forward, backward = 4 * PASS * 8, 4 * PASS * 15
    program = step.times.program
    of_ranks = [
        sum(
            seconds * disturbance.factors(rank, instruction, 1)[0]
            for seconds, instruction in zip((forward, backward), program.computations, strict=False)
        )
        for rank in range(16)
    ]
    assert step.seconds_per_step == pytest.approx(max(of_ranks))
    assert step.stages[0].computing == pytest.approx(np.mean(of_ranks))


def test_a_thousand_stages() -> None:
    """1F1B with 256 microbatches on 4,096 ranks: the last stage is always busy once its first microbatch has arrived.

    The gradient of the last microbatch then passes back; the first layer needs no gradient of its input.
    """
    stages, microbatches = 1024, 256
    workload = Workload(MLP([16] * (stages + 1)), 8192, 8192, optimizer=SGD(momentum=0.0), classification=False)
    layout = Layout(((4, 1),) * stages, (1,) * stages, method="1f1b", microbatches=microbatches)
    step = simulated(layout, plain_machine(nodes=512, ranks_per_node=8), workload=workload)
    forward = 8 * PASS
    backward = 2 * forward
    filling = (stages - 1) * forward
    assert step.seconds == pytest.approx(
        filling + microbatches * (forward + backward) + (stages - 2) * backward + backward / 2
    )
    assert step.stages[stages // 2].computing == pytest.approx(microbatches * (forward + backward))


def test_reduction_over_links() -> None:
    """Two ranks exchange their gradients: a message with all of them each way, or two with half of them."""
    layout = Layout(((2, 1),), (8,))
    machine = plain_machine(alpha=1e-3, beta=1e-6)
    nbytes = 4 * (8 * (16 * 16 + 16) + 1)
    step = simulated(layout, machine)
    reduction = min(1e-3 + 1e-6 * nbytes, 2e-3 + 1e-6 * nbytes)
    assert step.stages[0].communication == pytest.approx(reduction)
    assert step.seconds_per_step == pytest.approx(32 * PASS * 23 + reduction)


@pytest.mark.parametrize("method", ["pipedream", "vanilla"])
def test_step_of_overlapping_minibatches_is_what_one_more_adds(method: str) -> None:
    layout = Layout(((1, 1),) * 4, (2, 2, 2, 2), method=method)
    step = simulated(layout, plain_machine())
    assert step.minibatches == 16
    both = 64 * PASS * 2 * 3
    assert step.seconds_per_step == pytest.approx(both)
    assert step.mean().total == pytest.approx(step.seconds_per_step)
    assert step.seconds_per_epoch == pytest.approx(step.seconds - 6 * both)


def test_parts_add_up_to_the_step() -> None:
    layout = Layout(((2, 2), (2, 1)), (4, 4), method="1f1b", microbatches=4)
    machine = plain_machine(alpha=1e-4, beta=1e-8)
    for disturbance in (UNDISTURBED, Disturbance(0.1, {1: 2.0})):
        step = simulated(layout, machine, disturbance)
        for breakdown in (*step.stages, step.mean()):
            assert breakdown.total == pytest.approx(step.seconds_per_step)
            assert min(breakdown.parts.values()) >= 0
        mean = step.mean()
        assert mean.computing == pytest.approx((4 * step.stages[0].computing + 2 * step.stages[1].computing) / 6)
        busy = sum(step.instructions.values())
        assert mean.computing < busy < mean.computing + mean.communication


def test_refused_simulations() -> None:
    layout = Layout(((4, 1),) * 2, (4, 4), method="1f1b", microbatches=8)
    with pytest.raises(SettingError, match="slow = 8: a rank from 0 to 7"):
        simulated(layout, plain_machine(), Disturbance(slow={8: 2.0}))
    with pytest.raises(SettingError, match="minibatches = 0"):
        simulate_layout(WORKLOAD, layout, plain_machine(), 0)


def test_more_ranks_than_the_machine_has_take_turns() -> None:
    layout = Layout(((8, 1),), (8,))
    enough, half = (simulated(layout, plain_machine(ranks_per_node=ranks)) for ranks in (8, 4))
    assert half.seconds == pytest.approx(2 * enough.seconds)


def test_batch_ranks_without_samples_wait_for_the_others() -> None:
    """Three samples are three ranks' work, on however many ranks, and disturbed or not."""
    few = replace(WORKLOAD, batch_size=3)
    three, many = (simulated(Layout(((ranks, 1),), (8,)), plain_machine(), workload=few) for ranks in (3, 16))
    assert many.seconds == pytest.approx(three.seconds) == pytest.approx(16 * 16 * 1e-6 * 23)
    slow = simulated(Layout(((16, 1),), (8,)), plain_machine(), Disturbance(slow={0: 2.0}), workload=few)
    assert slow.seconds > many.seconds


def test_rounding_leaves_no_bubble() -> None:
    machine = plain_machine(alpha=1e-5 / 3, beta=1e-9 / 7)
    for ranks in range(1, 33):
        for disturbance in (Disturbance(), Disturbance(jitter=0.1)):
            step = simulated(Layout(((ranks, 1),), (8,)), machine, disturbance)
            assert all(stage.bubble >= 0 for stage in step.stages)
            assert disturbance or step.mean().bubble == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_prediction_and_a_simulation_agree(method: str) -> None:
    kind = METHODS[method]
    chunks = 1 + kind.chunked
    layout = Layout(
        ((2, 1), (2, 1)),
        (8 // (2 * chunks),) * (2 * chunks),
        method=method,
        microbatches=4 if kind.cuts_minibatches else 1,
        chunks=chunks,
    )
    machine = plain_machine(alpha=1e-4, beta=1e-9)
    predicted = predict(WORKLOAD, layout, machine)
    step = simulated(layout, machine)
    assert step.seconds_per_step == pytest.approx(predicted.seconds_per_step)
    assert step.seconds_per_epoch == pytest.approx(predicted.seconds_per_epoch)


# -- scaling curves ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_scaling_is_ideal_without_communication(kind: str) -> None:
    curve = scaling_curve(WORKLOAD, Layout(((16, 1),), (8,)), plain_machine(), kind, 1)
    assert [point.ranks for point in curve.points] == [1, 2, 4, 8, 16]
    assert [point.batch_size for point in curve.points] == [
        64 * (point.ranks if kind == "weak" else 1) for point in curve.points
    ]
    for point in curve.points:
        assert point.speed_up == pytest.approx(point.ranks)
        assert point.efficiency == pytest.approx(1)
        assert point.communication_share == point.bubble_share == 0


def test_scaling_with_latency() -> None:
    """Strong: the reduction takes ever more of a shrinking step; lg P messages of alpha at the least."""
    curve = scaling_curve(WORKLOAD, Layout(((16, 1),), (8,)), plain_machine(alpha=1e-3), "strong", 1)
    alone = 64 * 16 * 16 * 1e-6 * 23
    for lg, point in enumerate(curve.points):
        step = alone / 2**lg + lg * 1e-3
        assert point.seconds_per_step == pytest.approx(step)
        assert point.speed_up == pytest.approx(alone / step)
        assert point.communication_share == pytest.approx(lg * 1e-3 / step)


def test_scaling_of_a_pipeline() -> None:
    """The smallest layout is one replica of the pipeline; four replicas in sixes are 6, 12, 24 and 24 ranks."""
    layout = Layout(((6, 1),) * 4, (2, 2, 2, 2), method="gpipe", microbatches=8)
    curve = scaling_curve(WORKLOAD, layout, plain_machine(), "weak", 1)
    assert [point.ranks for point in curve.points] == [1, 4, 8, 16, 24]
    assert [point.batch_size for point in curve.points] == [64, 64, 128, 256, 384]
    for point in curve.points[1:]:
        # (m + K - 1) microbatches, but the first stage has one product less, once at the end.
        step = 11 * 8 * 2 * 3 - 8
        assert point.efficiency == pytest.approx(64 * 23 / step / 4)


def test_stages_of_different_widths_grow_together() -> None:
    layout = Layout(((2, 2), (4, 1)), (4, 4), method="gpipe", microbatches=2)
    curve = scaling_curve(WORKLOAD, layout, plain_machine(), "strong", 1)
    assert [point.ranks for point in curve.points] == [1, 4, 8]


def test_ranks_beyond_the_samples_gain_nothing() -> None:
    curve = scaling_curve(WORKLOAD, Layout(((128, 1),), (8,)), plain_machine(), "strong", 1)
    assert [point.ranks for point in curve.points[-2:]] == [64, 128]
    assert [point.speed_up for point in curve.points[-2:]] == pytest.approx([64, 64])


def test_efficiency_above_1_is_an_effect_of_the_cache() -> None:
    """Ranks that share a replica update parts of it that fit their caches, where one rank's do not."""
    cluster = read_machine("cluster-1024")
    endless = [entry.model_copy(update={"cache_bytes": 1e15}) for entry in cluster.compute]
    digits = Workload(MLP([64, 512, 512, 512, 10]), 1438, 128)
    layout = Layout(((2, 1),), (4,), shared_replicas=True)
    usual, cached = (
        scaling_curve(digits, layout, machine, "strong", 1).points[-1].efficiency
        for machine in (cluster, cluster.model_copy(update={"compute": tuple(endless)}))
    )
    assert cached < 1 < usual


def test_slow_ranks_disturb_the_layouts_that_have_them() -> None:
    curve = scaling_curve(WORKLOAD, Layout(((16, 1),), (8,)), plain_machine(), "strong", 1, Disturbance(slow={4: 2.0}))
    assert [point.efficiency for point in curve.points] == pytest.approx([1, 1, 1, 0.5, 0.5])


def test_unknown_curve() -> None:
    with pytest.raises(SettingError, match="curve = 'wide': must be 'strong' or 'weak'"):
        scaling_curve(WORKLOAD, Layout(((2, 1),), (8,)), plain_machine(), "wide", 1)


def test_plot_of_a_curve() -> None:
    points = tuple(ScalingPoint(ranks, 64, 1 / ranks, ranks / 2, 0.5, 0.25, 0.125) for ranks in (1, 2, 4))
    figure = draw_scaling(ScalingCurve("strong", points), "a title that is long enough for two lines " * 2)
    speed_up, efficiency, shares = figure.axes
    lines = {line.get_label(): line.get_ydata().tolist() for line in speed_up.get_lines()}
    assert lines == {"ideal": [1, 2, 4], "simulated": [0.5, 1, 2]}
    assert efficiency.get_lines()[1].get_ydata().tolist() == [0.5] * 3
    assert [bars[0].get_height() for bars in shares.containers] == [0.625, 0.25, 0.125]
    assert set(SHARE_COLORS.values()) <= set(COLORS)
    assert least_points(figure) >= 6
    assert speed_up.yaxis.get_major_formatter()(0.5) == "1/2"
    for kind, beginning in (("png", b"\x89PNG\r\n"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        assert figure_bytes(figure, kind).startswith(beginning)
