"""Ranks under MPI and ranks of one process train the same weights: every pipeline method and axis of a grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hybridnn import ProcessGrid
from hybridnn.in_process import run_ranks
from hybridnn.training.config import Pipelining
from reference.cases import Case, assert_arrays_close, local_data, make_trainer
from reference.network import Weights
from reference.pipeline_cases import ADAM, DEEP, DELAYED_CASES, MOMENTUM, exact_cases
from reference.ranks import on_nodes

if TYPE_CHECKING:
    from mpi4py import MPI

COLUMNS = Case(optimizer="adam", clip_norm=0.3)
ALTERNATING = replace(COLUMNS, model_split="alternating", residual=True, sizes=(6, 6, 6, 6, 9, 9, 4))
ONE_SAMPLE_LEFT = Case(classification=False, optimizer="nesterov", samples=31, schedule="cosine")


@dataclass(frozen=True)
class Layout:
    """A training, its grid, the node of every rank where not all are on one, and further settings of the trainer."""

    case: Case
    axes: dict[str, Any] = field(default_factory=dict)
    nodes: Sequence[int] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def trained(self, comm: Any) -> Weights:
        grid = ProcessGrid(comm if self.nodes is None else on_nodes(comm, self.nodes), **self.axes)
        trainer = make_trainer(self.case, grid, **self.settings)
        trainer.fit(*local_data(self.case, grid), epochs=self.case.epochs)
        return trainer.weights()


def own(case: Case) -> Case:
    return replace(case, shared_replicas=False)


LAYOUTS: dict[int, dict[str, Layout]] = {
    2: {
        "batch, shared replicas": Layout(replace(COLUMNS, shared_replicas=True)),
        "batch, a replica each": Layout(own(COLUMNS)),
        "batch, gradients summed at once": Layout(replace(own(COLUMNS), overlap=False)),
        "batch, one sample left": Layout(ONE_SAMPLE_LEFT),
        "batch, fewer samples than a minibatch": Layout(replace(COLUMNS, samples=5, batch_size=20)),
        "batch, scattered": Layout(replace(COLUMNS, distribution="scatter")),
        "model, columns": Layout(COLUMNS, {"model": 2}),
        "model, alternating": Layout(ALTERNATING, {"model": 2}),
        "bfloat16 between nodes": Layout(own(COLUMNS), nodes=(0, 1), settings={"wire_dtype": "bfloat16"}),
        "float16 between nodes": Layout(own(ONE_SAMPLE_LEFT), nodes=(0, 1), settings={"wire_dtype": "float16"}),
    },
    4: {
        "2 x 2, columns": Layout(replace(COLUMNS, distribution="scatter-broadcast"), {"model": 2}),
        "2 x 2, alternating": Layout(own(ALTERNATING), {"model": 2}),
        "batch, shared replicas on two nodes": Layout(replace(COLUMNS, shared_replicas=True), nodes=(0, 0, 0, 1)),
        "model, uneven columns": Layout(replace(COLUMNS, sizes=(5, 13, 7, 11, 5)), {"model": 4}),
        "bfloat16 between nodes that share": Layout(
            replace(COLUMNS, shared_replicas=True), nodes=(0, 0, 1, 1), settings={"wire_dtype": "bfloat16"}
        ),
        "pipeline x batch": Layout(replace(MOMENTUM, shared_replicas=True), {"pipeline": 2, "batch": 2}),
        "pipeline x model": Layout(
            replace(MOMENTUM, model_split="alternating"), {"pipeline": 2, "batch": 1, "model": 2}
        ),
        "stages of uneven widths": Layout(replace(ADAM, sizes=(*DEEP[:-1], 4)), {"stages": [(3, 1), (1, 1)]}),
    },
    6: {
        f"pipeline x batch x model, {method}": Layout(
            replace(MOMENTUM, epochs=1), {"stages": [(2, 2), (1, 2)]}, settings={"pipelining": Pipelining(method)}
        )
        for method in ("1f1b", "interleaved", "pipedream", "spectrain")
    },
}

METHODS = {2: {**exact_cases(2), **DELAYED_CASES}, 4: {**exact_cases(4), **DELAYED_CASES}}


def check(comm: MPI.Intracomm, trained: Callable[[Any], Weights], what: str) -> None:
    """Compare what rank 0 holds after a training under MPI with the same on ranks that are all in its process."""
    found = trained(comm)
    if comm.rank == 0:
        assert all(array.dtype == np.float64 for array in found.values())
        for rank, twin in enumerate(run_ranks(comm.size, trained).results):
            assert_arrays_close(found, twin, f"{what}: rank {rank} in process", 1e-10)
    comm.Barrier()


@pytest.mark.mpi(ranks=list(LAYOUTS))
def test_every_axis_trains_the_same(comm: MPI.Intracomm) -> None:
    for name, layout in LAYOUTS[comm.size].items():
        check(comm, layout.trained, name)


@pytest.mark.mpi(ranks=list(METHODS))
def test_every_method_trains_the_same(comm: MPI.Intracomm) -> None:
    for name, it in METHODS[comm.size].items():
        layout = Layout(it.case, {"pipeline": comm.size}, settings={"pipelining": it.pipelining})
        check(comm, layout.trained, name)
