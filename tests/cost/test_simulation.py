"""Simulated steps and scaling curves on machines on which their times are computed by hand."""

from dataclasses import replace
from functools import partial

import pytest

from hybridnn.cost.machine import Machine
from hybridnn.cost.machine_file import read_machine
from hybridnn.cost.prediction import Workload
from hybridnn.cost.prediction.predict import (
    ScalingCurve,
    ScalingPoint,
    SimulatedStep,
    predict,
    scaling_curve,
    simulate_layout,
)
from hybridnn.drawing.figures import COLUMN
from hybridnn.drawing.run_pictures import draw_scaling, draw_simulation, stages_shown
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.methods import METHODS
from reference.machines import make_machine
from reference.pictures import least_points

WORKLOAD = Workload(MLP([16] * 9), samples=640, batch_size=64, optimizer=SGD(momentum=0.0))
"""Eight layers of 16 x 16 weights and a minibatch of 64 samples."""

plain_machine = partial(make_machine, multiply_add=1e-6)

PASS = 16 * 16 * 1e-6
"""Seconds of a product of one layer per sample."""


def simulated(layout: Layout, machine: Machine, workload: Workload = WORKLOAD) -> SimulatedStep:
    return simulate_layout(workload, layout, machine)


def test_more_ranks_than_the_machine_has_take_turns() -> None:
    layout = Layout(((8, 1),), (8,))
    enough, half = (simulated(layout, plain_machine(ranks_per_node=ranks)) for ranks in (8, 4))
    assert half.seconds == pytest.approx(2 * enough.seconds)


def test_batch_ranks_without_samples_wait_for_the_others() -> None:
    """Three samples are three ranks' work, on however many ranks."""
    few = replace(WORKLOAD, batch_size=3)
    three, many = (simulated(Layout(((ranks, 1),), (8,)), plain_machine(), workload=few) for ranks in (3, 16))
    assert many.seconds == pytest.approx(three.seconds) == pytest.approx(16 * 16 * 1e-6 * 23)


def test_rounding_leaves_no_bubble() -> None:
    machine = plain_machine(alpha=1e-5 / 3, beta=1e-9 / 7)
    for ranks in (1, 3, 7, 32):
        assert simulated(Layout(((ranks, 1),), (8,)), machine).stages[0].bubble == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_prediction_and_a_simulation_agree(method: str) -> None:
    kind = METHODS[method]
    chunks = kind.chunks[0]
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
    for breakdown in step.stages:
        assert breakdown.total == pytest.approx(step.seconds_per_step)
        assert min(breakdown.parts.values()) >= 0


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_scaling_is_ideal_without_communication(kind: str) -> None:
    curve = scaling_curve(WORKLOAD, Layout(((16, 1),), (8,)), plain_machine(), kind)
    assert [point.ranks for point in curve.points] == [1, 2, 4, 8, 16]
    assert [point.batch_size for point in curve.points] == [
        64 * (point.ranks if kind == "weak" else 1) for point in curve.points
    ]
    for point in curve.points:
        assert point.speed_up == pytest.approx(point.ranks)
        assert point.efficiency == pytest.approx(1)
        assert point.shares["compute"] == pytest.approx(1)


def test_scaling_with_latency() -> None:
    """Strong: the reduction takes ever more of a shrinking step; lg P messages of alpha at the least."""
    curve = scaling_curve(WORKLOAD, Layout(((16, 1),), (8,)), plain_machine(alpha=1e-3), "strong")
    alone = 64 * 16 * 16 * 1e-6 * 23
    for lg, point in enumerate(curve.points):
        step = alone / 2**lg + lg * 1e-3
        assert point.seconds_per_step == pytest.approx(step)
        assert point.speed_up == pytest.approx(alone / step)
        assert point.shares["communicate"] == pytest.approx(lg * 1e-3 / step)
        assert point.shares["compute"] == pytest.approx(point.efficiency)


def test_scaling_of_a_pipeline() -> None:
    """The smallest layout is one replica of the pipeline; four replicas in sixes are 6, 12, 24 and 24 ranks."""
    layout = Layout(((6, 1),) * 4, (2, 2, 2, 2), method="gpipe", microbatches=8)
    curve = scaling_curve(WORKLOAD, layout, plain_machine(), "weak")
    assert [point.ranks for point in curve.points] == [1, 4, 8, 16, 24]
    assert [point.batch_size for point in curve.points] == [64, 64, 128, 256, 384]
    for point in curve.points[1:]:
        # (m + K - 1) microbatches, but the first stage has one product less, once at the end.
        step = 11 * 8 * 2 * 3 - 8
        assert point.efficiency == pytest.approx(64 * 23 / step / 4)


def test_ranks_beyond_the_samples_gain_nothing() -> None:
    curve = scaling_curve(WORKLOAD, Layout(((128, 1),), (8,)), plain_machine(), "strong")
    assert [point.ranks for point in curve.points[-2:]] == [64, 128]
    assert [point.speed_up for point in curve.points[-2:]] == pytest.approx([64, 64])


def test_efficiency_above_1_is_an_effect_of_the_cache() -> None:
    """Ranks that share a replica update parts of it that fit their caches, where one rank's do not."""
    cluster = read_machine("cluster-1024")
    endless = [entry.model_copy(update={"cache_bytes": 1e15}) for entry in cluster.compute]
    digits = Workload(MLP([64, 448, 448, 448, 10]), 1438, 128)
    layout = Layout(((2, 1),), (4,), shared_replicas=True)
    usual, cached = (
        scaling_curve(digits, layout, machine, "strong").points[-1].efficiency
        for machine in (cluster, cluster.model_copy(update={"compute": tuple(endless)}))
    )
    assert cached < 1 < usual


SHARES = {"compute": 0.5, "smaller products": 0, "overhead": 0, "communicate": 0, "bubble": 0, "wait": 0.5}


def test_plot_of_a_curve() -> None:
    points = tuple(
        ScalingPoint(ranks, Layout(((ranks, 1),), (8,)), 64, 1 / ranks, ranks / 2, ranks / 4, float(ranks), 0.5, SHARES)
        for ranks in (1, 2, 4)
    )
    figures = draw_scaling(ScalingCurve("strong", points))
    assert list(figures) == ["speed_up", "efficiency", "breakdown"]
    speed_up, efficiency, shares = (axes for figure in figures.values() for axes in figure.axes)
    lines = {line.get_label(): line.get_ydata().tolist() for line in speed_up.get_lines()}
    assert lines == {"ideal": [1, 2, 4], "one layout, more replicas": [0.5, 1, 2]}
    (band,) = speed_up.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert corners == {(1, 0.25), (2, 0.5), (4, 1), (1, 1), (2, 2), (4, 4)}
    assert efficiency.get_lines()[1].get_ydata().tolist() == [0.5] * 3
    assert {bars.get_label(): bars[0].get_height() for bars in shares.containers} == {"compute": 0.5, "wait": 0.5}
    for figure in figures.values():
        assert figure.get_figwidth() == COLUMN
        assert least_points(figure) >= 6
    assert speed_up.yaxis.get_major_formatter()(0.5) == "1/2"
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in (speed_up, efficiency, shares)]
    assert labels == [
        ("ranks", "speed-up against 1 rank"),
        ("ranks", "efficiency"),
        ("ranks", "share of the ranks' time"),
    ]
    doubtful = tuple(replace(point, low=None, high=None) for point in points)
    (axes,) = draw_scaling(ScalingCurve("best", doubtful))["speed_up"].axes
    assert not axes.collections
    assert axes.get_lines()[1].get_label() == "best layouts"


def shallow(layout: Layout, alpha: float = 0.0) -> SimulatedStep:
    """A minibatch through a network that has the layers of the layout."""
    workload = replace(WORKLOAD, model=MLP([16] * (sum(layout.layers) + 1)))
    return simulated(layout, plain_machine(alpha=alpha), workload)


def test_boxes_in_milliseconds() -> None:
    """Two stages with two microbatches; what of a message is not hidden stands before its computation."""
    step = shallow(Layout(((1, 1),) * 2, (1, 1), method="gpipe", microbatches=2), alpha=1e-3)
    drawing = draw_simulation(step)
    one = 32 * 16 * 16 * 1e-3  # ms of a product
    assert drawing.unit == "ms"
    assert [row.label for row in drawing.rows] == ["stage 0", "stage 1"]
    found = [(box.kind, box.label, round(box.start, 6), round(box.end, 6)) for box in drawing.rows[1].boxes[:5]]
    assert found == [
        ("wait", "", one, one + 1),
        ("forward", "1", one + 1, 2 * one + 1),
        ("wait", "", 2 * one + 1, 2 * one + 2),
        ("forward", "2", 2 * one + 2, 3 * one + 2),
        ("backward", "1", 3 * one + 2, 5 * one + 2),
    ]
    assert drawing.makespan == pytest.approx(step.seconds * 1e3)


def test_a_part_of_many_stages_is_drawn() -> None:
    layout = Layout(((2, 1),) * 12, (1,) * 12, method="1f1b", microbatches=32)
    step = shallow(layout)
    drawing = draw_simulation(step, most_rows=5, most_boxes=20)
    assert "stages 3 to 9 left out" in drawing.title
    forward = drawing.rows[0].boxes[0]
    assert forward.end - forward.start == pytest.approx(16 * 16 * 1e-3)
    assert [row.label for row in drawing.rows] == ["stage 0", "stage 1", "stage 2", "stage 10", "stage 11"]
    computations = [box for row in drawing.rows for box in row.boxes if box.kind in ("forward", "backward")]
    assert 10 < len(computations) <= 20
    assert max(box.end for box in computations) <= drawing.makespan < step.seconds * 1e3
    whole = draw_simulation(shallow(layout))
    assert len(whole.rows) == 12
    assert whole.title.endswith("simulated")


@pytest.mark.parametrize(("stages", "most"), [(1, 1), (1, 3), (7, 1), (5, 2), (6, 5), (11, 5), (3, 7)])
def test_first_and_last_stages(stages: int, most: int) -> None:
    shown = stages_shown(stages, most)
    assert len(shown) == min(stages, most)
    assert list(shown) == sorted(set(shown) & set(range(stages)))
    assert shown[0] == 0
    assert most == 1 or shown[-1] == stages - 1


def test_stages_of_different_widths() -> None:
    """One rank feeds two."""
    layout = Layout(((1, 1), (2, 1)), (4, 4), method="gpipe", microbatches=1)
    step = simulated(layout, plain_machine())
    first, second = 64 * PASS * 4, 32 * PASS * 4
    assert step.seconds_per_step == pytest.approx(first + 3 * second + first * 7 / 4)
