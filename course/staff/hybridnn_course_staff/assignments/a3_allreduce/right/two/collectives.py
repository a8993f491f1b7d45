"""A class for the ring, and a recursive function for the tree."""

import numpy as np

from hybridnn.comm.blocks import block_bounds


class Ring:
    """Messages down the ring. A block is named by the rank to which it belongs."""

    def __init__(self, group, rows):
        self.group, self.rows = group, rows
        self.below = (group.rank - 1) % group.size
        self.above = (group.rank + 1) % group.size

    def block(self, owner):
        owner %= self.group.size
        start, stop = block_bounds(len(self.rows), self.group.size, self.group.size - 1 - owner)
        return self.rows[start:stop]

    def step(self, outgoing, incoming):
        arrives = self.group.ireceive(incoming, self.above, 0)
        leaves = self.group.isend(outgoing, self.below, 0)
        arrives.wait()
        leaves.wait()

    def reduce(self, add):
        """The block of this rank, of the sum."""
        rank = self.group.rank
        travelling = self.block(rank + 1).copy()  # it passes all ranks before it gets to the one above
        for owner in range(rank + 2, rank + self.group.size + 1):
            arrived = np.empty_like(self.block(owner))
            self.step(travelling, arrived)
            travelling = add(arrived, self.block(owner))
        return travelling

    def gather(self):
        rank = self.group.rank
        for owner in range(rank, rank + self.group.size - 1):
            self.step(self.block(owner), self.block(owner + 1))


def shift(group, array):
    result = array.copy()
    if group.size > 1:
        Ring(group, array).step(array, result)
    return result


def reduce_scatter_rows(group, array, out):
    out[...] = Ring(group, array).reduce(np.add)


def allgather_rows(group, array):
    Ring(group, array).gather()


def allreduce(group, array, operation="sum"):
    combine = {"sum": np.add, "max": np.maximum}[operation]
    elements = array.reshape(-1)
    if array.nbytes <= 256:
        farthest = 1
        while 2 * farthest < group.size:
            farthest *= 2
        tree(group, elements, combine, farthest)
        return
    ring = Ring(group, elements)
    own = ring.reduce(combine)
    ring.block(group.rank)[:] = own
    ring.gather()


def tree(group, array, combine, distance):
    """Reduce to the ranks below a distance, let them do the same with half of it, and send back what they have."""
    below, above = group.rank - distance, group.rank + distance
    if distance < 1 or below >= distance:
        return
    if below >= 0:
        group.isend(array, below, 0).wait()
        group.ireceive(array, below, 0).wait()
        return
    if above < group.size:
        arrived = np.empty_like(array)
        group.ireceive(arrived, above, 0).wait()
        combine(array, arrived, out=array)
    tree(group, array, combine, distance // 2)
    if above < group.size:
        group.isend(array, above, 0).wait()
