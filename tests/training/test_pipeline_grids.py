"""Pipelines whose stages have several ranks train the weights of the serial replay."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hybridnn import ProcessGrid
from reference.cases import assert_arrays_same
from reference.pipeline_cases import (
    ADAM,
    DELAYED_CASES,
    FEW,
    MOMENTUM,
    ODD,
    PipelineCase,
    check_pipelined,
    exact_cases,
    few_of_each,
    run_pipelined,
)

if TYPE_CHECKING:
    from mpi4py import MPI

Stages = list[tuple[int, int]]

WIDTHS: dict[int, list[Stages]] = {
    3: [[(1, 1), (2, 1)], [(2, 1), (1, 1)], [(1, 2), (1, 1)], [(1, 1), (1, 2)]],
    4: [[(2, 1), (1, 2)], [(3, 1), (1, 1)], [(1, 1), (1, 2), (1, 1)]],
    5: [[(2, 1), (1, 1), (1, 2)], [(2, 1), (3, 1)], [(1, 3), (1, 2)]],
}
"""Batch and model ranks of every stage, by number of ranks."""


@pytest.mark.in_process(ranks=[4])
@pytest.mark.parametrize(("batch", "model"), [(2, 1), (1, 2)])
def test_a_pipeline_of_two_by_two(comm: MPI.Intracomm, batch: int, model: int) -> None:
    grid = ProcessGrid(comm, pipeline=2, batch=batch, model=model)
    for it in few_of_each(2):
        check_pipelined(it, grid)


@pytest.mark.in_process(ranks=[4])
@pytest.mark.parametrize(("batch", "model"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("name", DELAYED_CASES)
def test_every_delayed_method_on_two_by_two(comm: MPI.Intracomm, batch: int, model: int, name: str) -> None:
    grid = ProcessGrid(comm, pipeline=2, batch=batch, model=model)
    for training in (ODD, ADAM, FEW):
        check_pipelined(replace(DELAYED_CASES[name], case=training), grid)


@pytest.mark.in_process(ranks=[8])
def test_a_pipeline_on_all_three_axes(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, pipeline=2, batch=2, model=2)
    for it in few_of_each(2):
        check_pipelined(it, grid)


@pytest.mark.in_process(ranks=[8])
def test_four_stages_of_two(comm: MPI.Intracomm) -> None:
    for batch, model in ((2, 1), (1, 2)):
        grid = ProcessGrid(comm, pipeline=4, batch=batch, model=model)
        for name in ("fr", "spectrain", "vertical-sync"):
            check_pipelined(replace(DELAYED_CASES[name], case=ADAM), grid)
        check_pipelined(replace(exact_cases(4)["zb-h1"], case=ODD), grid)


@pytest.mark.in_process(ranks=list(WIDTHS))
def test_stages_of_their_own_widths(comm: MPI.Intracomm) -> None:
    """Every method on every layout of four ranks, and on every second of the others."""
    for place, stages in enumerate(WIDTHS[comm.size]):
        grid = ProcessGrid(comm, stages=stages)
        for number, it in enumerate(few_of_each(len(stages))):
            if comm.size == 4 or (number + place) % 2 == 0:
                check_pipelined(it, grid)


@pytest.mark.in_process(ranks=[3, 4])
def test_synchronous_sends_between_stages_of_several_ranks(comm: MPI.Intracomm) -> None:
    for stages in WIDTHS[comm.size]:
        grid = ProcessGrid(comm, stages=stages)
        for name in ("fr", "pipedream"):
            check_pipelined(replace(DELAYED_CASES[name], case=ODD, synchronous_sends=True), grid)
        check_pipelined(PipelineCase("1f1b", ODD, microbatches=3, synchronous_sends=True), grid)


@pytest.mark.in_process(ranks=[4])
@pytest.mark.parametrize("split", ["columns", "alternating"])
def test_messages_that_do_not_overlap_and_other_splits_train_the_same(comm: MPI.Intracomm, split: str) -> None:
    for overlap in (True, False):
        case = replace(MOMENTUM, overlap=overlap, model_split=split, shared_replicas=False)
        for batch, model in ((2, 1), (1, 2)):
            grid = ProcessGrid(comm, pipeline=2, batch=batch, model=model)
            for it in (PipelineCase("pipedream", case), PipelineCase("gpipe", case, microbatches=3)):
                check_pipelined(it, grid)


@pytest.mark.in_process(ranks=[4])
def test_messages_in_pieces_train_the_same(comm: MPI.Intracomm) -> None:
    for batch, model in ((2, 1), (1, 2)):
        grid = ProcessGrid(comm, pipeline=2, batch=batch, model=model, message_limit=200)
        case = replace(ODD, shared_replicas=False)
        for it in (PipelineCase("spectrain", case), PipelineCase("gpipe", case, microbatches=3)):
            check_pipelined(it, grid)


@pytest.mark.in_process(ranks=[4])
def test_the_same_layout_twice_is_bit_identical(comm: MPI.Intracomm) -> None:
    for grid in (ProcessGrid(comm, pipeline=2, batch=2), ProcessGrid(comm, stages=[(1, 1), (3, 1)])):
        for it in (PipelineCase("pipedream", ADAM), PipelineCase("zb-h1", ADAM, microbatches=3)):
            first, second = run_pipelined(it, grid, "float32"), run_pipelined(it, grid, "float32")
            assert_arrays_same(first.weights(), second.weights())
            assert [r.train_loss for r in first.history.epochs] == [r.train_loss for r in second.history.epochs]


@pytest.mark.in_process(ranks=[4])
def test_pipedream_and_ddg_are_the_same_to_the_last_bit_on_a_grid(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, pipeline=2, batch=2, model=1)
    first, second = (run_pipelined(PipelineCase(method, ODD), grid) for method in ("pipedream", "ddg"))
    assert_arrays_same(first.weights(), second.weights())
