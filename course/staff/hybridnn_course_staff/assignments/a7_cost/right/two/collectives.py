"""Triples of counts that are added."""

import numpy as np

PER_NODE = 4


def ring_counts(nbytes, ranks):
    block = -(-nbytes // ranks)
    half = np.array([1, block, 0]) * (ranks - 1)
    added = np.array([0, 0, block]) * (ranks - 1)
    return tuple(int(count) for count in 2 * half + added)


def collective_counts(nbytes, ranks):
    fullest = min(PER_NODE, ranks)
    rounds = 0
    while 2**rounds < fullest:
        rounds += 1
    inside = (2 * rounds, 2 * rounds * nbytes, rounds * nbytes)  # to the first ranks and back
    nodes = (ranks + PER_NODE - 1) // PER_NODE
    return tuple(map(sum, zip(inside, ring_counts(nbytes, nodes))))
