"""Every layout writes the same files, and reads its shards of those that any other layout wrote."""

import hashlib
import subprocess
from pathlib import Path
from time import sleep

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import __version__
from hybridnn.checkpoints import shards
from hybridnn.checkpoints.reading import Checkpoint, newest_valid
from hybridnn.comm.agreement import agree
from hybridnn.comm.mpi import import_mpi
from hybridnn.errors import DataError, HybridnnError
from reference.checkpoint_cases import (
    OPTIMIZERS,
    PROGRESS,
    LocalArrays,
    expected_arrays,
    laid_out,
    layouts,
    progress_at,
)

RANKS = [2, 3, 4]


@pytest.fixture(autouse=True)
def _cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide arrays as small as those of the tests."""
    monkeypatch.setattr(shards, "UNCUT_BYTES", 40)


def check_files(checkpoint: Path, optimizer: str, dtype: str, shift: float = 0) -> None:
    """Compare every file, read by NumPy, with the formula."""
    expected = expected_arrays(optimizer, dtype, shift)
    assert {path.name for path in checkpoint.iterdir()} == {*expected, "manifest.json", "SHA256SUMS"}
    for name, array in expected.items():
        found = np.load(checkpoint / name, allow_pickle=False)
        assert found.dtype == array.dtype
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, array, name)


def check_hashes(checkpoint: Checkpoint) -> None:
    """Compare every hash with that of the file's bytes."""
    for name, entry in checkpoint.manifest.arrays.items():
        data = (checkpoint.path / name).read_bytes()
        array = np.load(checkpoint.path / name)
        assert entry.sha256 == hashlib.sha256(data).hexdigest(), name
        assert (entry.bytes, entry.shape, entry.dtype) == (len(data), array.shape, array.dtype.name)
    sums = "\n".join(sorted((checkpoint.path / "SHA256SUMS").read_text().splitlines()))
    expected = [
        f"{hashlib.sha256((checkpoint.path / name).read_bytes()).hexdigest()}  {name}"
        for name in (*checkpoint.manifest.arrays, "manifest.json")
    ]
    assert sums == "\n".join(sorted(expected))


@pytest.mark.in_process(ranks=RANKS)
def test_every_layout_writes_the_same_files_and_others_read_them(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    all_layouts, optimizers = layouts(comm.size), list(OPTIMIZERS)
    for number, layout in enumerate(all_layouts):
        dtype, optimizer = ("float32", "float64")[number % 2], optimizers[number // 2 % len(optimizers)]
        local = LocalArrays.of(comm, layout, optimizer, dtype)
        local.fill()
        folder = mpi_tmp_path / str(number)
        local.writer(folder).write(PROGRESS)
        checkpoint, problems = newest_valid(folder, local.grid.world)
        assert not problems
        if comm.rank == 0:
            check_files(checkpoint.path, optimizer, dtype)
            check_hashes(checkpoint)
        comm.Barrier()
        for step in (0, 1, 5):  # over all layouts, many pairs of a writing and a reading one
            other = LocalArrays.of(comm, all_layouts[(number + step) % len(all_layouts)], optimizer, dtype)
            checkpoint.read_into(other.stages, other.states)
            other.check()


@pytest.mark.in_process(ranks=RANKS)
def test_a_background_write_has_the_state_of_its_beginning(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    for number, layout in enumerate(layouts(comm.size)):
        local = LocalArrays.of(comm, layout, "momentum", "float64")
        writer = local.writer(mpi_tmp_path / f"{number}")
        for shift, step in enumerate((10, 20)):
            for stage in local.stages:
                stage.weights = stage.weights.copy()  # as an update does while an older version is in use
            local.fill(shift)
            writer.begin(progress_at(step))
            assert writer.busy
            local.fill(9)
            path = writer.finish()
            assert not writer.busy
            assert path == mpi_tmp_path / f"{number}" / f"step-{step:08d}"
            if comm.rank == 0:
                check_files(path, "momentum", "float64", shift)
            comm.Barrier()


@pytest.mark.in_process(ranks=[4], order=3)
def test_two_writers_on_grids_of_one_shape_are_busy_at_once(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    """The grids share their communicators; what one writer agrees on must not meet what the other does."""
    for layout in layouts(comm.size)[::4]:
        locals_ = [LocalArrays.of(comm, layout, "momentum", "float64") for _ in range(2)]
        writers = [local.writer(mpi_tmp_path / f"{layout.stages}-{number}") for number, local in enumerate(locals_)]
        for step in (10, 20):
            for number, (local, writer) in enumerate(zip(locals_, writers, strict=True)):
                local.fill(step + number)
                writer.begin(progress_at(step))
            for writer in writers if comm.rank % 2 else reversed(writers):  # they begin phases in another order
                for _ in range(5):
                    writer.is_done()
                    sleep(0.001)
            paths = [writer.finish() for writer in writers]
            for number, path in enumerate(paths if comm.rank == 0 else []):
                check_files(path, "momentum", "float64", step + number)
            comm.Barrier()


@pytest.mark.in_process(ranks=RANKS)
def test_one_process_and_several_read_each_others_checkpoints(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    alone = LocalArrays.of(import_mpi().COMM_SELF, laid_out(((1, 1),)), "adam", "float32")
    alone.fill()
    if comm.rank == 0:
        alone.writer(mpi_tmp_path / "one").write(PROGRESS)
    together = LocalArrays.of(comm, laid_out(((1, comm.size),), "alternating"), "adam", "float32")
    together.fill(shift=1)
    together.writer(mpi_tmp_path / "many").write(PROGRESS)
    checkpoint, _ = newest_valid(mpi_tmp_path / "many")
    checkpoint.read_into(alone.stages, alone.states)
    alone.check(shift=1)
    checkpoint, _ = newest_valid(mpi_tmp_path / "one", together.grid.world)
    checkpoint.read_into(together.stages, together.states)
    together.check()


@pytest.mark.in_process(ranks=[2])
def test_the_manifest_is_complete(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    local = LocalArrays.of(comm, laid_out(((1, 1), (1, 1)), partition=(1, 2, 1, 1)), "momentum", "float64")
    local.fill()
    local.writer(mpi_tmp_path).write(PROGRESS)
    checkpoint, _ = newest_valid(mpi_tmp_path, local.grid.world)
    manifest = checkpoint.manifest
    assert (manifest.format_version, manifest.hybridnn, manifest.slots) == (1, __version__, ("velocity",))
    assert manifest.progress == PROGRESS  # the sum of the losses exactly
    assert manifest.origin.layout.layers == (1, 2, 1, 1)
    assert manifest.origin.layout.stages == ((1, 1), (1, 1))
    assert manifest.origin.settings == {"training.seed": "5"}


@pytest.mark.in_process(ranks=[2])
def test_an_error_of_one_rank_that_reads_is_raised_on_all(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    local = LocalArrays.of(comm, laid_out(((1, 1), (1, 1)), partition=(2, 3)), "sgd", "float64")
    local.writer(mpi_tmp_path).write(PROGRESS)
    checkpoint, _ = newest_valid(mpi_tmp_path, local.grid.world)
    if comm.rank == 0:
        (checkpoint.path / "layers.4.weight.npy").unlink()  # which rank 1 reads
    comm.Barrier()
    with pytest.raises(HybridnnError, match=r"layers\.4\.weight\.npy: cannot be read: .*No such file"):
        agree(local.grid.world, lambda: checkpoint.read_into(local.stages, local.states))


def test_other_networks_optimizers_and_dtypes_are_refused(tmp_path: Path) -> None:
    layout = laid_out(((1, 1),))
    LocalArrays.of(import_mpi().COMM_SELF, layout, "momentum", "float64").writer(tmp_path).write(PROGRESS)
    checkpoint, _ = newest_valid(tmp_path)
    other = LocalArrays.of(import_mpi().COMM_SELF, layout, "adam", "float64")
    with pytest.raises(DataError, match=r"holds velocity of the optimizer, and this optimizer needs first, second"):
        checkpoint.read_into(other.stages, other.states)
    other = LocalArrays.of(import_mpi().COMM_SELF, layout, "momentum", "float32")
    with pytest.raises(DataError, match=r"layers\.0\.weight\.npy: has shape \(13, 5\) of float64, .* of float32"):
        checkpoint.read_into(other.stages, other.states)


def test_the_weights_alone_are_plain_arrays_and_sha256sum_accepts_the_files(tmp_path: Path) -> None:
    local = LocalArrays.of(import_mpi().COMM_SELF, laid_out(((1, 1),)), "adam", "float32")
    local.fill()
    path = local.writer(tmp_path).write(PROGRESS)
    checked = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=path, capture_output=True)
    assert checked.returncode == 0, checked.stderr
    checkpoint, _ = newest_valid(tmp_path)
    weights, expected = checkpoint.weights(), expected_arrays("sgd", "float32")
    assert set(weights) == {name.removesuffix(".npy") for name in expected}
    for name, array in weights.items():
        np.testing.assert_array_equal(array, expected[f"{name}.npy"])
