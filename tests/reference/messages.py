"""Recording of the arrays that groups send, and a check that float32 trainings send float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hybridnn import ProcessGrid
from hybridnn.comm.group import Group
from hybridnn.training.epoch import KINDS
from reference.cases import Case, assert_arrays_close, reference, run
from reference.ranks import this_rank
from reference.sweeps import sizes_for

Message = tuple[str, Any, tuple[int, ...]]

SENDING = ("allreduce", "allgather_rows", "broadcast", "scatter_rows", "gather_rows")


def record_messages(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Record method, dtype and shape of every array that this rank passes to a group from now on."""
    recorded: list[Message] = []
    rank = this_rank()

    def recording(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Group, *args: Any, **kwargs: Any) -> Any:
            arrays = [array for array in (*args, *kwargs.values()) if isinstance(array, np.ndarray)]
            if this_rank() == rank:
                recorded.extend((name, array.dtype, array.shape) for array in arrays)
            return method(self, *args, **kwargs)

        return call

    for name in SENDING:
        for kind in (name, "i" + name):
            if hasattr(Group, kind):
                monkeypatch.setattr(Group, kind, recording(name, getattr(Group, kind)))
    return recorded


def check_float32(grid: ProcessGrid, case: Case, recorded: list[Message]) -> None:
    """Train in float32; all arrays held and sent are float32, except for labels, text and small exact sums."""
    recorded.clear()
    trainer = run(case, grid, "float32")
    sent = list(recorded)
    arrays = [*trainer.weights().values(), *trainer.gradients().values(), trainer.predict(np.ones((3, case.sizes[0])))]
    arrays += [array for slot in trainer.optimizer_slots().values() for array in slot.values()]
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}, f"{case} on {grid!r}"
    assert_arrays_close(trainer.weights(), reference(case).weights, f"{case} on {grid!r}", tolerance=1e-3)
    # Norms by layer, sums of metrics, counts, and once an epoch the seconds by kind of instruction and by rank.
    small = max(3 + len(KINDS) + grid.size, 2 * case.sizes[-1], len(case.sizes) - 1)
    for method, dtype, shape in sent:
        labels = dtype == np.int64 and case.classification and method in ("scatter_rows", "broadcast")
        assert dtype in (np.float32, np.uint8) or labels or np.prod(shape) <= small, (
            f"{method} of {dtype} {shape}: {case} on {grid!r}"
        )
    assert grid.size == 1 or any(dtype == np.float32 for _, dtype, _ in sent)


def float32_case(grid: ProcessGrid, split: str, distribution: str, classification: bool) -> Case:
    sizes = sizes_for(grid.model, split, False, classification)
    return Case(sizes, classification, optimizer="adam", model_split=split, distribution=distribution, clip_norm=0.5)
