"""Step timer: times the parts of a training step on random data, on one rank, for calibration."""

from __future__ import annotations

from collections.abc import Callable
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
from hybridnn.training.engine import Engine
from hybridnn.training.epoch import EpochSteps
from hybridnn.training.records import TrainingState

RATE = 1e-9  # learning rate, so small that the training does not diverge
ROUNDS, STEPS = 3, 6  # number of timed rounds, of which the median is taken, and steps per round
NEVER = 1 << 62  # steps between two records, which would take time
MINIBATCHES = 8  # size of the data set in minibatches, so that not all samples stay in the cache


class TrainingTimer:
    """Times training steps on random data, on this rank alone."""

    def __init__(self) -> None:
        self._grid = ProcessGrid(import_mpi().COMM_SELF)

    def __call__(self, case: StepCase) -> StepTime:
        """Train steps of `case`; the median time of a step."""
        engine = self._engine(case)
        generator = np.random.default_rng(0)
        samples, sizes = MINIBATCHES * case.batch_size, case.model.sizes
        x = generator.standard_normal((samples, sizes[0]))
        y = generator.integers(sizes[-1], size=samples)
        targets = y if case.classification else generator.standard_normal((samples, sizes[-1]))
        split = make_split(self._grid, "local", case.model, x, targets, "random numbers", case.dtype)

        state = TrainingState(RLock())

        def train() -> None:
            batches = [generator.integers(samples, size=case.batch_size) for _ in range(STEPS)]
            minibatches = engine.make_minibatches(split, batches, [RATE] * STEPS, first=engine.updates)
            EpochSteps(engine, [minibatches], state, lambda event: False).train(split)

        train()  # warm-up
        instructions = len(case.layout.schedule(1).orders[0])
        rounds = sorted((self._timed(train, instructions) for _ in range(ROUNDS)), key=lambda time: time.overhead)
        return rounds[ROUNDS // 2]

    def _engine(self, case: StepCase) -> Engine:
        config = TrainConfig(
            case.model,
            UPDATE_RULES[case.optimizer],
            batch_size=case.batch_size,
            dtype=case.dtype,
            shared_replicas=False,
            log_every=NEVER,
        )
        device = TrainingDevice(NUMPY, "cpu", "")
        engine = device.make_engine(config, self._grid, case.layout)
        engine.load()
        return engine

    def _timed(self, train: Callable[[], None], instructions: int) -> StepTime:
        recorder = self._grid.recorder
        before, started = recorder.computing_seconds, perf_counter()
        train()
        seconds = perf_counter() - started
        after = recorder.computing_seconds
        spent = {kind: (after[kind] - before.get(kind, 0.0)) / STEPS for kind in after}
        return StepTime(seconds / STEPS, spent, instructions)
