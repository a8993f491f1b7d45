"""Scaling curves on machines where they are known."""

from __future__ import annotations

from functools import partial

import pytest

from hybridnn import MLP, SGD
from hybridnn.cost.cost_plots import scaling_png
from hybridnn.cost.machine.file import read_machine
from hybridnn.cost.prediction.workload import Workload
from hybridnn.cost.simulation.disturbance import Disturbance
from hybridnn.cost.simulation.simulate import ScalingCurve, ScalingPoint, scaling_curve
from hybridnn.errors import SettingError
from hybridnn.pipeline.layout import Layout
from reference.machines import make_machine

WORKLOAD = Workload(MLP([16] * 9), samples=640, batch_size=64, optimizer=SGD(momentum=0.0))
"""Eight layers of 16 x 16 weights and a minibatch of 64 samples."""

plain_machine = partial(make_machine, multiply_add=1e-6)


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


def test_plot_is_a_png() -> None:
    points = tuple(ScalingPoint(ranks, 64, 1 / ranks, ranks, 1.0, 0.25, 0.25) for ranks in (1, 2, 4))
    assert scaling_png(ScalingCurve("strong", points), "title").startswith(b"\x89PNG\r\n")
