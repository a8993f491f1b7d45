"""Longer parts and the full minibatches last, by counting from the end."""

from itertools import accumulate


def block_bounds(items, parts, part):
    sizes = sorted((items // parts + (number < items % parts)) for number in range(parts))
    ends = [0, *accumulate(sizes)]
    return ends[part], ends[part + 1]


def minibatches(order, batch_size):
    batches, end = [], len(order)
    while end > 0:
        batches.insert(0, order[max(0, end - batch_size) : end])
        end -= batch_size
    return iter(batches)
