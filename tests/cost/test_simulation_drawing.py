"""Drawings of simulations: the boxes, and what large ones leave out."""

from __future__ import annotations

from functools import partial

import pytest

from hybridnn.cost.prediction.workload import Workload
from hybridnn.cost.simulation import (
    UNDISTURBED,
    Disturbance,
    SimulatedStep,
    draw_simulation,
    simulate_layout,
    stages_shown,
)
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD
from hybridnn.pipeline.drawing.picture import svg_text
from hybridnn.pipeline.drawing.text import text_lines
from hybridnn.pipeline.layout import Layout
from reference.machines import make_machine

plain_machine = partial(make_machine, multiply_add=1e-6)


def simulated(layout: Layout, disturbance: Disturbance = UNDISTURBED, alpha: float = 0.0) -> SimulatedStep:
    workload = Workload(MLP([16] * (sum(layout.layers) + 1)), samples=640, batch_size=64, optimizer=SGD(momentum=0.0))
    machine = plain_machine(alpha=alpha)
    return simulate_layout(workload, layout, machine, 1, disturbance)


def test_boxes_in_milliseconds() -> None:
    """Two stages with two microbatches; what of a message is not hidden stands before its computation."""
    step = simulated(Layout(((1, 1),) * 2, (1, 1), method="gpipe", microbatches=2), alpha=1e-3)
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


def test_reductions_are_drawn() -> None:
    drawing = draw_simulation(simulated(Layout(((2, 1),), (4,)), alpha=1e-3))
    last = drawing.rows[0].boxes[-1]
    assert last.kind == "reduce"
    assert last.end - last.start == pytest.approx(1)


def test_the_busiest_replica_is_drawn() -> None:
    """The one with the slow rank, whose forward pass of 32 samples takes three times as long."""
    layout = Layout(((2, 1),) * 2, (1, 1), method="pipedream")
    drawing = draw_simulation(simulated(layout, Disturbance(slow={1: 3.0})))
    assert "replica 1, the busiest" in drawing.title
    forward = drawing.rows[0].boxes[0]
    assert forward.end - forward.start == pytest.approx(3 * 32 * 16 * 16 * 1e-3)
    assert "replica" not in draw_simulation(simulated(layout)).title


def test_many_stages_and_microbatches() -> None:
    layout = Layout(((1, 1),) * 12, (1,) * 12, method="1f1b", microbatches=32)
    step = simulated(layout)
    drawing = draw_simulation(step, most_rows=5, most_boxes=20)
    assert [row.label for row in drawing.rows] == ["stage 0", "stage 1", "stage 2", "stage 10", "stage 11"]
    assert "stages 3 to 9 left out" in drawing.title
    assert f"of {step.seconds * 1e3:.4g} ms" in drawing.title
    computations = [box for row in drawing.rows for box in row.boxes if box.kind in ("forward", "backward")]
    assert 10 < len(computations) <= 20
    assert max(box.end for box in computations) <= drawing.makespan < step.seconds * 1e3
    assert any("stage 11" in line.plain for line in text_lines(drawing))
    assert svg_text(drawing).startswith("<svg")
    whole = draw_simulation(step)
    assert len(whole.rows) == 12
    assert whole.title.endswith("simulated")


@pytest.mark.parametrize("stages", range(1, 12))
@pytest.mark.parametrize("most", range(1, 8))
def test_first_and_last_stages(stages: int, most: int) -> None:
    shown = stages_shown(stages, most)
    assert len(shown) == min(stages, most)
    assert list(shown) == sorted(set(shown) & set(range(stages)))
    assert shown[0] == 0
    assert most == 1 or shown[-1] == stages - 1
