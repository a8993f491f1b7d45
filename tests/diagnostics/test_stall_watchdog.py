"""Stalled jobs under mpirun: each ends with exit code 1 and a report that names the rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridnn.comm.recorder import Recorder
from hybridnn.diagnostics.stalls.files import StallFiles
from hybridnn.diagnostics.stalls.watchdog import SharedFolder, StallWatchdog, create_shared_folder
from mpi_runner.launch import JobResult, run_mpi
from mpi_runner.slowness import deadline

if TYPE_CHECKING:
    from mpi4py import MPI

PROGRAM = """
import os, signal, sys, time
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
    if step == 5 and grid.rank == {rank}:
        {fault}
    world.allreduce(numbers)
if {ends_with_barrier}:
    world.barrier()
end_watch()
print("rank", grid.rank, "is done", os.listdir("run") if os.path.exists("run") else "")
"""

STOPPED = "os.kill(os.getpid(), signal.SIGSTOP)"


def program(folder: Path, fault: str, rank: int, seconds: float, *, ends_with_barrier: bool = False) -> list[str]:
    text = PROGRAM.format(fault=fault, rank=rank, seconds=deadline(seconds), ends_with_barrier=ends_with_barrier)
    (folder / "job.py").write_text(text)
    return [sys.executable, "job.py"]


def job(
    folder: Path, fault: str, *, rank: int = 1, ranks: int = 3, seconds: float = 1.5, ends_with_barrier: bool = False
) -> JobResult:
    command = program(folder, fault, rank, seconds, ends_with_barrier=ends_with_barrier)
    result = run_mpi(ranks, command, timeout=60, cwd=folder)
    assert not result.timed_out
    return result


def states_in(folder: Path) -> dict[int, dict[str, Any]]:
    return {
        state["rank"]: state
        for state in (json.loads(file.read_text()) for file in folder.glob("run/stall/rank-*.json"))
    }


def report_of(result: JobResult, *, wakes: bool = False) -> str:
    """The report of a stall; with `wakes`, the launcher may wake a stopped rank, so that the job finishes."""
    assert result.returncode == 1
    assert wakes or "is done" not in result.stdout
    assert result.stderr.count("=== the job stood still") == 1
    return result.stderr


def test_a_sleeping_rank_is_named_and_every_rank_writes_its_state(tmp_path: Path) -> None:
    report = report_of(job(tmp_path, "oversleep()"))
    assert "* rank 1 (host " in report
    assert "did not arrive: outside of communication, at job.py:13 in oversleep" in report
    assert "; ranks 0, 2 wait in allreduce 6 of group world (ranks 0-2) at job.py:18 in <module>" in report
    states = states_in(tmp_path)
    assert sorted(states) == [0, 1, 2]
    assert states[1]["call"] is None
    assert states[1]["user_line"]["function"] == "oversleep"
    for rank in (0, 2):
        call = states[rank]["call"]
        facts = {name: call[name] for name in ("operation", "axis", "members", "number", "nbytes", "dtype", "detail")}
        # The sixth collective: the ranks summed five times.
        assert facts == {
            "operation": "allreduce", "axis": "world", "members": "0-2", "number": 6, "nbytes": 800,
            "dtype": "float64", "detail": "sum",
        }  # fmt: skip
        assert call["seconds"] >= 1
        assert states[rank]["stack"][-1]["file"].endswith("group.py")
        assert Path(states[rank]["call_site"]["file"]).name == "job.py"
    for state in states.values():
        assert state["stalled"]
        assert state["idle_seconds"] >= 1.5
        assert [event["name"] for event in state["finished"]] == ["allreduce"] * 5
    processes = json.loads((tmp_path / "run/stall/job.json").read_text())["processes"]
    assert processes == [f"host {states[rank]['host']}, process {states[rank]['process']}" for rank in range(3)]


def test_where_rank_0_is_stopped_rank_1_prints_the_report(tmp_path: Path) -> None:
    report = report_of(job(tmp_path, STOPPED, rank=0), wakes=True)
    assert "* rank 0 (host " in report
    assert "gave no sign: stopped, dead, swapped out, or not in training any more; ranks 1, 2 wait in" in report
    assert json.loads((tmp_path / "run/stall/job.json").read_text())["unresponsive"] == "0"
    # Where the launcher wakes rank 0 before it ends the others, rank 0 answers, and rank 2 removes its state.
    assert 1 in states_in(tmp_path)


def test_a_rank_that_exits_ends_the_job_long_before_the_limit(tmp_path: Path) -> None:
    result = job(tmp_path, "sys.exit(0)", seconds=1000)
    assert result.returncode != 0  # the launcher of Open MPI 5.0 may crash: another rank is ending MPI
    assert "is done" not in result.stdout
    assert "=== the job cannot go on: rank 1 left it, and others wait; the job was ended ===" in result.stderr
    left = "left the job: its script ended with exit code 0, by sys.exit at job.py:17 in <module>; ranks 0, 2 wait in "
    assert left + "allreduce 6 of group world (ranks 0-2) at job.py:18 in <module>" in result.stderr
    assert [file.name for file in (tmp_path / "run/stall").glob("left-*")] == ["left-1.json"]


def test_a_killed_process_ends_the_job_at_once(tmp_path: Path) -> None:
    result = job(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)", seconds=30)
    assert result.returncode not in (0, 1)
    assert result.seconds < deadline(15)
    assert "rank 1" in result.stderr
    assert "9 (Killed)" in result.stderr or "Killed" in result.stderr


def test_an_exception_ends_the_job_before_it_stalls(tmp_path: Path) -> None:
    result = job(tmp_path, "raise RuntimeError('the disk is gone')")
    assert result.returncode == 1
    assert "=== rank 1 of 3 failed; ending the job ===" in result.stderr
    assert "RuntimeError: the disk is gone" in result.stderr
    assert "stood still" not in result.stderr


def test_a_rank_with_another_collective_is_named_with_its_call(tmp_path: Path) -> None:
    report = report_of(job(tmp_path, "world.broadcast(numbers[:50])"))
    assert "* collective 6 of group world (ranks 0-2) is not the same call on all ranks: rank 1 called " in report
    assert (
        "broadcast of 400 bytes float64 with root 0; ranks 0, 2 called allreduce (sum) of 800 bytes float64" in report
    )


def test_a_collective_of_another_size_ends_the_job(tmp_path: Path) -> None:
    """Some MPI libraries detect this, and raise an error on the ranks that receive too much."""
    result = job(tmp_path, "numbers = np.zeros(200)", ends_with_barrier=True)
    assert result.returncode == 1
    assert (
        "rank 1 called allreduce (sum) of 1,600 bytes float64; ranks 0, 2 called allreduce (sum) of 800 bytes"
        in result.stderr
        or "TRUNC" in result.stderr
    )


def test_polling_ranks_are_waiting(tmp_path: Path) -> None:
    poll = "oversleep()\n    request = world.iallreduce(numbers)\n    while not request.test(): time.sleep(0.01)"
    report = report_of(job(tmp_path, poll))
    assert "* rank 1 (host " in report
    assert "; ranks 0, 2 wait in allreduce" in report


def test_two_ranks_that_receive_from_each_other_are_named(tmp_path: Path) -> None:
    receive = "pass\n    if grid.rank < 2: world.ireceive(numbers, 1 - grid.rank, 3, about='forward 4').wait()"
    report = report_of(job(tmp_path, receive))
    assert "* ranks 0, 1 wait for one another: rank 0 in receive from rank 1, 800 bytes float64, forward 4" in report


def test_announced_work_is_no_stall(tmp_path: Path) -> None:
    announced = f"\n        with watch.busy('writing a checkpoint'): time.sleep({deadline(4)})"
    result = job(tmp_path, announced, ends_with_barrier=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("is done") == 3
    assert "stood still" not in result.stderr
    assert not (tmp_path / "run/stall").exists()


def test_announced_work_has_a_time_limit(tmp_path: Path) -> None:
    announced = "\n        with watch.busy('writing a checkpoint', at_most=0.5): time.sleep(1000)"
    report = report_of(job(tmp_path, announced))
    assert "did not arrive: writing a checkpoint, at job.py:" in report


def test_a_rank_that_waits_in_announced_work_does_not_work(tmp_path: Path) -> None:
    receive = "world.ireceive(numbers, 0, 3, about='forward 4').wait()"
    report = report_of(job(tmp_path, f"\n        with watch.busy('writing a checkpoint', at_most=1000): {receive}"))
    assert "* ranks 0, 1 wait for one another: " in report


def test_a_stalled_job_ends_without_a_writable_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    report = report_of(job(tmp_path, "oversleep()", ranks=2))
    assert "* the ranks could not exchange their states: " in report
    assert "gave no sign" not in report


ONE_OF_TWO = """
import os, signal, sys, time
from pathlib import Path
from time import perf_counter
import numpy as np
from hybridnn.comm.group import Group
from hybridnn.comm.recorder import Recorder
from hybridnn.diagnostics.stalls.files import StallFiles
from hybridnn.diagnostics.stalls.watchdog import SharedFolder
from hybridnn.diagnostics.stalls.watchdog import StallWatchdog

recorder = Recorder()
world = Group(None, "world", recorder, members=range(2))
watch = StallWatchdog(recorder, SharedFolder(Path("notes"), (0,)), 0, 2)
end_watch = watch.start(recorder, {seconds})

def wait(seconds):
    "Poll a call that no other rank enters."
    call, end = world._begin("allreduce", 800), time.monotonic() + seconds
    recorder.current_call = None
    while time.monotonic() < end:
        recorder.end_poll(call, perf_counter())
        time.sleep(0.02)

{program}
print("done", flush=True)
os._exit(0)
"""


def one_of_two(folder: Path, program: str, seconds: float) -> list[str]:
    """Return the command of a process that takes itself for one of two ranks, the other one on another node."""
    (folder / "job.py").write_text(ONE_OF_TWO.format(program=program, seconds=seconds))
    return [sys.executable, "job.py"]


def test_a_node_without_a_shared_folder_ends_its_job_and_names_the_unreachable_ranks(tmp_path: Path) -> None:
    command = one_of_two(tmp_path, "print('so far', end=''); wait(1000)", 0.5)
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=deadline(60), check=False)
    assert result.returncode == 1
    assert result.stdout == "so far"
    assert "* rank 1 is on other nodes, which share no folder with this one: this report covers" in result.stderr
    assert "gave no sign" not in result.stderr


def test_work_for_which_no_rank_waits_is_no_stall(tmp_path: Path) -> None:
    command = one_of_two(tmp_path, "wait(0.1); time.sleep(3); wait(0.1)", 0.5)
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=deadline(60), check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


def test_time_in_which_the_process_is_suspended_does_not_count(tmp_path: Path) -> None:
    command = one_of_two(tmp_path, f"wait(0.2); {STOPPED}; wait(0.2)", 5.0)
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        os.waitpid(process.pid, os.WUNTRACED)
        time.sleep(8)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=deadline(60))
    assert process.returncode == 0
    assert b"done" in out


class Owner:
    """What trains."""


def count_watchdogs() -> int:
    return sum(thread.name == "stall watchdog" for thread in threading.enumerate())


def test_a_watchdog_ends_with_its_owners_and_leaves_no_files(tmp_path: Path) -> None:
    before = count_watchdogs()
    for number in range(100):
        folder = tmp_path / str(number)
        folder.mkdir()
        watch = StallWatchdog(Recorder(), SharedFolder(folder, (0,)), 0, 1)
        first, second = Owner(), Owner()
        watch.start(first, 30.0)
        end = watch.start(second, 30.0)
        assert count_watchdogs() > before
        if number % 2:
            end()
        del first, second, watch, end
    end = time.monotonic() + 60
    while count_watchdogs() > before and time.monotonic() < end:
        time.sleep(0.05)
    assert count_watchdogs() == before
    assert list(tmp_path.iterdir()) == []


def test_a_watchdog_without_a_limit_starts_no_thread(tmp_path: Path) -> None:
    before = count_watchdogs()
    watch = StallWatchdog(Recorder(), SharedFolder(tmp_path / "notes", (0,)), 0, 1)
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
    watch = StallWatchdog(Recorder(), SharedFolder(tmp_path / "notes", (0,)), 0, 1)
    watch.use_folder(tmp_path / "run", str)
    assert not old.exists()


@pytest.mark.mpi(ranks=[2])
def test_the_folder_is_where_all_ranks_share_it(
    comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert [shared.folder.parent for shared in found[:2]] == [temporary, current]
    assert [shared.ranks for shared in found] == [(0, 1), (0, 1), (comm.rank,)]
    assert found[2].folder.parent == (temporary if comm.rank == 0 else tmp_path)
    assert all(sees(shared.folder) for shared in found)
    comm.Barrier()
    # Folders that are not shared are removed.
    assert len(list(temporary.iterdir())) == 2
    assert len(list(current.iterdir())) == 1


def test_a_folder_that_another_rank_removes_at_this_moment_is_already_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = StallFiles(tmp_path)
    files.path.mkdir()

    def removed(self: Path, pattern: str) -> list[Path]:
        raise FileNotFoundError(2, "No such file or directory", str(self))

    monkeypatch.setattr(Path, "glob", removed)
    files.clear()
    assert files.count_left() == 0
    assert not files.path.exists()
