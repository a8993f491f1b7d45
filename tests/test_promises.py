"""The promises of docs/design.md, one test for each, by name and number.

Further tests are in these files of ``tests/training``: ``test_grids.py`` and ``test_gradients.py`` for promises 1, 2,
4, 5 and 7, ``test_pipelines.py`` for 3, ``test_metrics.py`` for 6, ``test_trainer.py`` for 9 and 10.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.errors import HybridnnError, NonFiniteLossError
from hybridnn.training.records import StepRecord
from mpi_runner.slowness import deadline
from reference import network as net
from reference.cases import (
    Case,
    assert_arrays_close,
    assert_arrays_same,
    check_against_reference,
    data,
    local_data,
    make_trainer,
    reference,
    run,
)
from reference.messages import check_float32, float32_case, record_messages
from reference.network import Weights
from reference.pipeline_cases import UNEVEN, PipelineCase, check_pipelined
from reference.pipelines import DELAYED
from reference.ranks import allgather_objects
from reference.serial import sample_order
from reference.sweeps import DISTRIBUTIONS, SPLITS, grids, sizes_for

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpi_runner.launch import JobResult


def check_every_gradient(case: Case, grid: ProcessGrid) -> None:
    """After each step the gradient is, parameter by parameter, that of the global minibatch at the weights before."""
    trainer = make_trainer(case, grid)
    (x, y), weights = data(case), trainer.weights()
    minibatches = [
        order[start : start + case.batch_size]
        for order in (sample_order(case.samples, case.seed, epoch) for epoch in range(1, case.epochs + 1))
        for start in range(0, case.samples, case.batch_size)
    ]
    found: list[tuple[Weights, Weights]] = []

    def after_step(record: StepRecord) -> None:
        found.append((trainer.gradients(), trainer.weights()))

    trainer.fit(*local_data(case, grid), epochs=case.epochs, on_step=after_step)
    assert len(found) == len(minibatches)
    for step, (indices, (gradients, after)) in enumerate(zip(minibatches, found, strict=True)):
        _, expected = net.gradients(case.network, weights, x[indices], y[indices])
        assert_arrays_close(gradients, expected, f"{case} on {grid!r}: gradient of step {step + 1}", tolerance=1e-9)
        weights = after


@pytest.mark.in_process(ranks=[1, 2, 3, 4])
def test_promise_1_one_gradient(comm: MPI.Intracomm) -> None:
    for grid in grids(comm):
        for samples, batch_size in ((10, 10), (11, 5), (7, 3), (3, 8), (1, 1)):
            case = Case((5, 13, 7, 11, 4), samples=samples, batch_size=batch_size, epochs=1)
            check_every_gradient(case, grid)
            check_every_gradient(replace(case, classification=False), grid)


@pytest.mark.in_process(ranks=[1, 2, 3, 4, 6])
def test_promise_2_the_layout_does_not_change_the_training(comm: MPI.Intracomm) -> None:
    sizes = (5, 13, 7, 11, 6)
    for grid in grids(comm):
        for split, distribution in zip((*SPLITS, "columns"), DISTRIBUTIONS, strict=True):
            case = Case(sizes, optimizer="adam", schedule="cosine", model_split=split, distribution=distribution)
            check_against_reference(case, grid)
            new = make_trainer(case, grid).weights()
            assert_arrays_close(new, net.initial_weights(case.network, case.seed), "initial weights", tolerance=1e-15)
            assert_arrays_same(run(case, grid).weights(), run(case, grid).weights())


@pytest.mark.in_process(ranks=[2, 3])
def test_promise_3_staleness_is_exactly_the_documented_one(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, pipeline=comm.size, batch=1)
    for method in DELAYED:
        check_pipelined(PipelineCase(method, partition=UNEVEN[comm.size]), grid)
    check_pipelined(PipelineCase("pipedream", vertical_sync=True), grid)


@pytest.mark.in_process(ranks=[1, 2, 4])
def test_promise_4_float32_stays_float32(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = record_messages(monkeypatch)
    for grid in grids(comm):
        for split, distribution in zip((*SPLITS, "columns"), DISTRIBUTIONS, strict=True):
            check_float32(grid, float32_case(grid, split, distribution, classification=True), recorded)


@pytest.mark.in_process(ranks=[2, 4])
def test_promise_5_received_arrays_are_not_overwritten_before_the_backward_pass(comm: MPI.Intracomm) -> None:
    # Many layers alternate between the buffers, and minibatches of several sizes change the views of them.
    for grid in grids(comm):
        for split in SPLITS:
            for distribution, residual in zip(DISTRIBUTIONS, (True, False, True), strict=True):
                sizes = (7, 7, 9, 9, 9, 12, 12, 12, 12, 5)
                case = Case(
                    sizes, residual=residual, model_split=split, distribution=distribution, epochs=2, samples=23
                )
                check_every_gradient(case, grid)
                check_every_gradient(replace(case, overlap=False), grid)


@pytest.mark.in_process(ranks=[1, 2, 3, 4])
def test_promise_6_evaluation_counts_every_sample_once(comm: MPI.Intracomm) -> None:
    for grid in grids(comm):
        for batch_size in (1, 5, 22, 23, 40):
            for classification in (True, False):
                case = Case((5, 13, 7, 11, 4), classification, batch_size=batch_size)
                trainer = make_trainer(case, grid)
                x, y = data(case, "test")
                outputs, _ = net.forward(case.network, net.initial_weights(case.network, case.seed), x)
                found = trainer.evaluate(x, y)
                assert found.samples == len(x) == 23
                assert found.loss == pytest.approx(net.loss(case.network, outputs, y), rel=1e-12)
                if classification:
                    assert found.accuracy == net.accuracy(outputs, y)
                else:
                    assert found.r2 == pytest.approx(net.r2(outputs, y), rel=1e-11)


@pytest.mark.in_process(ranks=[1, 2, 3, 4])
def test_promise_7_a_norm_counts_every_parameter_once(comm: MPI.Intracomm) -> None:
    for grid in grids(comm):
        for split in SPLITS:
            sizes = sizes_for(grid.model, split, True, True)
            case = Case(sizes, residual=True, epochs=1, samples=10, model_split=split, optimizer="plain")
            loose, tight = make_trainer(case, grid), make_trainer(replace(case, clip_norm=0.01), grid)
            for trainer in (loose, tight):
                trainer.fit(*data(case), epochs=1)
            expected = net.norm(reference(case).gradients.values())
            assert expected > 0.01
            assert loose.gradient_norm() == pytest.approx(expected, rel=1e-12)
            assert tight.gradient_norm() == pytest.approx(0.01, rel=1e-12)


RAISE_ON_ONE_RANK = """
import time
import numpy as np
from hybridnn import MLP, ProcessGrid, Trainer
grid = ProcessGrid(model=2)

def on_step(record):
    if record.step == 3 and grid.rank == 2:
        raise RuntimeError("an error of rank 2")

x = np.random.default_rng(0).standard_normal((400, 6))
Trainer(MLP([6, 16, 4]), grid=grid, batch_size=10, log_every=1).fit(x, np.arange(400) % 4, epochs=1000, on_step=on_step)
"""


def test_promise_8_a_rank_that_raises_ends_the_job_with_its_traceback(run_mpi: Callable[..., JobResult]) -> None:
    result = run_mpi(4, RAISE_ON_ONE_RANK, timeout=60)
    assert not result.timed_out
    assert result.returncode != 0
    assert result.seconds < deadline(10)
    assert "rank 2 of 4 failed" in result.stderr
    assert "RuntimeError: an error of rank 2" in result.stderr
    assert result.stderr.count("Traceback") == 1
    before_the_traceback = result.stderr[: result.stderr.index("Traceback")]
    assert "MPI_ABORT" not in before_the_traceback


@pytest.mark.in_process(ranks=[1, 2, 4])
def test_promise_9_a_loss_that_is_not_finite_stops_every_rank_before_the_step(comm: MPI.Intracomm) -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((40, 5)), random.standard_normal((40, 4))
    for grid in grids(comm):
        trainer = Trainer(MLP([5, 8, 4]), SGD(lr=1e12), grid=grid, batch_size=10, log_every=1)
        weights: list[Weights] = []

        def store(record: StepRecord, trainer: Trainer = trainer, weights: list[Weights] = weights) -> None:
            weights.append(trainer.weights())

        with pytest.raises(NonFiniteLossError) as caught:
            trainer.fit(x, y, epochs=100, on_step=store)
        assert trainer.step == len(weights) > 0
        assert f"step {len(weights) + 1} " in str(caught.value)
        assert_arrays_same(trainer.weights(), weights[-1])
        assert all(np.isfinite(array).all() for array in weights[-1].values())
        messages = allgather_objects(comm, str(caught.value))
        assert len(set(messages)) == 1


@pytest.mark.in_process(ranks=[1, 3])
def test_promise_10_wrong_input_on_one_rank_is_refused_on_all_before_the_first_step(comm: MPI.Intracomm) -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((20, 5)), random.integers(0, 4, 20)
    broken = x.copy()
    broken[7, 2] = np.nan
    last = comm.rank == comm.size - 1
    wrong: list[tuple[Any, Any, str]] = [
        (broken if last else x, y, "nan"),
        (x, y + 1 if last else y, "label 4"),
        (x[:, :3] if last else x, y, "3 features"),
        (x, y[:15] if last else y, "15"),
    ]
    for samples, targets, fragment in wrong:
        trainer = Trainer(MLP([5, 8, 4]), grid=ProcessGrid(comm))
        before = trainer.weights()
        with pytest.raises(HybridnnError, match=fragment) as caught:
            trainer.fit(samples, targets, epochs=1)
        assert "\n" not in str(caught.value)
        assert len(set(allgather_objects(comm, str(caught.value)))) == 1
        assert trainer.step == 0
        assert_arrays_same(trainer.weights(), before)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    ("settings", "fragments"),
    [
        (("training.epochs=0",), ("training.epochs", "0")),
        (("training.epoch=3",), ("training.epoch", "training.epochs")),
        (("parallel.batch=5", "parallel.model=7"), ("5", "7")),
        (("data.file=missing.npz",), ("missing.npz",)),
    ],
)
def test_promise_10_a_users_mistake_is_one_line_and_exit_code_2(
    ranks: int, settings: tuple[str, ...], fragments: tuple[str, ...], run_mpi: Callable[..., JobResult], tmp_path: Path
) -> None:
    command = [str(Path(sys.executable).with_name("hybridnn")), "train"]
    for setting in settings:
        command += ["--set", setting]
    result = run_mpi(ranks, command, timeout=60, cwd=tmp_path)
    assert not result.timed_out
    assert result.returncode == 2, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, result.stderr
    assert all(fragment in lines[0] for fragment in fragments), lines[0]
    assert "Traceback" not in result.stderr + result.stdout
    assert not list(tmp_path.rglob("history.jsonl"))
