"""Step timer: times training steps on random data, and their parts, for calibration."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from threading import RLock
from time import perf_counter

import numpy as np

from hybridnn.comm.mpi import import_mpi
from hybridnn.cost.calibration.computation import StepCase, StepTime
from hybridnn.cost.prediction import UPDATE_RULES
from hybridnn.nn.kernels import NUMPY
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.training.config import TrainConfig
from hybridnn.training.data_split import make_split
from hybridnn.training.device import TrainingDevice
from hybridnn.training.epoch import KINDS, EpochSteps
from hybridnn.training.records import TrainingState

RATE = 1e-9  # learning rate, so small that the training does not diverge
ROUNDS, STEPS = 3, 6  # number of timed rounds, of which the median is taken, and least steps of a round
ROUND_SECONDS = 0.02  # a round has more steps of short ones, because it takes time to start and to end it
NEVER = 1 << 62  # steps between two records, which would take time
MINIBATCHES = 8  # size of the data set in minibatches, so that not all samples stay in the cache


class TrainingTimer:
    """Times training steps on random data, on this rank alone or on all ranks of the job.

    With a layout of several ranks, which are all ranks of the job, a call is collective.
    """

    def __init__(self) -> None:
        self._alone = ProcessGrid(import_mpi().COMM_SELF)

    def __call__(self, case: StepCase) -> StepTime:
        """Train steps of `case`; the median time of a step."""
        pipeline, (batch, model) = len(case.layout.stages), case.layout.stages[0]
        several = case.layout.ranks > 1
        grid = ProcessGrid(pipeline=pipeline, batch=batch, model=model) if several else self._alone
        config = TrainConfig(
            case.model,
            UPDATE_RULES[case.optimizer],
            batch_size=case.batch_size,
            dtype=case.dtype,
            shared_replicas=case.layout.shared_replicas,
            log_every=NEVER,
        )
        engine = TrainingDevice(NUMPY, "cpu", "").make_engine(config, grid, case.layout)
        engine.load()
        generator = np.random.default_rng(0)
        samples, sizes = MINIBATCHES * case.batch_size, case.model.sizes
        x = generator.standard_normal((samples, sizes[0]))
        y = generator.integers(sizes[-1], size=samples)
        targets = y if case.classification else generator.standard_normal((samples, sizes[-1]))
        split = make_split(grid, "local", case.model, x, targets, "random numbers", case.dtype)
        state = TrainingState(RLock())

        def train(steps: int) -> None:
            batches = [generator.integers(samples, size=case.batch_size) for _ in range(steps)]
            minibatches = engine.make_minibatches(split, batches, [RATE] * steps, first=engine.updates)
            EpochSteps(engine, [minibatches], state, lambda event: False).train(split)

        train(STEPS)  # warm-up
        instructions = len(case.layout.schedule(1).orders[0])
        steps = max(STEPS, ceil(ROUND_SECONDS / _timed(train, grid, STEPS, instructions).seconds))
        rounds = [_timed(train, grid, steps, instructions) for _ in range(ROUNDS)]
        return sorted(rounds, key=lambda time: time.seconds)[ROUNDS // 2]


def _timed(train: Callable[[int], None], grid: ProcessGrid, steps: int, instructions: int) -> StepTime:
    recorder = grid.recorder
    grid.world.barrier()
    before, started = recorder.computing_seconds, perf_counter()
    train(steps)
    seconds, after = np.array([perf_counter() - started]), recorder.computing_seconds
    grid.world.allreduce(seconds, "max")
    spent = np.array([after.get(kind, 0.0) - before.get(kind, 0.0) for kind in KINDS]) / grid.size
    grid.world.allreduce(spent)
    computing = {kind: total / steps for kind, total in zip(KINDS, spent.tolist(), strict=True) if total}
    return StepTime(float(seconds[0]) / steps, computing, instructions, steps)
