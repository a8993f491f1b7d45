"""Senders and receivers of a tree, rank by rank."""


def ring_counts(nbytes, ranks):
    largest = max(nbytes * (number + 1) // ranks - nbytes * number // ranks for number in range(ranks))
    return ranks * 2 - 2, largest * (ranks * 2 - 2), largest * (ranks - 1)


def collective_counts(nbytes, ranks):
    have, rounds = 1, 0
    while have < ranks:
        sends = [0] * have
        for number in range(min(3 * have, ranks - have)):
            sends[number % len(sends)] += 1
        rounds += max(sends)
        have += sum(sends)
    return rounds, rounds * nbytes, 0
