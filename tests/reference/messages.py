"""Recording of the arrays that groups send, and a check that float32 trainings send float32."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from hybridnn import Trainer
from hybridnn.comm.group import Group
from hybridnn.training.epoch import KINDS
from reference.cases import Case
from reference.ranks import this_rank

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
