"""Damage is found and named, and the newest valid checkpoint is used instead."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn.checkpoints.folder import checkpoint_folders
from hybridnn.checkpoints.reading import newest_valid
from hybridnn.comm.agreement import gather_texts
from hybridnn.errors import DataError
from reference.checkpoint_cases import Layout, LocalArrays, laid_out, progress_at
from reference.damaged_files import forge, replace

ONE = laid_out(((1, 1),))
FILE = "layers.2.weight.npy"


def three_checkpoints(folder: Path, comm: MPI.Intracomm = MPI.COMM_SELF, layout: Layout = ONE) -> LocalArrays:
    """Write checkpoints of steps 10, 20 and 30 with different elements."""
    local = LocalArrays.of(comm, layout, "sgd", "float32")
    writer = local.writer(folder)
    for step in (10, 20, 30):
        local.fill(shift=step, updates=step)
        writer.write(progress_at(step))
    return local


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def remove_a_key(path: Path) -> None:
    values = json.loads(path.read_text())
    del values["origin"]["settings"]
    path.write_text(json.dumps(values))


def swap_bytes(path: Path) -> None:
    """Write an array as a machine of the other byte order does."""
    array = np.load(path)
    np.save(path, array.astype(array.dtype.newbyteorder()))
    forge(path.with_name(MANIFEST), ["arrays", FILE, "sha256"], hashlib.sha256(path.read_bytes()).hexdigest())


MANIFEST, SUMS = "manifest.json", "SHA256SUMS"
DAMAGES: tuple[tuple[str, Callable[[Path], object], str], ...] = (
    (FILE, lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes"),
    (FILE, lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes"),
    (FILE, lambda path: path.write_bytes(b""), "has 0 bytes"),
    (FILE, Path.unlink, "the file is missing"),
    (FILE, lambda path: flip(path, 0), "SHA-256"),
    (FILE, lambda path: flip(path, -1), "SHA-256"),
    (FILE, lambda path: replace(path, "a folder"), "bytes"),
    (MANIFEST, lambda path: path.write_bytes(path.read_bytes()[:-1]), "SHA-256"),
    (MANIFEST, lambda path: path.write_bytes(b""), "SHA-256"),
    (MANIFEST, lambda path: path.write_bytes(path.read_bytes()[:99]), "not JSON"),
    (MANIFEST, lambda path: path.write_bytes(b"\xff\xfe"), "cannot be read"),
    (MANIFEST, lambda path: path.write_text("[]"), "must be a section with keys"),
    (MANIFEST, lambda path: path.write_text(path.read_text().replace('"step": 30', '"step": 31')), "SHA-256"),
    (MANIFEST, remove_a_key, "origin.settings"),
    # with valid digests
    (FILE, swap_bytes, "is not the array that the manifest describes"),
    (MANIFEST, lambda path: forge(path, ["progress", "step"], 31), "progress.step = 31"),
    (MANIFEST, lambda path: forge(path, ["arrays"], {}), "the array layers.0.bias.npy is missing"),
    (MANIFEST, lambda path: forge(path, ["arrays", FILE, "dtype"], "float16"), "dtype"),
    (MANIFEST, Path.unlink, "missing"),
    (SUMS, Path.unlink, "missing"),
)
"""Damaged file, damage, and what is said about it."""


@pytest.mark.in_process(ranks=[1, 3])
def test_all_ranks_find_the_same_damage_and_use_an_older_checkpoint(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    local = three_checkpoints(mpi_tmp_path, comm, laid_out(((comm.size, 1),)))
    for number, (file, harm, message) in enumerate(DAMAGES):
        folder = mpi_tmp_path.with_name(f"{mpi_tmp_path.name}-{number}")
        if comm.rank == 0:
            shutil.copytree(mpi_tmp_path, folder)
            harm(folder / "step-00000030" / file)
            flip(folder / "step-00000020" / "layers.4.bias.npy", -1)
        comm.Barrier()
        checkpoint, problems = newest_valid(folder, local.grid.world)
        assert checkpoint.path.name == "step-00000010"
        assert len(problems) == 2
        assert f"{folder / 'step-00000030' / file}: " in problems[0]
        assert message in problems[0]
        assert "layers.4.bias.npy" in problems[1]
        assert gather_texts(local.grid.world, repr(problems)) == [repr(problems)] * comm.size
        checkpoint.read_into(local.stages, local.states)
        local.check(shift=10, updates=10)


def test_any_byte_that_changed_is_found(tmp_path: Path) -> None:
    three_checkpoints(tmp_path)
    newest = tmp_path / "step-00000030"
    for name in ("layers.0.bias.npy", "layers.4.weight.npy", "manifest.json"):
        data = (newest / name).read_bytes()
        for offset in range(0, len(data), 41):
            flip(newest / name, offset)
            checkpoint, problems = newest_valid(tmp_path)
            assert checkpoint.path.name == "step-00000020", (name, offset)
            assert len(problems) == 1
            (newest / name).write_bytes(data)
    checkpoint, problems = newest_valid(tmp_path)
    assert checkpoint.path == newest
    assert not problems


def test_without_a_valid_checkpoint_all_problems_are_returned(tmp_path: Path) -> None:
    three_checkpoints(tmp_path)
    for path in checkpoint_folders(tmp_path):
        (path / FILE).unlink()
    (tmp_path / "step-00000040").mkdir()
    checkpoint, problems = newest_valid(tmp_path)
    assert checkpoint is None
    steps = [f"step-000000{step}" for step in (40, 30, 20, 10)]
    assert [step in problem for step, problem in zip(steps, problems, strict=True)] == [True] * 4


@pytest.mark.in_process(ranks=[1, 2])
def test_no_folder_and_an_empty_one_have_no_checkpoint(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    world = LocalArrays.of(comm, laid_out(((comm.size, 1),)), "sgd", "float32").grid.world
    assert newest_valid(mpi_tmp_path / "nothing", world) == (None, [])
    assert newest_valid(mpi_tmp_path, world) == (None, [])


@pytest.mark.in_process(ranks=[1, 2])
def test_a_newer_version_is_an_error_on_every_rank(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    local = three_checkpoints(mpi_tmp_path, comm, laid_out(((comm.size, 1),)))
    if comm.rank == 0:
        manifest = mpi_tmp_path / "step-00000030" / "manifest.json"
        values = json.loads(manifest.read_text()) | {"format_version": 2, "hybridnn": "7.8.9", "unheard": "of"}
        manifest.write_text(json.dumps(values))
        digest = hashlib.sha256(manifest.read_bytes()).hexdigest()  # a damaged version number is damage, not a version
        manifest.with_name("SHA256SUMS").write_text(f"{digest}  manifest.json\n")
    comm.Barrier()
    with pytest.raises(DataError, match=r"step-00000030/manifest\.json: format version 2, .* hybridnn 7\.8\.9"):
        newest_valid(mpi_tmp_path, local.grid.world)
    comm.Barrier()
    if comm.rank == 0:
        manifest.write_text("{}")  # now damaged; the older ones have this version
    comm.Barrier()
    checkpoint, problems = newest_valid(mpi_tmp_path, local.grid.world)
    assert checkpoint.path.name == "step-00000020"
    assert len(problems) == 1


def test_other_names_are_left_alone(tmp_path: Path) -> None:
    local = three_checkpoints(tmp_path)
    other_names = ["notes.txt", "step-12", "step-00000050.bak", ".step-00000050", "best-00000050"]
    for name in other_names:
        (tmp_path / name).mkdir()
    writer = local.writer(tmp_path, keep=1)
    writer.write(progress_at(40))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*other_names, "step-00000040"])


@pytest.mark.parametrize("kind", ["nothing", "a folder", "a FIFO", "a link to itself", "4 TB of zeros"])
def test_a_checkpoint_is_written_in_place_of_anything(tmp_path: Path, kind: str) -> None:
    local = three_checkpoints(tmp_path)
    replace(tmp_path / "step-00000030", kind)
    checkpoint, problems = newest_valid(tmp_path)
    assert checkpoint.path.name == "step-00000020"
    assert len(problems) == (0 if kind == "nothing" else 1)
    path = local.writer(tmp_path).write(progress_at(30))
    checkpoint, problems = newest_valid(tmp_path)
    assert (checkpoint.path, problems) == (path, [])


def test_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    writer = (local := LocalArrays.of(MPI.COMM_SELF, ONE, "sgd", "float32")).writer(tmp_path, keep=2)
    for step in (1, 2, 99_999_999, 100_000_000):
        local.fill(step % 7)
        writer.write(progress_at(step))
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["step-100000000", "step-99999999"]


def test_checkpoints_of_later_steps_are_removed(tmp_path: Path) -> None:
    local = three_checkpoints(tmp_path)
    (tmp_path / "step-00000030" / FILE).unlink()
    local.writer(tmp_path, keep=2).write(progress_at(25))
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["step-00000025", "step-00000020"]
