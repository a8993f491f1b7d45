"""A recursive search for the end of each instruction, with a memory and a mark for what is being computed."""

from hybridnn.pipeline.schedules.instructions import Backward, Forward


def measure_orders(orders, forward, backward, message):
    seconds = {Forward: forward, Backward: backward}
    place = {(k, item): i for k, order in enumerate(orders) for i, item in enumerate(order)}
    starts = [[None] * len(order) for order in orders]
    running = set()

    def needs(k, i):
        """Stage and position of the instructions that come first, with the time of a message or without."""
        item = orders[k][i]
        if i:
            yield k, i - 1, 0.0
        other = {Forward: k - 1, Backward: k + 1}.get(type(item))
        if other is not None and 0 <= other < len(orders):
            yield other, find(other, item), message
        if type(item) is Backward and find(k, Forward(item.minibatch, item.microbatch)) > i:
            raise ValueError("a backward pass before its forward pass")

    def find(k, item):
        if (k, item) not in place:
            raise ValueError(f"stage {k} never computes {item}")
        return place[k, item]

    for first in ((k, i) for k, order in enumerate(orders) for i in range(len(order))):
        stack = [first]
        while stack:
            k, i = stack[-1]
            if starts[k][i] is not None:
                running.discard(stack.pop())
                continue
            before = list(needs(k, i))
            missing = [(other, j) for other, j, _ in before if starts[other][j] is None]
            if missing:
                if any(one in running for one in missing):
                    raise ValueError("stages wait for each other")
                running.add((k, i))
                stack.extend(missing[:1])
                continue
            ends = [starts[o][j] + seconds.get(type(orders[o][j]), 0.0) + extra for o, j, extra in before]
            starts[k][i] = max([0.0, *ends])
    total = max(
        (
            start + seconds.get(type(item), 0.0)
            for k, order in enumerate(orders)
            for start, item in zip(starts[k], order)
        ),
        default=0.0,
    )
    busy = sum(seconds.get(type(item), 0.0) for order in orders for item in order)
    flights = []
    for order in orders:
        level, levels = 0, [0]
        for item in order:
            level += {Forward: 1, Backward: -1}.get(type(item), 0)
            levels.append(level)
        flights.append(max(levels))
    return starts, 1 - busy / (total * len(orders)) if total else 0.0, flights
