"""A class of the ring; an accumulator travels, and the array is not written before the end."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridnn.comm.blocks import block_bounds


@dataclass
class Ring:
    group: Any

    def __post_init__(self):
        self.rank, self.size = self.group.rank, self.group.size

    def parts(self, array):
        return [array[slice(*block_bounds(array.shape[0], self.size, part))] for part in range(self.size)]

    def pass_on(self, outgoing, incoming):
        receive = self.group.ireceive(incoming, (self.rank - 1) % self.size, 7)
        self.group.isend(outgoing, (self.rank + 1) % self.size, 7).wait()
        receive.wait()
        return incoming

    def reduce(self, parts, combine):
        """The own part, combined over all ranks."""
        travelling = parts[self.rank - 1].copy()
        for part in range(self.rank - 2, self.rank - self.size - 1, -1):
            own = parts[part % self.size]
            travelling = combine(own, self.pass_on(travelling, np.empty_like(own)))
        return travelling

    def gather(self, parts):
        for part in range(self.rank, self.rank - self.size + 1, -1):
            self.pass_on(parts[part % self.size], parts[(part - 1) % self.size])


def shift(group, array):
    return Ring(group).pass_on(array, np.empty(array.shape, array.dtype))


def reduce_scatter_rows(group, array, out):
    ring = Ring(group)
    np.copyto(out, ring.reduce(ring.parts(array), np.add))


def allgather_rows(group, array):
    ring = Ring(group)
    ring.gather(ring.parts(array))


def allreduce(group, array, operation="sum"):
    ring = Ring(group)
    parts = ring.parts(array.ravel())
    parts[ring.rank][:] = ring.reduce(parts, {"sum": np.add, "max": np.maximum}[operation])
    ring.gather(parts)
