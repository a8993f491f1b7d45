"""Layouts between nodes: each is run once, drawn ones are what they are called, and the summary counts them rightly."""

from __future__ import annotations

from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pytest

from benchmarks import between_nodes, open_mpi_settings
from benchmarks.between_nodes import Runs, case_of, prepare_all, spread_of, summary_of
from benchmarks.cost_check import prepare
from hybridnn import MLP
from hybridnn.cost.planning.layouts import feasible_layouts
from hybridnn.cost.prediction.workload import Workload
from reference.machines import make_machine
from reference.ranks import on_nodes

if TYPE_CHECKING:
    from mpi4py import MPI

MACHINE = make_machine(alpha=1e-4, beta=1e-8, nodes=2, ranks_per_node=1)
SIZES, BATCH_SIZE = (6, 8, 8, 8, 3), 16


def prepared(comm: MPI.Intracomm) -> list[Runs]:
    networks = ((SIZES, BATCH_SIZE), ((4, 8, 8, 8, 8, 3), 8))
    with patch.object(between_nodes, "NETWORKS", networks), patch("benchmarks.cost_check.ROUND_SECONDS", 0.0):
        return prepare_all(MACHINE, on_nodes(comm, (0, 1)), 0)


@pytest.mark.in_process(ranks=[2])
def test_no_layout_is_run_twice(comm: MPI.Intracomm) -> None:
    for network in prepared(comm):
        runs = list(network.predicted.values())
        assert len({run.name for run in runs}) == len(runs)
        assert len({run.trainer.layout for run in runs}) == len(runs) > between_nodes.DRAWN
        assert network.planned in network.predicted
        for layout, run in network.predicted.items():
            assert run.trainer.layout == layout


@pytest.mark.in_process(ranks=[2])
def test_a_feasible_layout_is_the_one_of_its_case(comm: MPI.Intracomm) -> None:
    workload = Workload(MLP(list(SIZES), "relu"), BATCH_SIZE, BATCH_SIZE, classification=False)
    found = list(feasible_layouts(workload, MACHINE, comm.size))
    assert len(found) > 20
    for layout in found:
        run = prepare(MACHINE, workload.model, BATCH_SIZE, case_of(layout, ""), comm=on_nodes(comm, (0, 1)))
        assert run.trainer.layout == layout


@pytest.mark.in_process(ranks=[2])
def test_summary_counts_pairs_and_losses(comm: MPI.Intracomm) -> None:
    networks = prepared(comm)
    generator = np.random.default_rng(0)
    for network in networks:
        for run in network.predicted.values():
            run.measured[:] = (run.predicted_seconds_per_step * generator.uniform(0.5, 2, 5)).tolist()
    found = summary_of(networks)
    errors: list[float] = []
    pairs = right = 0
    for network in networks:
        times = [(run.predicted_seconds_per_step, median(run.measured)) for run in network.predicted.values()]
        errors += [predicted / measured - 1 for predicted, measured in times]
        for one, other in combinations(times, 2):
            pairs += 1
            right += (one[0] - other[0]) * (one[1] - other[1]) > 0
        exact = [run for layout, run in network.predicted.items() if layout.exact and layout.wire_dtype == "same"]
        best = min(median(run.measured) for run in exact)
        chosen: dict[str, Any] = found["plan"]["-".join(map(str, network.predicted[network.planned].network))]
        assert chosen["loss"] == pytest.approx(median(network.predicted[network.planned].measured) / best - 1)
    assert found["layouts"] == len(errors)
    assert found["mean_error"] == pytest.approx(np.abs(errors).mean())
    assert found["mean_signed_error"] == pytest.approx(np.mean(errors))
    assert (found["pairs"], found["pairs_in_order"]) == (pairs, right)
    assert 0 < found["pairs_apart_in_order"] <= found["pairs_apart"] < pairs


def test_spread_is_that_of_the_quartiles() -> None:
    assert spread_of([5.0, 1.0, 2.0, 4.0, 3.0]) == pytest.approx(2 / 3)
    assert spread_of([2.0] * 4) == 0


def test_every_variant_differs_from_the_settings_of_open_mpi_as_it_says() -> None:
    """The last one is that of hybridnn; the others set what it sets, in part to Open MPI's own values."""
    own = open_mpi_settings.VARIANTS["Open MPI's"]
    for name, variant in open_mpi_settings.VARIANTS.items():
        assert variant == {} or set(variant) == set(own), name
    assert open_mpi_settings.VARIANTS["all"] == {}
