"""Debuggers in one rank while the others wait; `run_ranks` in event loops, threads, ranks and notebooks; pictures."""

import asyncio
import io
import pdb
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn.in_process import DeadlockError, run_ranks
from hybridnn.in_process.records import Site
from mpi_runner.slowness import deadline

STEPS_OVER = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="pdb of Python 3.13 does not stop after a call in which other ranks ran"
)

TRAINING = """
import numpy as np

from hybridnn import MLP, SGD, Callback, ProcessGrid, Trainer
from hybridnn.in_process import run_ranks

records = []  # (rank, step), of all ranks


def program(comm):
    class Steps(Callback):
        def on_train_batch_end(self, trainer, record):
            records.append((comm.rank, record.step))
            if (comm.rank, record.step) == (2, 3):
                before = list(records)
                breakpoint()
                total = np.array([float(comm.rank)])
                comm.Allreduce("IN_PLACE", total)
                after = len(records)
            elif record.step == 3:
                comm.Allreduce("IN_PLACE", np.array([float(comm.rank)]))

    x = np.linspace(-1, 1, 60)[:, None]
    trainer = Trainer(
        MLP([1, 8, 2], "tanh"), SGD(lr=0.1), grid=ProcessGrid(comm, batch=2, model=2), batch_size=20, log_every=1
    )
    try:
        trainer.fit(x, np.hstack([x, x**2]), epochs=2, callbacks=[Steps()])
    finally:
        print(f"rank {comm.rank} leaves", flush=True)
    return len(records)


run = run_ranks(4, program)
print(f"{len(records)} records, the ranks are {sorted({rank for rank, _ in records})}")
"""


def debugged(tmp_path: Path, *commands: str) -> subprocess.CompletedProcess[str]:
    """The program above, with these commands for its debugger."""
    script = tmp_path / "training.py"
    script.write_text(TRAINING, encoding="utf-8")
    text = "".join(f"{command}\n" for command in commands)
    return subprocess.run(
        [sys.executable, str(script)], input=text, capture_output=True, text=True, timeout=deadline(120), check=False
    )


@STEPS_OVER
def test_stepping_through_a_rank_while_the_others_wait(tmp_path: Path) -> None:
    done = debugged(
        tmp_path,
        "p ('rank', comm.rank, 'step', record.step)",
        "next",
        "p ('total', total.tolist())",
        "p ('the others did nothing', before == records)",
        "next",  # the all-reduce, for which all ranks run
        "p ('total', total.tolist())",
        "continue",
    )
    assert done.returncode == 0, done.stderr
    assert "('rank', 2, 'step', 3)" in done.stdout
    assert "('total', [2.0])" in done.stdout
    assert "('the others did nothing', True)" in done.stdout
    assert "('total', [6.0])" in done.stdout  # 0 + 1 + 2 + 3
    assert "24 records, the ranks are [0, 1, 2, 3]" in done.stdout  # 6 steps of 4 ranks
    assert "Traceback" not in done.stderr


def test_leaving_the_debugger_ends_all_ranks_with_one_line(tmp_path: Path) -> None:
    done = debugged(tmp_path, "p comm.rank", "quit")
    assert done.returncode == 1
    assert done.stderr == "the debugger was left on rank 2 of 4: all ranks have ended\n"
    lines = [line.removeprefix("(Pdb) ") for line in done.stdout.splitlines()]
    assert sorted(line for line in lines if line.endswith("leaves")) == [f"rank {rank} leaves" for rank in range(4)]
    assert "records, the ranks are" not in done.stdout


def test_time_at_the_prompt_does_not_count() -> None:
    class Slow(io.StringIO):
        def readline(self, *size: Any) -> str:
            time.sleep(1.0)
            return super().readline(*size)

    def program(comm: Any) -> int:
        if comm.rank == 1:
            pdb.Pdb(stdin=Slow("continue\n"), stdout=io.StringIO(), nosigint=True).set_trace()
        comm.Barrier()
        return int(comm.rank)

    assert run_ranks(2, program, limit=0.2).results == (0, 1)


def total_of(comm: Any) -> float:
    total = np.array([float(comm.rank)])
    comm.Allreduce("IN_PLACE", total)
    return float(total[0])


def test_ranks_run_inside_a_running_event_loop() -> None:
    async def cell() -> tuple[Any, ...]:
        await asyncio.sleep(0)
        return run_ranks(4, total_of).results

    assert asyncio.run(cell()) == (6.0,) * 4


def test_runs_in_two_threads_are_independent() -> None:
    found: dict[int, tuple[Any, ...]] = {}
    both = threading.Barrier(2)

    def work(ranks: int) -> None:
        both.wait()
        for _ in range(200):
            found[ranks] = run_ranks(ranks, total_of).results

    threads = [threading.Thread(target=work, args=(ranks,)) for ranks in (3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {3: (3.0,) * 3, 4: (6.0,) * 4}


def test_runs_may_be_nested() -> None:
    def program(comm: Any) -> tuple[float, float]:
        inner = run_ranks(3, total_of).results[0]
        return inner, total_of(comm)

    assert run_ranks(2, program).results == ((3.0, 1.0),) * 2


def test_notebooks_show_a_deadlock_as_a_picture() -> None:
    with pytest.raises(DeadlockError) as caught:
        run_ranks(2, lambda comm: comm.Send(np.ones(1), 1 - comm.rank))
    picture = caught.value._repr_svg_()
    assert picture.startswith("<svg ")
    assert picture.count("stroke-dasharray") == 2  # two messages that do not arrive


def test_a_cell_of_a_notebook_is_named_as_such() -> None:
    code = compile("def work(comm):\n    pass\n", "/tmp/ipykernel_4711/1234567.py", "exec")
    assert str(Site(code.co_consts[0], 2)) == "cell:2 in work"
