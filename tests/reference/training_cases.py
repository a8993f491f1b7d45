"""A training on a number of ranks that the serial reference or the replay of its method repeats, and its check."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from hybridnn import ProcessGrid, Trainer
from hybridnn.comm.group import Group
from hybridnn.comm.transport import HOST_BUCKETS, Transport
from hybridnn.in_process import run_ranks
from hybridnn.training.epoch import KINDS
from hybridnn.training.records import StepRecord
from reference import network as net
from reference.callbacks import Calling
from reference.cases import (
    TOLERANCE,
    Case,
    assert_arrays_close,
    assert_close,
    changed,
    check_outcome,
    local_data,
    make_trainer,
    reference,
)
from reference.network import Weights
from reference.pipeline_cases import PipelineCase, block_sends, expected_outcome
from reference.ranks import on_nodes, this_rank
from reference.serial import Outcome

Message = tuple[str, Any, tuple[int, ...]]

SENDING = ("allreduce", "allgather_rows", "broadcast", "scatter_rows", "gather_rows")


@contextmanager
def recorded_messages() -> Iterator[dict[int, list[Message]]]:
    """Record method, dtype and shape of every array that a rank passes to a group, by rank."""
    recorded: dict[int, list[Message]] = defaultdict(list)

    def recording(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Group, *args: Any, **kwargs: Any) -> Any:
            arrays = [array for array in (*args, *kwargs.values()) if isinstance(array, np.ndarray)]
            recorded[this_rank()].extend((name, array.dtype, array.shape) for array in arrays)
            return method(self, *args, **kwargs)

        return call

    with ExitStack() as patches:
        for name in SENDING:
            for kind in (name, "i" + name):
                if hasattr(Group, kind):
                    patches.enter_context(patch.object(Group, kind, recording(name, getattr(Group, kind))))
        yield recorded


def check_float32_arrays(trainer: Trainer, case: Case, where: str) -> None:
    """See that all arrays of a trainer that a user may ask for are float32."""
    arrays = [*trainer.weights().values(), *trainer.gradients().values(), trainer.predict(np.ones((3, case.sizes[0])))]
    arrays += [array for slot in trainer.optimizer_slots().values() for array in slot.values()]
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}, where


def check_float32_messages(trainer: Trainer, case: Case, sent: Sequence[Message], where: str) -> None:
    """See that all arrays that a rank sent are float32, except for labels, text and small exact sums."""
    grid = trainer.grid
    # Norms by layer, sums of metrics, counts, and once an epoch the seconds by kind of instruction and by rank.
    small = max(3 + len(KINDS) + grid.size, 2 * case.sizes[-1], len(case.sizes) - 1)
    for method, dtype, shape in sent:
        labels = dtype == np.int64 and case.classification and method in ("scatter_rows", "broadcast")
        assert dtype in (np.float32, np.uint8) or labels or np.prod(shape) <= small, (
            f"{method} of {dtype} {shape}: {where}"
        )
    assert grid.size == 1 or any(dtype == np.float32 for _, dtype, _ in sent), where


@dataclass(frozen=True)
class Grid:
    """Arguments of a `ProcessGrid`; the batch axis is what the others leave."""

    pipeline: int = 1
    model: int = 1
    stages: tuple[tuple[int, int], ...] | None = None
    nodes: tuple[int, ...] | None = None
    """Node of every rank, where not all are on one."""
    message_limit: int | None = None

    def on(self, comm: Any) -> ProcessGrid:
        given = {"pipeline": self.pipeline, "model": self.model, "stages": self.stages}
        if self.message_limit is not None:
            given["message_limit"] = self.message_limit
        return ProcessGrid(comm if self.nodes is None else on_nodes(comm, self.nodes), **given)


@dataclass(frozen=True)
class TrainingCase:
    """Ranks, grid, and the training with its network, optimizer, method and settings."""

    ranks: int
    grid: Grid
    training: Case | PipelineCase
    dtype: str = "float64"
    tolerance: float = TOLERANCE
    """Of weights and optimizer state."""
    bucket_bytes: int | None = None
    every_gradient: bool = False
    """Compare the gradient of every step, to 1e-9, rather than that of the last one alone."""
    replica: str = ""
    """Class of the replica that the trainer must choose."""

    @property
    def case(self) -> Case:
        return self.training if isinstance(self.training, Case) else self.training.case

    @property
    def expected(self) -> Outcome:
        """Training by the serial reference, or by the replay of an asynchronous method."""
        if isinstance(self.training, Case):
            return reference(self.training)
        return expected_outcome(self.training, len(self.grid.stages or ()) or self.grid.pipeline)

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in changed(self.grid)]
        words += [f"{name}={value}" for name, value in changed(self) if name not in ("ranks", "grid", "training")]
        return ", ".join([f"{self.ranks} rank{'s' * (self.ranks > 1)}", *words, str(self.training)])


def run_training_case(it: TrainingCase) -> None:
    """Train on ranks of this process, and compare what the training leaves on every rank with the reference."""
    buckets = replace(HOST_BUCKETS, bucket_bytes=it.bucket_bytes or HOST_BUCKETS.bucket_bytes)
    with patch.object(Transport, "buckets", buckets), ExitStack() as stack:
        sent = stack.enter_context(recorded_messages()) if it.dtype == "float32" else None
        run_ranks(it.ranks, lambda comm: check_training(it, comm, sent))


def trainer_of(it: TrainingCase, comm: Any, **settings: Any) -> Trainer:
    """The trainer of a case on the ranks of `comm`, before its training."""
    pipelined = {} if isinstance(it.training, Case) else it.training.settings
    return make_trainer(it.case, it.grid.on(comm), it.dtype, **pipelined, **settings)


def trained(it: TrainingCase, comm: Any, **how: Any) -> Trainer:
    """The trainer after all epochs."""
    trainer = trainer_of(it, comm)
    trainer.fit(*local_data(it.case, trainer.grid), epochs=it.case.epochs, **how)
    return trainer


def check_training(it: TrainingCase, comm: Any, sent: Mapping[int, list[Message]] | None = None) -> None:
    """Train on the ranks of `comm` and compare with the reference; `sent` records what each rank sends in float32."""
    case, expected, gradients = it.case, it.expected, list[tuple[Weights, float]]()
    trainer = trainer_of(it, comm)
    if isinstance(it.training, PipelineCase) and it.training.blocking_sends:
        block_sends(trainer.grid.world.transport)

    def note(_: StepRecord) -> None:
        gradients.append((trainer.gradients(), trainer.gradient_norm()))

    assert type(trainer.engine.chunks[0].replica).__name__ == it.replica or not it.replica, str(it)
    trainer.fit(
        *local_data(case, trainer.grid),
        epochs=case.epochs,
        validation=local_data(case, trainer.grid, "test"),
        callbacks=[Calling(on_step=note)] if it.every_gradient else [],
    )
    if it.dtype == "float32":
        if sent is not None and isinstance(it.training, Case):
            check_float32_messages(trainer, case, tuple(sent[comm.rank]), str(it))
        check_float32_arrays(trainer, case, str(it))
        assert_arrays_close(trainer.weights(), expected.weights, str(it), it.tolerance)
        assert_arrays_close(trainer.gradients(), expected.gradients, f"{it}: gradient", it.tolerance)
        for slot, arrays in trainer.optimizer_slots().items():
            assert_arrays_close(arrays, expected.slots[slot], f"{it}: {slot}", it.tolerance)
        return
    if it.every_gradient:
        for step, ((found, norm), right) in enumerate(zip(gradients, expected.step_gradients, strict=True), start=1):
            assert_arrays_close(found, right, f"{it}: gradient of step {step}", 1e-9)
            assert_close(norm, net.norm(right.values()), f"{it}: gradient norm of step {step}", 1e-9)
    if case.clip_norm is not None and trainer.layout.exact:
        assert trainer.gradient_norm() <= case.clip_norm * (1 + TOLERANCE), str(it)
    check_outcome(trainer, case, expected, str(it), it.tolerance)
