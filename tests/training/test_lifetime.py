"""Trainers, grids, estimators and checkpoint writers one after the other: what is dropped leaves nothing behind."""

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn import MLP, ProcessGrid, Trainer
from hybridnn.checkpoints.writing import checkpoint_writer
from hybridnn.in_process import run_ranks
from hybridnn.in_process.mpi_interface import Comm
from hybridnn.training.records import StepPosition
from mpi_runner.launch import run_job, run_mpi
from reference.callbacks import Calling
from reference.cases import assert_arrays_close

X = np.random.default_rng(0).normal(size=(40, 4))
Y = X[:, :2] * X[:, 2:]


@pytest.mark.parametrize("axes", [{}, {"batch": 2}, {"pipeline": 2}])
@pytest.mark.parametrize("ranks", [1, 4])
def test_the_next_trainer_and_writer_make_no_communicator(ranks, axes, tmp_path, monkeypatch) -> None:
    if ranks == 1 and axes:
        pytest.skip("one rank has one grid")
    splits: Counter[int] = Counter()
    split = Comm.Split

    def counted(comm: Any, color: int = 0, key: int = 0) -> Any:
        splits[comm._context.members[comm.rank]] += 1
        return split(comm, color, key)

    monkeypatch.setattr(Comm, "Split", counted)

    def program(comm: Any) -> list[int]:
        counts = []
        for is_freed in (True, False, False):
            grid = ProcessGrid(batch=axes.get("batch"), model=ranks // 2 if "batch" in axes else 1)
            if "pipeline" in axes:
                grid = ProcessGrid(pipeline=2)
            trainer = Trainer(MLP([4, 6, 2]), grid=grid, batch_size=20)
            trainer.fit(X, Y, epochs=1)
            checkpoint_writer(trainer, tmp_path / "checkpoints", "samples").write(trainer.progress)
            if is_freed:
                trainer.free()
            counts.append(splits[comm.rank])
        return counts

    for counts in run_ranks(ranks, program).results:
        assert counts == [counts[0]] * 3
        assert (counts[0] == 0) == (ranks == 1)


def test_trainers_on_two_grids_of_one_shape_do_not_disturb_each_other() -> None:
    def trainers(**axes: int) -> list[Trainer]:
        return [
            Trainer(MLP([4, 6, 5, 2]), grid=ProcessGrid(**axes), batch_size=20, dtype="float64", seed=seed)
            for seed in (1, 2)
        ]

    def program(comm: Any) -> list[dict[str, Any]]:
        first, second = trainers(pipeline=2)
        assert first.grid.world.comm is second.grid.world.comm

        def train_second(reached: StepPosition) -> None:
            if reached.step % 2:
                second.fit(X, Y, epochs=1)

        first.fit(X, Y, epochs=2, callbacks=[Calling(should_stop=train_second)])
        assert first.step == second.step == 4
        return [first.weights(), second.weights()]

    alone = trainers()
    for trainer in alone:
        trainer.fit(X, Y, epochs=2)
    for weights in run_ranks(4, program, order=5).results:
        for found, trainer in zip(weights, alone, strict=True):
            assert_arrays_close(found, trainer.weights(), "weights")


LOOP = """
import sys
from pathlib import Path
import numpy as np
from mpi4py import MPI
from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.checkpoints.writing import checkpoint_writer
from hybridnn.sklearn import MLPRegressor

WORLD = MPI.COMM_WORLD
X = np.random.default_rng(0).normal(size=(16, 3))
Y = X[:, :1].copy()
folder = Path("checkpoints")

def train(grid=None):
    trainer = Trainer(MLP([3, 4, 1]), SGD(momentum=0.9), grid=grid, batch_size=8)
    trainer.fit(X, Y, epochs=1)
    return trainer

def trainer(number):
    made = train()
    if number % 2:  # the others are dropped
        made.free()

def grid(number):
    ProcessGrid()
    ProcessGrid(model=WORLD.size)

def estimator(number):
    MLPRegressor(hidden_layer_sizes=4, max_iter=1).fit(X, Y[:, 0])

def writer(number):
    made = train()
    writer = checkpoint_writer(made, folder, "samples", keep=1)
    writer.begin(made.progress)
    writer.finish()

def freed_communicator(number):
    comm = WORLD.Dup()
    train(ProcessGrid(comm))
    comm.Free()

def resident():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024

make, count = globals()[sys.argv[1]], int(sys.argv[2])
for number in range(count):
    make(number)
    if number == count // 10:
        before = resident()
print(f"grew by {resident() - before:.1f} MB\\n", end="", flush=True)
"""

TURNS = {"trainer": 1000, "grid": 2000, "estimator": 1000, "writer": 1000, "freed_communicator": 600}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("kind", "count"), TURNS.items())
def test_a_loop_takes_the_same_memory(kind: str, count: int, ranks: int, tmp_path: Path) -> None:
    """MPICH has 2,048 communicators: with three for each turn, the loop would end early."""
    (tmp_path / "loop.py").write_text(LOOP)
    command = [sys.executable, "-W", "ignore", "loop.py", kind, str(count)]
    if ranks == 1:
        result = run_job(command, timeout=800, cwd=tmp_path)  # without a launcher
    else:
        result = run_mpi(ranks, command, timeout=800, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    grown = [float(number) for number in re.findall(r"grew by (\S+) MB", result.stdout)]
    assert len(grown) == ranks
    assert max(grown) <= (20 if kind in ("grid", "freed_communicator") else 10), grown
