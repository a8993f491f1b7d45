"""Sizes in a list, and slices by `range`."""


def block_bounds(items, parts, part):
    sizes = [items // parts] * parts
    for number in range(items % parts):
        sizes[number] += 1
    return sum(sizes[:part]), sum(sizes[: part + 1])


def minibatches(order, batch_size):
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
