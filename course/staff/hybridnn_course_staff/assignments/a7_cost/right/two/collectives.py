"""The rounds one after the other, with the blocks that each rank holds."""


def blocks(nbytes, ranks):
    return [len(range(number, nbytes, ranks)) for number in range(ranks)]


def ring_counts(nbytes, ranks):
    sizes, messages, sent, reduced = blocks(nbytes, ranks), 0, 0, 0
    for number in range(2 * (ranks - 1)):
        largest = max(sizes[(rank - number) % ranks] for rank in range(ranks))
        messages, sent = messages + 1, sent + largest
        reduced += largest if number < ranks - 1 else 0
    return messages, sent, reduced


def collective_counts(nbytes, ranks):
    sizes = blocks(nbytes, ranks)
    if ranks % 2:
        return ranks - 1, sum(max(sizes) for _ in range(ranks - 1)), 0
    sent = max(sizes)
    last = [{rank, rank ^ 1} for rank in range(ranks)]
    known = [set(pair) for pair in last]
    messages = 1
    while len(known[0]) < ranks:
        towards = 1 if messages % 2 else -1  # odd ranks exchange with the next one first, then with their pair
        partner = [(rank + towards * (1 if rank % 2 else -1)) % ranks for rank in range(ranks)]
        sent += max(sum(sizes[block] for block in pair) for pair in last)
        last = [last[partner[rank]] for rank in range(ranks)]
        for mine, pair in zip(known, last):
            mine |= pair
        messages += 1
    return messages, sent, 0
