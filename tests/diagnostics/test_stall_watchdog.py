"""Jobs that stall or fail: each ends with exit code 1 and a report that names the rank; what is no stall goes on."""

import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn.comm.recorder import Recorder
from hybridnn.diagnostics import failsafe
from hybridnn.diagnostics.failsafe import LEFT_TAG, running_world, send_departure
from hybridnn.diagnostics.stall_files import StallFiles
from hybridnn.diagnostics.stall_watchdog import StallWatchdog, _DepartureNote, create_shared_folder
from hybridnn.parallel.grid import ProcessGrid
from mpi_runner.launch import run_job, run_mpi
from mpi_runner.slowness import deadline

PROGRAM = """
import os, time
from pathlib import Path
import numpy as np
from hybridnn import ProcessGrid

grid = ProcessGrid()
world, numbers, watch = grid.world, np.zeros(100), grid.stall_watchdog
end_watch = watch.start(grid, {seconds})
watch.use_folder(Path("run"), str)

def oversleep():
    time.sleep(1000)

for step in range(6):
    if step == 5 and grid.rank == 1:
        oversleep()
    world.allreduce(numbers)
print("unreachable")
"""


def test_a_sleeping_rank_is_named_and_every_rank_writes_its_state(tmp_path: Path) -> None:
    """Under MPI."""
    (tmp_path / "job.py").write_text(PROGRAM.format(seconds=deadline(1)))
    result = run_mpi(2, [sys.executable, "job.py"], timeout=60, cwd=tmp_path)
    assert (result.timed_out, result.returncode, result.stdout) == (False, 1, "")
    assert result.stderr.count("=== the job stood still") == 1
    assert "* rank 1 (host " in result.stderr
    assert "did not arrive: outside of communication, at job.py:13 in oversleep" in result.stderr
    assert "; rank 0 waits in allreduce 6 of group world (ranks 0, 1) at job.py:18 in <module>" in result.stderr
    folder = tmp_path / "run" / "stall"
    states = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert states[1]["call"] is None
    assert states[1]["user_line"]["function"] == "oversleep"
    call = states[0]["call"]
    facts = {name: call[name] for name in ("operation", "axis", "members", "number", "nbytes", "dtype", "detail")}
    # The sixth collective: the ranks summed five times.
    assert facts == {
        "operation": "allreduce", "axis": "world", "members": "0, 1", "number": 6, "nbytes": 800,
        "dtype": "float64", "detail": "sum",
    }  # fmt: skip
    assert call["seconds"] >= 0.7
    assert states[0]["stack"][-1]["file"].endswith("group.py")
    assert Path(states[0]["call_site"]["file"]).name == "job.py"
    for state in states:
        assert state["stalled"]
        assert state["idle_seconds"] >= 1
        assert state["finished"] == ["allreduce (world)"] * 5
    processes = json.loads((folder / "job.json").read_text())["processes"]
    assert processes == [f"host {state['host']}, process {state['process']}" for state in states]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all jobs of `stalling_jobs.py`, which have ended."""
    folder, program = tmp_path_factory.mktemp("jobs"), Path(__file__).with_name("stalling_jobs.py")
    result = run_job([sys.executable, str(program), str(folder), f"{deadline(1)}"], timeout=60)
    assert (result.timed_out, result.returncode) == (False, 0), result.stderr
    return folder


STALL, DEPARTURE = "=== the job stood still: no rank finished anything for ", "=== the job cannot go on: "
WAIT = "wait in allreduce 6 of group world (ranks 0-2) at stalling_jobs.py:"


@pytest.mark.parametrize(
    ("job", "header", "expected"),
    [
        ("stopped", STALL, ["* rank 0 gave no sign: stopped, dead, swapped out, or not in", f"; ranks 1, 2 {WAIT}"]),
        ("exit", DEPARTURE, ["* rank 1 left the job: its script ended with exit code 0, by s", f"; ranks 0, 2 {WAIT}"]),
        (
            "another collective",
            STALL,
            [
                "* collective 6 of group world (ranks 0-2) is not the same call on all ranks: rank 1 called broadcast "
                "of 400 bytes float64 with root 0; ranks 0, 2 called allreduce (sum) of 800 bytes float64"
            ],
        ),
        ("polls", STALL, ["* rank 1 (host ", f" in oversleep; ranks 0, 2 {WAIT}"]),
        ("receives", STALL, ["* ranks 0, 1 wait for one another: rank 0 in receive from rank 1, 800 bytes float64"]),
        ("long work", STALL, [" did not arrive: writing a checkpoint, at stalling_jobs.py:"]),
        ("waiting work", STALL, ["* ranks 0, 1 wait for one another: "]),
        ("no folder", STALL, ["* the ranks could not exchange their states: "]),
        ("other node", STALL, ["* rank 1 is on other nodes, which share no folder with this one: this report covers"]),
    ],
)  # fmt: skip
def test_a_stalled_job_ends_with_a_report_of_its_cause(jobs: Path, job: str, header: str, expected: list[str]) -> None:
    output = (jobs / job / "output").read_text()
    assert (jobs / job / "code").read_text() == "1"
    assert output.count("=== the job ") == output.count(header) == 1
    assert [text for text in expected if text not in output] == []
    assert "rank 0 begins" in output  # what was printed before is not lost
    assert "done" not in output
    assert ("gave no sign" in output) == (job == "stopped")
    assert ("\ngo on like this\n" in output) == (job != "other node")


def test_states_and_notes_remain_beside_a_report(jobs: Path) -> None:
    def names(job: str) -> list[str]:
        return sorted(path.name for path in (jobs / job / "run" / "stall").glob("*.json"))

    assert json.loads((jobs / "stopped" / "run/stall/job.json").read_text())["unresponsive"] == "0"
    assert names("stopped") == ["job.json", "rank-1.json", "rank-2.json"]
    assert names("exit") == ["job.json", "left-1.json", "rank-0.json", "rank-2.json"]


@pytest.mark.parametrize("job", ["killed", "ended"])
def test_a_process_that_ends_without_a_word_ends_the_job_at_once(jobs: Path, job: str) -> None:
    """Its exit code is known until the process that has started it takes it."""
    output = (jobs / job / "output").read_text()
    ends = r"(killed by signal 9|ended with exit code 0 and without a word|killed, or ended without a word)"
    assert len(re.findall(rf"=== rank 2 \(process \d+\) is gone: {ends}; the job ends ===", output)) == 1
    assert "the job ends ===\ngo on like this\n" in output  # once more, if the rank that ends the job is missed too
    assert (jobs / job / "code").read_text() == "1"


@pytest.mark.parametrize(("job", "ranks"), [("work", 3), ("nothing to wait for", 1), ("suspended", 1)])
def test_announced_work_no_waiting_and_a_suspended_process_are_no_stall(jobs: Path, job: str, ranks: int) -> None:
    output = (jobs / job / "output").read_text()
    assert (jobs / job / "code").read_text() == "0"
    assert output.count("done\n") == ranks
    assert "===" not in output
    assert not (jobs / job / "run" / "stall").exists()


class Owner:
    """What trains."""


def count_watchdogs() -> int:
    return sum(thread.name == "stall watchdog" for thread in threading.enumerate())


def test_a_watchdog_ends_with_its_owners_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the trainer writes the departure note: its own thread may end with the interpreter meanwhile."""
    before, writers = count_watchdogs(), []
    write = _DepartureNote.write
    monkeypatch.setattr(
        _DepartureNote, "write", lambda note: (writers.append(threading.current_thread().name), write(note))
    )
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        watch = StallWatchdog(Recorder(), (folder, (0,)), 0, 1)
        first, second = Owner(), Owner()
        watch.start(first, 30.0)
        end = watch.start(second, 30.0)
        assert count_watchdogs() > before
        if number % 2:
            end()
        del first, second, watch, end
    end = time.monotonic() + deadline(60)
    while count_watchdogs() > before and time.monotonic() < end:
        time.sleep(0.05)
    assert count_watchdogs() == before
    assert list(tmp_path.iterdir()) == []
    assert writers == ["MainThread"] * 20


def test_a_watchdog_without_a_limit_starts_no_thread(tmp_path: Path) -> None:
    before = count_watchdogs()
    watch = StallWatchdog(Recorder(), (tmp_path / "notes", (0,)), 0, 1)
    end = watch.start(watch, 0.0)
    with watch.busy("something"):
        assert count_watchdogs() == before
    end()
    assert list(tmp_path.iterdir()) == []


def test_files_of_an_earlier_run_are_removed(tmp_path: Path) -> None:
    old = tmp_path / "run" / "stall"
    old.mkdir(parents=True)
    for name in ("rank-0.json", "rank-7.json", "left-7.json", "job.json", "alarm"):
        (old / name).write_text("{}")
    watch = StallWatchdog(Recorder(), (tmp_path / "notes", (0,)), 0, 1)
    watch.use_folder(tmp_path / "run", str)
    assert not old.exists()


@pytest.mark.mpi(ranks=[1, 3])
def test_a_stopped_watchdog_leaves_no_threads_and_descriptors(mpi_ranks: int) -> None:
    before, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    grid = ProcessGrid()
    for _ in range(3):
        watch = grid.stall_watchdog
        end = watch.start(grid, 1000) if watch is not None else int
        grid.world.allreduce(np.zeros(1))
        assert threading.active_count() == before + 2 * (mpi_ranks > 1)
        end()
        for thread in threading.enumerate():
            if thread.name in ("stall watchdog", "process watchdog"):
                thread.join(60)
    assert threading.active_count() == before
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.mpi(ranks=[2])
def test_the_folder_is_where_all_ranks_share_it(comm, tmp_path, monkeypatch) -> None:
    """Rank 1 shares the temporary directory of rank 0, then only the current one, then neither."""
    node = comm.Split(comm.rank, 0)
    hidden: list[Path] = []
    sees = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: not any(h in path.parents for h in hidden) and sees(path))
    common = Path(comm.bcast(str(tmp_path), 0))
    temporary, current = common / "temporary", common / "current"
    if comm.rank == 0:
        temporary.mkdir()
        current.mkdir()
    comm.Barrier()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.chdir(current)
    found = []
    for more in ([], [temporary], [current]):
        hidden += more if comm.rank == 1 else []
        monkeypatch.setattr(tempfile, "tempdir", str(temporary if current not in hidden else tmp_path))
        found.append(create_shared_folder(comm, node))
        comm.Barrier()
    assert [folder.parent for folder, _ in found[:2]] == [temporary, current]
    assert [ranks for _, ranks in found] == [(0, 1), (0, 1), (comm.rank,)]
    assert found[2][0].parent == (temporary if comm.rank == 0 else tmp_path)
    assert all(sees(folder) for folder, _ in found)
    comm.Barrier()
    # Folders that are not shared are removed.
    assert len(list(temporary.iterdir())) == 2
    assert len(list(current.iterdir())) == 1


def test_a_folder_that_another_rank_removes_at_this_moment_is_already_clear(tmp_path, monkeypatch) -> None:
    files = StallFiles(tmp_path)
    files.path.mkdir()

    def removed(self: Path, pattern: str) -> list[Path]:
        raise FileNotFoundError(2, "No such file or directory", str(self))

    monkeypatch.setattr(Path, "glob", removed)
    files.clear()
    assert files.count_left() == 0
    assert not files.path.exists()


def broken_part() -> None:
    raise RuntimeError("the disk of rank 2 is gone")


def call_hook(error: BaseException) -> None:
    try:
        raise error
    except BaseException as raised:
        sys.excepthook(type(raised), raised, raised.__traceback__)


def run_thread(target: Callable[[], object]) -> None:
    thread = threading.Thread(target=target, name="writer")
    thread.start()
    thread.join()


@pytest.fixture
def others_seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Errors that reached the hooks of the program, after which those of the package were installed."""
    seen: list[str] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, *_: seen.append(kind.__name__))
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(args.exc_type.__name__))
    for owner, name in ((sys, "exit"), (os, "_exit")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # restored afterwards
    monkeypatch.delenv("HYBRIDNN_NO_ABORT", raising=False)
    failsafe.install()
    return seen


@pytest.fixture
def aborts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Exit codes with which rank 2 of four has ended the job."""
    codes: list[int] = []
    world = SimpleNamespace(Get_rank=lambda: 2, Get_size=lambda: 4, Abort=codes.append)
    monkeypatch.setattr(failsafe, "running_world", lambda: world)
    monkeypatch.setattr(failsafe, "FORWARDING_SECONDS", 0.0)
    monkeypatch.setattr(failsafe, "_start_last_resort", lambda: None)
    monkeypatch.setattr(failsafe, "exit_now", lambda code: None)
    return codes


@pytest.mark.parametrize(
    ("fail", "header", "name"),
    [
        (lambda: call_hook(ValueError("lost")), "=== rank 2 of 4 failed; ending the job ===", "ValueError: lost"),
        (lambda: call_hook(KeyboardInterrupt()), "=== rank 2 of 4 failed; ending the job ===", "KeyboardInterrupt"),
        (lambda: run_thread(broken_part), "=== rank 2 of 4 failed in thread writer; ending", "in broken_part"),
    ],
    ids=["an exception", "an interrupt", "an exception in a thread"],
)
def test_an_error_of_any_thread_ends_the_job(others_seen, aborts, capfd, fail, header, name) -> None:
    fail()
    printed = capfd.readouterr().err
    assert header in printed
    assert name in printed
    assert printed.count("Traceback") == 1
    assert others_seen == [name.partition(":")[0].replace("in broken_part", "RuntimeError")]
    assert aborts == [1]


def test_a_thread_that_exits_ends_no_job(others_seen: list[str], aborts: list[int]) -> None:
    run_thread(lambda: sys.exit(3))
    assert aborts == []


def test_one_rank_keeps_pythons_own_behaviour(others_seen: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    call_hook(KeyError("mine"))
    run_thread(broken_part)
    assert others_seen == ["KeyError", "RuntimeError"]
    assert capfd.readouterr().err == ""


def test_the_hooks_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setenv("HYBRIDNN_NO_ABORT", "1")
    failsafe.install()
    assert sys.excepthook is sys.__excepthook__


MISSING = """
from mpi4py import MPI
from hybridnn import MLP, Trainer
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank != 1:
    Trainer(MLP([4, 3]), stall_seconds=2)
MPI.COMM_WORLD.Barrier()
"""

LATE = """
import time
from mpi4py import MPI
from hybridnn import MLP, ProcessGrid, Trainer
from hybridnn.diagnostics.failsafe import WAITING_TAG
if MPI.COMM_WORLD.rank == 1:
    while not MPI.COMM_WORLD.Iprobe(0, WAITING_TAG):  # after half of the limit
        time.sleep(0.01)
ProcessGrid(stall_seconds=24)
Trainer(MLP([4, 3])).evaluate([[1.0] * 4], [1])
print(any(MPI.COMM_WORLD.Iprobe(rank, MPI.ANY_TAG) for rank in range(3)))
"""

WORKERS = """
def train(number):
    from mpi4py import MPI
    from hybridnn import MLP, ProcessGrid, Trainer
    grid = ProcessGrid(MPI.COMM_SELF) if number < 0 else None
    return Trainer(MLP([4, 3]), grid=grid, stall_seconds=2).grid.size

if __name__ == "__main__":
    from mpi4py.futures import MPIPoolExecutor
    with MPIPoolExecutor() as executor:
        print(list(executor.map(train, [-1, -2])), flush=True)
        list(executor.map(train, [1, 2]))
"""


def test_a_grid_that_one_rank_does_not_make_ends_the_job() -> None:
    result = run_mpi(3, MISSING, timeout=30)
    assert not result.timed_out
    assert result.returncode != 0
    assert "the job cannot go on: ranks 0, 2 waited 2 s for rank 1; the job was ended" in result.stderr
    assert "takes ProcessGrid(MPI.COMM_SELF)" in result.stderr


@pytest.mark.slow
def test_a_rank_that_is_late_delays_the_grid_and_leaves_no_message() -> None:
    result = run_mpi(3, LATE, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("False") == 3, result.stdout


@pytest.mark.slow
def test_a_worker_of_a_pool_has_a_grid_of_its_own_or_is_ended(tmp_path: Path) -> None:
    (tmp_path / "workers.py").write_text(WORKERS)
    result = run_mpi(3, [sys.executable, "-m", "mpi4py.futures", "workers.py"], timeout=60, cwd=tmp_path)
    assert not result.timed_out
    assert result.returncode != 0
    assert result.stdout.startswith("[1, 1]")
    assert re.search(r"ranks? [12].* waited 2 s for ranks? 0", result.stderr)


@pytest.mark.mpi(ranks=[3])
def test_ranks_that_exit_together_receive_all_messages(comm: MPI.Intracomm) -> None:
    """MPICH kills a job that ends with unreceived messages."""
    world = running_world()
    comm.Barrier()
    send_departure()
    comm.Barrier()
    assert not any(world.Iprobe(rank, LEFT_TAG) for rank in range(3))
