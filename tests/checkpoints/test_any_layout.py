"""A checkpoint is the same files whatever layout wrote it, and every layout reads its part of them."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hybridnn import __version__
from hybridnn.checkpoints import shards
from hybridnn.checkpoints.reading import Checkpoint, newest_valid
from hybridnn.comm.mpi import import_mpi
from hybridnn.errors import DataError, HybridnnError
from reference.checkpoint_cases import (
    LAYERS,
    OPTIMIZERS,
    PROGRESS,
    SIZES,
    Layout,
    LocalArrays,
    expected_arrays,
    layouts,
    progress_at,
)

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS = [2, 3, 4]


@pytest.fixture(autouse=True)
def _cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """These arrays are far smaller than what is otherwise not cut."""
    monkeypatch.setattr(shards, "UNCUT_BYTES", 40)


def require_files(checkpoint: Path, optimizer: str, dtype: str, shift: float = 0) -> None:
    """Compare every file with the formula, as numpy reads it."""
    expected = expected_arrays(optimizer, dtype, shift)
    assert {path.name for path in checkpoint.iterdir()} == {*expected, "manifest.json", "SHA256SUMS"}
    for name, array in expected.items():
        found = np.load(checkpoint / name, allow_pickle=False)
        assert found.dtype == array.dtype
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, array, name)


def require_digests(checkpoint: Checkpoint) -> None:
    """Compare every digest with one of the file's bytes."""
    for name, entry in checkpoint.manifest.arrays.items():
        data = (checkpoint.path / name).read_bytes()
        array = np.load(checkpoint.path / name)
        assert entry.sha256 == hashlib.sha256(data).hexdigest(), name
        assert (entry.bytes, entry.shape, entry.dtype) == (len(data), array.shape, array.dtype.name)
    sums = "\n".join(sorted((checkpoint.path / "SHA256SUMS").read_text().splitlines()))
    by_hand = [
        f"{hashlib.sha256((checkpoint.path / name).read_bytes()).hexdigest()}  {name}"
        for name in (*checkpoint.manifest.arrays, "manifest.json")
    ]
    assert sums == "\n".join(sorted(by_hand))


@pytest.mark.in_process(ranks=RANKS)
def test_every_layout_writes_the_same_files_and_others_read_them(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    everything, optimizers = layouts(comm.size), list(OPTIMIZERS)
    for place, layout in enumerate(everything):
        for turn, dtype in enumerate(("float32", "float64")):
            optimizer = optimizers[(place + turn) % len(optimizers)]
            held = LocalArrays.of(comm, layout, optimizer, dtype)
            held.fill()
            folder = mpi_tmp_path / f"{place}-{optimizer}-{dtype}"
            held.writer(folder).write(PROGRESS)
            checkpoint, problems = newest_valid(folder, held.grid.world)
            assert checkpoint is not None
            assert not problems
            if comm.rank == 0:
                require_files(checkpoint.path, optimizer, dtype)
                require_digests(checkpoint)
            comm.Barrier()
            for step in (0, 1, 5):  # over all layouts, many pairs of a writing and a reading one
                other = LocalArrays.of(comm, everything[(place + step) % len(everything)], optimizer, dtype)
                checkpoint.read_into(other.stages, other.states, other.grid.world)
                other.check()


@pytest.mark.in_process(ranks=RANKS)
def test_what_is_written_beside_the_training_is_what_was_there_at_the_beginning(
    comm: MPI.Intracomm, mpi_tmp_path: Path
) -> None:
    for place, layout in enumerate(layouts(comm.size)):
        held = LocalArrays.of(comm, layout, "momentum", "float64")
        writer = held.writer(mpi_tmp_path / f"{place}")
        for shift, step in enumerate((10, 20)):
            for stage in held.stages:
                stage.weights = stage.weights.copy()  # as an update does where an older version is still read
            held.fill(shift)
            writer.begin(progress_at(step))
            assert writer.busy
            held.fill(9)
            path = writer.finish()
            assert not writer.busy
            assert path == mpi_tmp_path / f"{place}" / f"step-{step:08d}"
            if comm.rank == 0:
                require_files(path, "momentum", "float64", shift)
            comm.Barrier()


@pytest.mark.in_process(ranks=RANKS)
def test_one_process_reads_what_many_wrote_and_the_reverse(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    alone = LocalArrays.of(import_mpi().COMM_SELF, Layout(((1, 1),)), "adam", "float32")
    alone.fill()
    if comm.rank == 0:
        alone.writer(mpi_tmp_path / "one").write(PROGRESS)
    together = LocalArrays.of(comm, Layout(((1, comm.size),), "alternating"), "adam", "float32")
    together.fill(shift=1)
    together.writer(mpi_tmp_path / "many").write(PROGRESS)
    checkpoint, _ = newest_valid(mpi_tmp_path / "many")
    assert checkpoint is not None
    checkpoint.read_into(alone.stages, alone.states)
    alone.check(shift=1)
    checkpoint, _ = newest_valid(mpi_tmp_path / "one", together.grid.world)
    assert checkpoint is not None
    checkpoint.read_into(together.stages, together.states, together.grid.world)
    together.check()


@pytest.mark.in_process(ranks=[2])
def test_the_manifest_says_everything(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    held = LocalArrays.of(comm, Layout(((1, 1), (1, 1)), partition=(1, 2, 1, 1)), "momentum", "float64")
    held.fill()
    for state in held.states:
        state.updates = 20 + comm.rank  # of an undrained pipeline: told apart here
    held.writer(mpi_tmp_path).write(PROGRESS)
    checkpoint, _ = newest_valid(mpi_tmp_path, held.grid.world)
    assert checkpoint is not None
    manifest = checkpoint.manifest
    assert (manifest.format_version, manifest.hybridnn, manifest.slots) == (1, __version__, ("velocity",))
    assert manifest.progress == PROGRESS  # the sum of the losses to its last digit
    assert manifest.weight_versions == (20, 21, 21, 20, 21)
    assert manifest.origin.partition == (1, 2, 1, 1)
    assert manifest.origin.stages == ((1, 1), (1, 1))
    assert manifest.origin.seed == 5
    whole = LocalArrays.of(import_mpi().COMM_SELF, Layout(((1, 1),)), "momentum", "float64")
    with pytest.raises(DataError, match=r"the layers of a stage have \[20, 21\] updates"):
        checkpoint.read_into(whole.stages, whole.states)


@pytest.mark.in_process(ranks=[2])
def test_an_error_of_one_rank_that_reads_is_raised_on_all(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    held = LocalArrays.of(comm, Layout(((1, 1), (1, 1)), partition=(2, 3)), "sgd", "float64")
    held.writer(mpi_tmp_path).write(PROGRESS)
    checkpoint, _ = newest_valid(mpi_tmp_path, held.grid.world)
    assert checkpoint is not None
    if comm.rank == 0:
        (checkpoint.path / "layers.4.weight.npy").unlink()  # which rank 1 reads
    comm.Barrier()
    with pytest.raises(HybridnnError, match=r"layers\.4\.weight\.npy: cannot be read: .*No such file"):
        checkpoint.read_into(held.stages, held.states, held.grid.world)


@pytest.mark.in_process(ranks=[4])
def test_every_rank_writes_about_the_same_bytes(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    for stages in (((4, 1),), ((2, 2),), ((1, 4),), ((2, 1), (2, 1))):
        held = LocalArrays.of(
            comm, Layout(stages, partition=(LAYERS,) if len(stages) == 1 else (2, 3)), "adam", "float64"
        )
        writer = held.writer(mpi_tmp_path)
        pending = writer._snapshot(PROGRESS, copies=True)
        written = sum(elements.nbytes for _, _, elements in pending.to_write)
        stage = sum(stage.weights.nbytes * 3 for stage in held.stages) * held.grid.model
        widest_row = 13 * 8
        # The buffers have padding, which is not written: up to 120 bytes an array.
        assert abs(written - stage / (held.grid.batch * held.grid.model)) <= 2 * widest_row + 120 * 3 * 2 * LAYERS


def test_the_files_are_those_that_sha256sum_knows(tmp_path: Path) -> None:
    held = LocalArrays.of(import_mpi().COMM_SELF, Layout(((1, 1),)), "adam", "float64")
    path = held.writer(tmp_path).write(PROGRESS)
    checked = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=path, capture_output=True)
    assert checked.returncode == 0, checked.stderr


def test_other_networks_optimizers_and_dtypes_are_refused(tmp_path: Path) -> None:
    layout = Layout(((1, 1),))
    LocalArrays.of(import_mpi().COMM_SELF, layout, "momentum", "float64").writer(tmp_path).write(PROGRESS)
    checkpoint, _ = newest_valid(tmp_path)
    assert checkpoint is not None
    other = LocalArrays.of(import_mpi().COMM_SELF, layout, "adam", "float64")
    with pytest.raises(DataError, match=r"holds velocity of the optimizer, this one remembers first, second"):
        checkpoint.read_into(other.stages, other.states)
    other = LocalArrays.of(import_mpi().COMM_SELF, layout, "momentum", "float32")
    with pytest.raises(DataError, match=r"layers\.0\.weight\.npy: has shape \(13, 5\) of float64, .* of float32"):
        checkpoint.read_into(other.stages, other.states)


def test_the_weights_alone_are_plain_arrays(tmp_path: Path) -> None:
    held = LocalArrays.of(import_mpi().COMM_SELF, Layout(((1, 1),)), "adam", "float32")
    held.fill()
    held.writer(tmp_path).write(PROGRESS)
    checkpoint, _ = newest_valid(tmp_path)
    assert checkpoint is not None
    weights, expected = checkpoint.weights(), expected_arrays("sgd", "float32")
    assert set(weights) == {name.removesuffix(".npy") for name in expected}
    for name, array in weights.items():
        np.testing.assert_array_equal(array, expected[f"{name}.npy"])
    assert len(weights) == 2 * (len(SIZES) - 1)
