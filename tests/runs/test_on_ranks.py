"""Evaluation and predictions of a run on other grids than the one that trained it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import ProcessGrid
from hybridnn.comm.agreement import broadcast_text
from hybridnn.errors import HybridnnError
from hybridnn.runs.inference import evaluate_run, predict_file
from hybridnn.runs.trained_run import open_run
from reference import network as net
from reference.trained_runs import FEATURES, NETWORK, REGRESSION, regression_file, train, weights_of, write_checkpoint

GRIDS = {3: [(1, 3, 1), (3, 1, 1), (1, 1, 3)], 4: [(2, 2, 1), (1, 2, 2), (2, 1, 2)]}


def make_grid(comm: MPI.Intracomm, shape: tuple[int, int, int]) -> ProcessGrid:
    return ProcessGrid(comm, pipeline=shape[0], batch=shape[1], model=shape[2])


def shared_folder(comm: MPI.Intracomm, folder: Path) -> Path:
    return Path(broadcast_text(ProcessGrid(comm).world, str(folder), 0))


def own_run(comm: MPI.Intracomm, tmp_path: Path, shape: tuple[int, int, int], distribution: str = "local") -> Path:
    """Return the folder of a run, the same on every rank, trained on a grid."""
    folder = shared_folder(comm, tmp_path)
    if comm.rank == 0:
        regression_file(folder / "mine.npz")
    data = {"file": str(folder / "mine.npz"), "distribution": distribution}
    parallel = dict(zip(("pipeline", "batch", "model"), shape, strict=True))
    last = train(folder / "run", data=data, parallel=parallel, **REGRESSION)
    (tmp_path / "expected").write_text(f"{last.validation_loss!r} {last.validation_r2!r}")
    return folder / "run"


@pytest.mark.in_process(ranks=[3, 4])
@pytest.mark.parametrize("place", [0, 1])
def test_figures_of_the_run_on_its_own_and_other_grids(comm: MPI.Intracomm, tmp_path: Path, place: int) -> None:
    shapes = GRIDS[comm.size]
    distribution = "scatter" if shapes[place][0] == 1 else "local"
    run = own_run(comm, tmp_path, shapes[place], distribution)
    loss, r2 = map(float, (tmp_path / "expected").read_text().split())
    for shape in shapes:
        grid = make_grid(comm, shape)
        found = evaluate_run(open_run(run, None, grid.world), grid)
        assert (found.part, found.metrics.samples) == ("test", 11)
        if shape == shapes[place]:
            assert (found.metrics.loss, found.metrics.r2) == (loss, r2)
        assert found.metrics.loss == pytest.approx(loss, rel=1e-12)
        assert found.metrics.r2 == pytest.approx(r2, rel=1e-10)


@pytest.mark.in_process(ranks=[3, 4])
def test_predictions_keep_their_order_on_every_grid(comm: MPI.Intracomm, tmp_path: Path) -> None:
    run = own_run(comm, tmp_path, GRIDS[comm.size][0])
    x = np.random.default_rng(8).normal(size=(37, FEATURES)) * 20
    if comm.rank == 0:
        np.savez(run / "x.npz", x)
    with np.load(run / "standardization.npz") as file:
        outputs, _ = net.forward(NETWORK, weights_of(run), (x - file["x_mean"]) / file["x_scale"])
        expected = outputs * file["y_scale"] + file["y_mean"]
    for shape in GRIDS[comm.size]:
        grid = make_grid(comm, shape)
        found = predict_file(open_run(run, None, grid.world), grid, run / "x.npz")
        assert (found is None) == (grid.rank > 0)
        if found is not None:
            np.testing.assert_allclose(found.values, expected, rtol=1e-11)


@pytest.mark.in_process(ranks=[3])
def test_checkpoints_are_chosen_alike_on_every_rank(comm: MPI.Intracomm, tmp_path: Path) -> None:
    run = own_run(comm, tmp_path, (1, 3, 1))
    arrays = weights_of(run)
    comm.Barrier()
    if comm.rank == 0:
        (run / "weights.npz").unlink()
        write_checkpoint(run, 4, arrays)
        (write_checkpoint(run, 6, arrays) / "layers.0.bias.npy").write_bytes(b"cut")
    comm.Barrier()
    world = ProcessGrid(comm).world
    found = open_run(run, None, world)
    assert (found.source.step, len(found.source.damaged)) == (4, 1)
    np.testing.assert_array_equal(found.weights["layers.1.weight"], arrays["layers.1.weight"])
    assert open_run(run, "step-00000004", world).source.step == 4
    for name, words in (("step-00000006", "layers.0.bias.npy"), ("step-00000005", "which holds")):
        with pytest.raises(HybridnnError, match=words):
            open_run(run, name, world)


@pytest.mark.in_process(ranks=[3])
def test_mistakes_are_raised_on_every_rank(comm: MPI.Intracomm, tmp_path: Path) -> None:
    grid = ProcessGrid(comm)
    with pytest.raises(HybridnnError, match="is not a run folder"):
        open_run(tmp_path / "absent", None, grid.world)
    run = own_run(comm, tmp_path, (1, 3, 1))
    if comm.rank == 0:
        np.savez(run / "other.npz", x_train=np.ones((4, FEATURES)), y_train=np.ones((4, 3)))
    comm.Barrier()
    trained = open_run(run, None, grid.world)
    with pytest.raises(HybridnnError, match="No such file"):
        predict_file(trained, grid, run / "absent.npz")
    for source, words in (("digits", "is for classification"), ("absent.csv", "No such file"), ("digit", "digits")):
        with pytest.raises(HybridnnError, match=words):
            evaluate_run(trained, grid, source)
    with pytest.raises(HybridnnError, match="no test part"):
        evaluate_run(trained, grid, str(run / "other.npz"), part="test")


@pytest.mark.in_process(ranks=[2])
def test_bytes_of_an_epoch_do_not_depend_on_the_clock(
    comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shared_folder(comm, tmp_path)
    sent = []
    for seconds in (0.0, 1e9):  # ranks agree on a stop after every step, or hardly ever
        monkeypatch.setattr("hybridnn.runs.callbacks.AGREEMENT_SECONDS", seconds)
        comm.Barrier()
        last = train(folder / f"run-{seconds}", data={"name": "digits"}, training={"epochs": 2, "batch_size": 64})
        sent.append(last.bytes_sent)
    assert sent[0] == sent[1] > 0
