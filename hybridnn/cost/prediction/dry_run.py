"""Dry run: the objects of a rank, made by the trainer's own code on arrays that take no memory, without MPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.group import Group
from hybridnn.comm.recorder import Recorder
from hybridnn.comm.request import DONE, Request
from hybridnn.kernels.backend import Kernels
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.node_memory import NodeMemory
from hybridnn.parallel.replicas.sharing import OwnedSlice, Sharing


class DryArray(np.ndarray[Any, np.dtype[Any]]):
    """An array of any shape whose elements are all the same one in memory; assignments have no effect."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


def dry_array(shape: tuple[int, ...], dtype: DTypeLike) -> DryArray:
    """An array that takes the memory of one element; ``nbytes`` is that of all."""
    return DryArray(shape, dtype, np.zeros(1, dtype), strides=(0,) * len(shape))


class _DryKernels:
    """Kernels that allocate dry arrays and compute nothing."""

    on_host = True
    empty = zeros = staticmethod(dry_array)

    def to_device(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


DRY_KERNELS = cast(Kernels, _DryKernels())


class DryGroup(Group):
    """The first rank of a group: calls are recorded and nothing is sent."""

    def __init__(self, axis: str, ranks: int, recorder: Recorder) -> None:
        super().__init__(None, axis, recorder, members=range(ranks))

    def split(self, color: int, axis: str, *, on_device: bool = True) -> DryGroup:
        """The same ranks."""
        return self

    def allreduce(self, array: NDArray[Any], operation: str = "sum") -> None:
        """Record the call."""
        self._note("allreduce", array)

    def iallreduce(self, array: NDArray[Any], operation: str = "sum") -> Request:
        """Record the call."""
        self._note("allreduce", array)
        return DONE

    def allgather_rows(self, array: NDArray[Any]) -> None:
        """Record the call."""
        self._note("allgather", array)

    def _note(self, name: str, array: NDArray[Any]) -> None:
        if self.size > 1:
            self._finish(self._begin(name, array.nbytes))


class DryGrid(ProcessGrid):
    """The first rank of a stage, of a process grid in which every batch group spans nodes."""

    batch_spans_nodes = True

    def __init__(self, stages: Sequence[tuple[int, int]], stage: int) -> None:
        self.stages, self.pipeline, self.pipeline_rank = tuple(stages), len(stages), stage
        self.batch, self.model = stages[stage]
        self.batch_rank = self.model_rank = 0
        self.recorder = Recorder()
        self.world = DryGroup("world", 1, self.recorder)  # its size has no effect on a rank's arrays
        self.batch_group = DryGroup("batch", self.batch, self.recorder)
        self.model_group = DryGroup("model", self.model, self.recorder)

    def share_replicas(self, placement: Sequence[int]) -> Sharing:
        """Sharing of replicas as on the node with the fewest ranks of a batch group, with `placement` on each node."""
        sharers, slices = min(placement), max(placement)
        owners = DryGroup("batch", len(placement), self.recorder) if len(placement) > 1 else None
        owned = (OwnedSlice(number, owners) for number in range(slices) if number * sharers < slices)
        return Sharing(DryMemory(DryGroup("batch", sharers, self.recorder)), self.batch_group, slices, tuple(owned))


class DryMemory(NodeMemory):
    """Shared memory of dry arrays."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """A dry array."""
        return dry_array(shape, dtype)

    def publish(self, synchronize: object = None) -> None:
        """Nothing is written."""
