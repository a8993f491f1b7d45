"""Down the ring, with the blocks of the next rank; small arrays by doubling over a list of the active ranks."""

import numpy as np

from hybridnn.comm.blocks import block_bounds


def exchange(group, outgoing, target, incoming, source):
    requests = [group.isend(outgoing, target, 1), group.ireceive(incoming, source, 1)]
    for request in requests[::-1]:
        request.wait()


def down(group, outgoing, incoming):
    exchange(group, outgoing, (group.rank - 1) % group.size, incoming, (group.rank + 1) % group.size)


def shift(group, array):
    received = np.empty_like(array)
    down(group, array, received)
    return received


def blocks_of(array, ranks):
    """The blocks in the order of the ranks to which they belong."""
    return [array[slice(*block_bounds(len(array), ranks, (rank + 1) % ranks))] for rank in range(ranks)]


def reduce_into(group, blocks, combine):
    for distance in range(1, group.size):
        kept = blocks[(group.rank + distance + 1) % group.size]
        received = np.empty_like(kept)
        down(group, blocks[(group.rank + distance) % group.size], received)
        combine(kept, received, out=kept)


def spread(group, blocks):
    for distance in range(group.size - 1):
        down(group, blocks[(group.rank + distance) % group.size], blocks[(group.rank + distance + 1) % group.size])


def reduce_scatter_rows(group, array, out):
    blocks = [block.copy() for block in blocks_of(array, group.size)]
    reduce_into(group, blocks, np.add)
    out[:] = blocks[group.rank]


def allgather_rows(group, array):
    spread(group, blocks_of(array, group.size))


def doubling(group, flat, combine):
    power = 2 ** int(np.log2(group.size))
    folded = group.size - power
    active = [rank for rank in range(group.size) if rank >= 2 * folded or rank % 2]
    received = np.empty_like(flat)
    if group.rank not in active:
        group.isend(flat, group.rank + 1, 2).wait()
        group.ireceive(flat, group.rank + 1, 2).wait()
        return
    if group.rank < 2 * folded:
        group.ireceive(received, group.rank - 1, 2).wait()
        combine(flat, received, out=flat)
    own, bit = active.index(group.rank), 1
    while bit < power:
        other = active[own ^ bit]
        exchange(group, flat, other, received, other)
        combine(flat, received, out=flat)
        bit <<= 1
    if group.rank < 2 * folded:
        group.isend(flat, group.rank - 1, 2).wait()


def allreduce(group, array, operation="sum"):
    flat, combine = array.reshape(-1), np.maximum if operation == "max" else np.add
    if array.nbytes <= 256:
        doubling(group, flat, combine)
    else:
        blocks = blocks_of(flat, group.size)
        reduce_into(group, blocks, combine)
        spread(group, blocks)
