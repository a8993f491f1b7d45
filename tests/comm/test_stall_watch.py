"""Jobs under mpirun that stand still, each for another reason: every one ends, with exit code 1 and the rank's name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hybridnn.comm.recorder import Recorder
from hybridnn.comm.stalls.watch import StallWatch
from mpi_runner.launch import JobResult, run_mpi
from mpi_runner.slowness import patience

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from hybridnn import ProcessGrid
from hybridnn.comm.stalls.processes import processes_of
from hybridnn.comm.stalls.watch import StallWatch

grid = ProcessGrid()
world, numbers = grid.world, np.zeros(100)

def oversleep():
    time.sleep(1000)

with StallWatch(grid.recorder, Path("run"), grid.rank, grid.size, {seconds}, processes_of(world)) as watch:
    for step in range(6):
        if step == 5 and grid.rank == {rank}:
            {fault}
        world.allreduce(numbers)
    if {ends_with_barrier}:
        world.barrier()
print("rank", grid.rank, "is done", os.listdir("run") if os.path.exists("run") else "")
"""

STOPPED = "os.kill(os.getpid(), signal.SIGSTOP)"


def program(folder: Path, fault: str, rank: int, seconds: float, *, ends_with_barrier: bool = False) -> list[str]:
    text = PROGRAM.format(fault=fault, rank=rank, seconds=patience(seconds), ends_with_barrier=ends_with_barrier)
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


def account_of(result: JobResult, *, wakes: bool = False) -> str:
    """What is told of a stall; the launcher, as it ends a job, may wake a stopped rank, and the others be done yet."""
    assert result.returncode == 1
    assert wakes or "is done" not in result.stdout
    assert result.stderr.count("=== the job stood still") == 1
    return result.stderr


def test_a_rank_that_sleeps_is_named_and_every_rank_tells_what_it_does(tmp_path: Path) -> None:
    account = account_of(job(tmp_path, "oversleep()"))
    assert "* rank 1 (host " in account
    assert "did not arrive: outside of communication, at job.py:13 in oversleep" in account
    assert "; ranks 0, 2 wait in allreduce 7 of group world (ranks 0-2)" in account
    states = states_in(tmp_path)
    assert sorted(states) == [0, 1, 2]
    assert states[1]["waits_for"] is None
    assert states[1]["caller"]["function"] == "oversleep"
    for rank in (0, 2):
        call = states[rank]["waits_for"]
        facts = {name: call[name] for name in ("operation", "axis", "members", "number", "nbytes", "dtype", "detail")}
        # The seventh collective: the ranks told each other their processes, and summed five times.
        assert facts == {
            "operation": "allreduce", "axis": "world", "members": "0-2", "number": 7, "nbytes": 800,
            "dtype": "float64", "detail": "sum",
        }  # fmt: skip
        assert call["seconds"] >= 1
        assert states[rank]["stack"][-1]["file"].endswith("group.py")
        assert Path(states[rank]["site"]["file"]).name == "job.py"
    for state in states.values():
        assert state["stalled"]
        assert state["idle_seconds"] >= 1.5
        assert [event["name"] for event in state["finished"]] == ["allgather", *["allreduce"] * 5]
    processes = json.loads((tmp_path / "run/stall/job.json").read_text())["processes"]
    assert processes == [f"host {states[rank]['host']}, process {states[rank]['process']}" for rank in range(3)]


def test_without_a_sign_of_rank_0_the_lowest_other_rank_speaks(tmp_path: Path) -> None:
    account = account_of(job(tmp_path, STOPPED, rank=0), wakes=True)
    assert "* rank 0 (host " in account
    assert "gave no sign: stopped, dead, swapped out, or not in training any more; ranks 1, 2 wait in" in account
    assert json.loads((tmp_path / "run/stall/job.json").read_text())["silent"] == "0"
    # Where the launcher wakes rank 0 before it ends the others, that gives a sign after all, and rank 2 takes its back.
    assert 1 in states_in(tmp_path)


def test_a_rank_that_has_left_gives_no_sign(tmp_path: Path) -> None:
    account = account_of(job(tmp_path, "sys.exit(0)"))
    assert "* rank 1 (host " in account
    assert "or not in training any more; ranks 0, 2 wait in allreduce 7" in account


def test_a_killed_process_ends_the_job_at_once(tmp_path: Path) -> None:
    result = job(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)", seconds=30)
    assert result.returncode not in (0, 1)
    assert result.seconds < patience(15)
    assert "rank 1" in result.stderr
    assert "9 (Killed)" in result.stderr or "Killed" in result.stderr


def test_an_exception_ends_the_job_before_anybody_stands_still(tmp_path: Path) -> None:
    result = job(tmp_path, "raise RuntimeError('the disk is gone')")
    assert result.returncode == 1
    assert "=== rank 1 of 3 failed; ending the job ===" in result.stderr
    assert "RuntimeError: the disk is gone" in result.stderr
    assert "stood still" not in result.stderr


def test_another_collective_out_of_order_is_named_with_what_it_is(tmp_path: Path) -> None:
    account = account_of(job(tmp_path, "world.broadcast(numbers[:50])"))
    assert "* collective 7 of group world (ranks 0-2) is not the same call on all ranks: rank 1 called " in account
    assert (
        "broadcast of 400 bytes float64 with root 0; ranks 0, 2 called allreduce (sum) of 800 bytes float64" in account
    )


def test_a_collective_of_another_size_ends_the_job(tmp_path: Path) -> None:
    """Some MPI libraries find this themselves, with an error on the ranks that got too much."""
    result = job(tmp_path, "numbers = np.zeros(200)", ends_with_barrier=True)
    assert result.returncode == 1
    assert (
        "rank 1 called allreduce (sum) of 1,600 bytes float64; ranks 0, 2 called allreduce (sum) of 800 bytes"
        in result.stderr
        or "TRUNC" in result.stderr
    )


def test_ranks_that_ask_again_and_again_wait_too(tmp_path: Path) -> None:
    poll = (
        "oversleep()\n        request = world.iallreduce(numbers)\n        while not request.test(): time.sleep(0.01)"
    )
    account = account_of(job(tmp_path, poll))
    assert "* rank 1 (host " in account
    assert "; ranks 0, 2 wait in allreduce" in account


def test_two_ranks_that_receive_from_each_other_are_named(tmp_path: Path) -> None:
    receive = "pass\n        if grid.rank < 2: world.ireceive(numbers, 1 - grid.rank, 3, about='forward 4').wait()"
    account = account_of(job(tmp_path, receive))
    assert "* ranks 0, 1 wait for one another: rank 0 in receive from rank 1, 800 bytes float64, forward 4" in account


def test_announced_work_is_no_stall(tmp_path: Path) -> None:
    announced = f"\n            with watch.busy('writing a checkpoint'): time.sleep({patience(4)})"
    result = job(tmp_path, announced, ends_with_barrier=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("is done") == 3
    assert "stood still" not in result.stderr
    assert not (tmp_path / "run/stall").exists()


def test_announced_work_has_an_end_too(tmp_path: Path) -> None:
    announced = "\n            with watch.busy('writing a checkpoint', at_most=0.5): time.sleep(1000)"
    account = account_of(job(tmp_path, announced))
    assert "did not arrive: writing a checkpoint, at job.py:" in account


def test_without_a_folder_that_can_be_written_the_job_ends_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    account = account_of(job(tmp_path, "oversleep()", ranks=2))
    assert "* the ranks could not tell one another what they do: " in account
    assert "gave no sign" not in account


def test_one_process_alone_ends_and_keeps_what_it_had_printed(tmp_path: Path) -> None:
    command = program(tmp_path, "print('so far', end=''); oversleep()", 0, 0.5)
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=patience(60), check=False)
    assert result.returncode == 1
    assert result.stdout == "so far"
    assert "did not go on: outside of communication, at job.py:13 in oversleep" in result.stderr


def test_a_suspended_process_goes_on_when_it_is_continued(tmp_path: Path) -> None:
    command = program(tmp_path, f"{STOPPED}; time.sleep(0.2)", 0, patience(1.0))
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        os.waitpid(process.pid, os.WUNTRACED)
        time.sleep(patience(2.5))
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=patience(30))
    assert process.returncode == 0
    assert b"is done" in out


def test_a_watch_of_no_seconds_does_nothing_and_one_that_ended_leaves_nothing(tmp_path: Path) -> None:
    for seconds in (0.0, 30.0):
        with StallWatch(Recorder(), tmp_path, 0, 1, seconds) as watch, watch.busy("something"):
            pass
    assert list(tmp_path.iterdir()) == []


def test_files_of_an_earlier_run_are_removed(tmp_path: Path) -> None:
    old = tmp_path / "stall"
    old.mkdir()
    for name in ("rank-0.json", "rank-7.json", "job.json", "alarm"):
        (old / name).write_text("{}")
    with StallWatch(Recorder(), tmp_path, 0, 1, 30):
        assert not old.exists()
