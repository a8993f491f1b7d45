"""One function for a round, and the blocks by slices; one rank returns at once."""

import numpy as np

from hybridnn.comm.blocks import block_bounds


def swap(group, outgoing, incoming):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    send = group.isend(outgoing, right, 0)
    receive = group.ireceive(incoming, left, 0)
    send.wait()
    receive.wait()


def shift(group, array):
    if group.size == 1:
        return array.copy()
    result = np.zeros_like(array)
    swap(group, array, result)
    return result


def rows(array, group, block):
    start, stop = block_bounds(len(array), group.size, block % group.size)
    return array[start:stop]


def reduce_scatter_rows(group, array, out):
    work = array.copy()
    for step in range(1, group.size):
        mine = rows(work, group, group.rank - step - 1)
        incoming = np.empty_like(mine)
        swap(group, rows(work, group, group.rank - step), incoming)
        mine += incoming
    out[...] = rows(work, group, group.rank)


def allgather_rows(group, array):
    for step in range(group.size - 1):
        swap(group, rows(array, group, group.rank - step), rows(array, group, group.rank - step - 1))


def allreduce(group, array, operation="sum"):
    flat = array.reshape(-1)
    for step in range(1, group.size):
        mine = rows(flat, group, group.rank - step - 1)
        incoming = np.empty_like(mine)
        swap(group, rows(flat, group, group.rank - step), incoming)
        if operation == "sum":
            mine += incoming
        else:
            np.maximum(mine, incoming, out=mine)
    allgather_rows(group, flat)
