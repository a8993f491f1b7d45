"""Round after round, one instruction of every stage that can start."""

from hybridnn.pipeline.schedules.instructions import Backward, Forward


def measure_orders(orders, forward, backward, message):
    starts = [[] for _ in orders]
    clock = [0.0] * len(orders)
    ended = {}
    left = sum(map(len, orders))
    while left:
        before = left
        for k, order in enumerate(orders):
            if len(starts[k]) == len(order):
                continue
            item = order[len(starts[k])]
            start, length, source = clock[k], 0.0, None
            if type(item) is Forward:
                length = forward
                if k > 0:
                    source = (k - 1, item)
            elif type(item) is Backward:
                length = backward
                if (k, Forward(item.minibatch, item.microbatch)) not in ended:
                    continue
                if k < len(orders) - 1:
                    source = (k + 1, item)
            if source is not None:
                if source not in ended:
                    continue
                start = max(start, ended[source] + message)
            starts[k].append(start)
            clock[k] = ended[k, item] = start + length
            left -= 1
        if left == before:
            raise ValueError("no stage can go on")
    end = max(clock) if clock else 0
    busy = 0.0
    in_flight = []
    for order in orders:
        now = most = 0
        for item in order:
            if type(item) is Forward:
                busy += forward
                now += 1
                most = max(most, now)
            elif type(item) is Backward:
                busy += backward
                now -= 1
        in_flight.append(most)
    return starts, (1 - busy / (end * len(orders)) if end > 0 else 0.0), in_flight
