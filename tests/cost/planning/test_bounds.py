"""The bounds are never above the prediction, for every kind of layout and machine, and often at it."""

from __future__ import annotations

from itertools import islice

import pytest

from hybridnn import MLP
from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.planning.layouts import Constraints, feasible_layouts
from hybridnn.cost.planning.plan import StepBounds
from hybridnn.cost.prediction.predict import predict
from hybridnn.cost.prediction.workload import Workload
from reference.machines import make_machine

pytestmark = pytest.mark.slow

OVERLAP = {"hidden_fraction": 0.6, "compute_slowdown": 1.3, "nonblocking_factor": 1.2}
WORKLOAD = Workload(MLP([20, 40, 60, 30, 40, 50, 40, 16, 16]), 700, 37, classification=False)
MACHINES = {
    "arithmetic": make_machine(),
    "messages": make_machine(alpha=1e-4, beta=1e-7, multiply_add=1e-12, call=1e-7),
    "mixed": make_machine(alpha=1e-5, beta=1e-9, call=1e-5, nodes=4, ranks_per_node=4, overlap=OVERLAP),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("ranks", [1, 4, 12])
def test_bounds_hold(machine: Machine, ranks: int) -> None:
    methods = set()
    for layout in islice(feasible_layouts(WORKLOAD, machine, ranks), None, None, 1 if ranks < 12 else 5):
        bounds = StepBounds(WORKLOAD, layout, machine)
        seconds = predict(WORKLOAD, layout, machine).seconds_per_step * (1 + 1e-9)
        assert 0 < bounds.rough <= bounds.tight * (1 + 1e-9)
        assert bounds.tight <= seconds, layout
        methods.add(layout.method)
    assert len(methods) == (1 if ranks == 1 else 10)


def test_the_tight_bound_is_the_time_where_nothing_waits_for_a_message() -> None:
    machine = make_machine()
    for layout in feasible_layouts(WORKLOAD, machine, 2):
        seconds = predict(WORKLOAD, layout, machine).seconds_per_step
        # One stage has nothing to wait for; two stages of one microbatch after another, only for each other.
        if len(layout.stages) == 1 or layout.method in ("sequential", "vanilla", "pipedream"):
            assert StepBounds(WORKLOAD, layout, machine).tight == pytest.approx(seconds), layout


def test_bounds_hold_where_gradients_are_rounded() -> None:
    machine, constraints = MACHINES["mixed"], Constraints(wire_dtype="bfloat16")
    rounded = list(islice(feasible_layouts(WORKLOAD, machine, 12, constraints), None, None, 11))
    assert any(layout.rounding(0) is not None for layout in rounded)
    for layout in rounded:
        bounds = StepBounds(WORKLOAD, layout, machine)
        seconds = predict(WORKLOAD, layout, machine).seconds_per_step * (1 + 1e-9)
        assert 0 < bounds.rough <= bounds.tight * (1 + 1e-9)
        assert bounds.tight <= seconds, layout
