"""A crash, a full disk, an unwritable folder: older checkpoints stay, and every rank raises the reason."""

import contextlib
import errno
import os
import shutil
import subprocess
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

from hybridnn.checkpoints.reading import newest_valid
from hybridnn.errors import EnvironmentProblem, SettingError
from reference.checkpoint_cases import LocalArrays, laid_out, progress_at

ONE = laid_out(((1, 1),))
CALLS = ("open", "pwrite", "fsync", "mkdir", "rename", "unlink", "rmdir")
"""All calls that change a folder, except ``io.open``, by which the manifest is written."""

Usage = namedtuple("Usage", "total used free")


class CountedCalls:
    """Counts the calls of ``os`` in background threads, and runs a function before one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, do: Callable[[str, tuple[Any, ...]], None]) -> None:
        self.calls: list[str] = []
        self._lock = threading.Lock()
        for name in CALLS:
            monkeypatch.setattr(os, name, self._before(name, getattr(os, name), at, do))

    def _before(self, name: str, call: Callable[..., Any], at: int, do: Callable[..., None]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                with self._lock:
                    self.calls.append(name)
                    number = len(self.calls)
                if number == at:
                    do(name, arguments)
            return call(*arguments, **options)

        return counted


def die(name: str, arguments: tuple[Any, ...]) -> None:
    """Exit at once, in the middle of a write."""
    if name == "pwrite":
        descriptor, data, offset = arguments
        os.lseek(descriptor, offset, os.SEEK_SET)
        os.write(descriptor, data[: len(data) // 2])
    os._exit(9)


def fail(name: str, arguments: tuple[Any, ...]) -> None:
    raise OSError(errno.EIO, "Input/output error")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def crashes(folder: Path, write: Callable[[], object], at: int) -> bool:
    """Write in a process that exits at its call number `at`; False if it made fewer calls."""
    child = os.fork()
    if child == 0:
        with pytest.MonkeyPatch.context() as monkeypatch:
            CountedCalls(monkeypatch, at, die)
            write()
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("existing", "keep"), [((10,), 1), ((10, 20), 3)], ids=["replaces an older one", "replaces one of the same step"]
)
def test_a_crash_at_any_moment_leaves_a_valid_checkpoint(tmp_path: Path, existing: tuple[int, ...], keep: int) -> None:
    local = LocalArrays.of(MPI.COMM_SELF, ONE, "sgd", "float64")
    before, folder = tmp_path / "before", tmp_path / "now"
    for step in existing:
        local.fill(shift=step)
        local.writer(before).write(progress_at(step))
    shutil.copytree(before, folder)
    writer = local.writer(folder, keep=keep)
    local.fill(shift=1)

    outcomes, number = [], 1
    while crashes(folder, lambda: writer.write(progress_at(20)), number):
        checkpoint, problems = newest_valid(folder)
        assert checkpoint is not None, number
        assert not problems, number
        found = LocalArrays.of(MPI.COMM_SELF, ONE, "sgd", "float64")
        checkpoint.read_into(found.stages, found.states)
        step = checkpoint.manifest.progress.step
        shift = found.stages[0].weights[0] - 0.5
        found.check(shift, updates=step)
        assert (step, shift) in [(existing[-1], existing[-1]), (20, 1)]
        outcomes.append(shift == 1)

        local.writer(folder, keep=keep).write(progress_at(30))  # the next run can write
        assert {"step-00000030"} <= set(names_in(folder)) <= {f"step-000000{step}" for step in (10, 20, 30)}
        shutil.rmtree(folder)
        shutil.copytree(before, folder)
        number += 1
    assert newest_valid(folder)[0] is not None
    assert number > 40  # 10 files, each opened, written and synchronized
    assert outcomes == sorted(outcomes)  # once the new checkpoint exists, it stays
    assert not outcomes[0]
    assert outcomes[-1]  # the replaced checkpoint is removed after the rename


def error_of(finish: Callable[[], object]) -> str | None:
    """Message of an `EnvironmentProblem`, if one is raised."""
    try:
        finish()
    except EnvironmentProblem as error:
        return str(error)
    return None


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("stages", [((2, 1),), ((1, 2),), ((1, 1), (1, 1))], ids=["batch", "model", "pipeline"])
def test_an_error_of_one_rank_is_an_error_of_all_and_leaves_the_older(comm, mpi_tmp_path, stages) -> None:
    local = LocalArrays.of(
        comm, laid_out(stages, "alternating", (5,) if len(stages) == 1 else (2, 3)), "sgd", "float32"
    )
    local.fill()
    writer = local.writer(mpi_tmp_path, keep=8)
    writer.write(progress_at(10))
    for failing in range(comm.size):
        number, reached = 0, ["first"]
        while reached:
            number += 1
            with pytest.MonkeyPatch.context() as monkeypatch:
                calls = CountedCalls(monkeypatch, number if comm.rank == failing else 0, fail)
                writer.begin(progress_at(20))
                error = error_of(writer.finish)
                reached = comm.bcast(calls.calls[number - 1 : number], failing)
            if reached and reached != ["mkdir"]:  # another rank may have made the folder
                assert error == f"checkpoint {mpi_tmp_path / 'step-00000020'} cannot be written: Input/output error"
            elif not reached:
                assert error is None
            checkpoint, problems = newest_valid(mpi_tmp_path, local.grid.world)
            assert not problems
            if checkpoint.path.name == "step-00000010":
                assert names_in(mpi_tmp_path) == ["step-00000010"]
            comm.Barrier()
        assert number > 10
        assert checkpoint.path.name == "step-00000020"
        comm.Barrier()
        if comm.rank == 0:
            shutil.rmtree(mpi_tmp_path / "step-00000020")
        comm.Barrier()


def test_everything_is_on_disk_before_the_folder_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, str]] = []
    rename = os.rename

    def synced(descriptor: int) -> None:
        events.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))

    def renamed(source: Path, target: Path) -> None:
        events.append(("rename", Path(target).name))
        rename(source, target)

    monkeypatch.setattr("os.fsync", synced)
    monkeypatch.setattr("os.rename", renamed)
    writer = LocalArrays.of(MPI.COMM_SELF, ONE, "adam", "float32").writer(tmp_path / "run" / "checkpoints")
    writer.history = tmp_path / "history"
    writer.history.touch()
    for step, new_folders in ((20, {"run", tmp_path.name}), (30, set())):
        events.clear()
        path = writer.write(progress_at(step))
        at = events.index(("rename", path.name))
        assert {name for _, name in events[:at]} == {*names_in(path), f".{path.name}.partial", "history"}
        assert {name for _, name in events[at + 1 :]} == {"checkpoints", *new_folders}


def test_a_write_is_finished_before_the_next_begins(tmp_path: Path) -> None:
    writer = LocalArrays.of(MPI.COMM_SELF, ONE, "sgd", "float32").writer(tmp_path)
    with pytest.raises(RuntimeError, match="no checkpoint was begun"):
        writer.finish()
    assert writer.is_done()
    writer.begin(progress_at(10))
    with pytest.raises(RuntimeError, match="not finished"):
        writer.begin(progress_at(20))
    assert writer.finish().name == "step-00000010"


def test_leftovers_of_an_earlier_run_are_removed(tmp_path: Path) -> None:
    local = LocalArrays.of(MPI.COMM_SELF, ONE, "sgd", "float32")
    for name in (".step-00000010.partial", ".step-00000020.removed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "layers.0.weight.npy").write_bytes(b"longer than the new file" * 99)
    local.fill()
    local.writer(tmp_path).write(progress_at(10))
    assert names_in(tmp_path) == ["step-00000010"]
    checkpoint, problems = newest_valid(tmp_path)
    assert checkpoint is not None
    assert not problems


def test_at_least_one_is_kept(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"training\.keep"):
        LocalArrays.of(MPI.COMM_SELF, ONE, "sgd", "float32").writer(tmp_path, keep=0)


@contextlib.contextmanager
def small_disk(folder: Path, comm: MPI.Intracomm, size: str) -> Iterator[None]:
    """A tmpfs of that size at `folder`; skips the test on every rank if it cannot be mounted."""
    mounted = False
    if comm.rank == 0:
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    if not comm.bcast(mounted):
        pytest.skip("needs to mount a small file system: only root may, and not in every container")
    try:
        yield
    finally:
        comm.Barrier()
        if comm.rank == 0:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("reported", [True, False], ids=["checked before", "found when writing"])
@pytest.mark.parametrize("model", [1, 2])
def test_a_full_disk(comm, mpi_tmp_path, monkeypatch, reported, model) -> None:
    if not reported:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 1 << 40))
    local = LocalArrays.of(comm, laid_out(((comm.size // model, model),), "alternating"), "adam", "float64")
    local.fill()
    disk = mpi_tmp_path / "disk"
    with small_disk(disk, comm, "400k"):
        writer = local.writer(disk / "checkpoints")
        writer.write(progress_at(10))  # at least 18 files of one or two pages of 4 KiB
        if comm.rank == 0:
            free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
            (disk / "others").write_bytes(bytes(free - 40_000))
        comm.Barrier()
        for _ in range(2):
            with pytest.raises(EnvironmentProblem, match=r"step-00000020 cannot be written: No space left on device"):
                writer.write(progress_at(20))
            comm.Barrier()
            assert names_in(disk / "checkpoints") == ["step-00000010"]
            comm.Barrier()
        with pytest.raises(EnvironmentProblem, match=r"step-00000010 cannot be written: No space left on device"):
            local.writer(disk / "first").write(progress_at(10))
        comm.Barrier()
        assert not (disk / "first").exists()  # no empty folder stays
        checkpoint, problems = newest_valid(disk / "checkpoints", local.grid.world)
        assert checkpoint is not None
        assert not problems
        comm.Barrier()
        if comm.rank == 0:
            (disk / "others").unlink()
        comm.Barrier()
        assert writer.write(progress_at(20)).name == "step-00000020"


@pytest.mark.mpi(ranks=[2])
def test_a_disk_that_cannot_be_written(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    local = LocalArrays.of(comm, laid_out(((comm.size, 1),)), "sgd", "float64")
    disk = mpi_tmp_path / "disk"
    with small_disk(disk, comm, "1m"):
        writer = local.writer(disk / "checkpoints")
        comm.Barrier()
        if comm.rank == 0:
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        comm.Barrier()
        with pytest.raises(EnvironmentProblem, match=r"step-00000010 cannot be written: Read-only file system"):
            writer.write(progress_at(10))
        for name in ("checkpoints", "others"):
            with pytest.raises(EnvironmentProblem, match=rf"checkpoint folder .*/{name} cannot be written: "):
                local.writer(disk / name)
