"""Machines and workloads whose times can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.prediction.workload import Workload
from hybridnn.nn.mlp import MLP

FREE = {"number_seconds": 0.0}


@pytest.fixture
def make_machine() -> Callable[..., Machine]:
    """Make a machine on which only multiply-adds take time, 1 us each, and what a test adds."""

    def make(alpha_seconds: float = 0.0, beta_seconds_per_byte: float = 0.0, **changes: Any) -> Machine:
        passes = {"multiply_add_seconds": 1e-6}
        segment = {"alpha_seconds": alpha_seconds, "beta_seconds_per_byte": beta_seconds_per_byte}
        values = {
            "name": "plain",
            "ranks_per_node": 4096,
            "memory_bytes_per_rank": 1e9,
            "inside_node": {"segments": [segment]},
            "compute": [
                {
                    "dtype": "float32",
                    "forward": passes,
                    "input_gradient": passes,
                    "weight_gradient": passes,
                    "activations": {"relu": {"forward": FREE, "gradient": FREE}},
                    "losses": {"mse": FREE},
                    "load": FREE,
                    "packing": FREE,
                    "updates": {"sgd": FREE},
                }
            ],
        }
        return Machine.model_validate(values | changes)

    return make


@pytest.fixture
def workload() -> Workload:
    """Eight layers of 16 x 16 weights and a minibatch of 64 samples."""
    return Workload(MLP([16] * 9), samples=640, batch_size=64, optimizer="sgd")
