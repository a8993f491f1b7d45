"""Formulas with the size of the largest block."""


def ring_counts(nbytes, ranks):
    block = -(-nbytes // ranks)
    return 2 * (ranks - 1), 2 * (ranks - 1) * block, (ranks - 1) * block


def collective_counts(nbytes, ranks):
    if ranks == 1:
        return 0, 0, 0
    block = -(-nbytes // ranks)
    if ranks % 2 == 1:
        return ranks - 1, (ranks - 1) * block, 0
    second = nbytes // ranks + (nbytes % ranks > 1)
    return ranks // 2, block + (ranks // 2 - 1) * (block + second), 0
