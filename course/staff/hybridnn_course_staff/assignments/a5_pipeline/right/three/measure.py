"""Messages occupy the receiver; the earliest instruction of all stages is computed next."""

from hybridnn.pipeline.schedules.instructions import Backward, Forward


def measure_orders(orders, forward, backward, message):
    K, ends = len(orders), [{} for _ in orders]
    starts, free, next_up = [[] for _ in orders], [0.0] * K, [0] * K

    def start_of(k):
        """When the next instruction of a stage can start; None as long as that is not known."""
        if next_up[k] == len(orders[k]):
            return None
        item = orders[k][next_up[k]]
        kind = type(item)
        if kind is Backward and Forward(item.minibatch, item.microbatch) not in ends[k]:
            return None
        neighbour = k - 1 if kind is Forward else k + 1 if kind is Backward else -1
        if not 0 <= neighbour < K:
            return free[k]
        if item not in ends[neighbour]:
            return None
        return max(free[k], ends[neighbour][item]) + message

    while ready := [(start, k) for k in range(K) if (start := start_of(k)) is not None]:
        start, k = min(ready)
        item = orders[k][next_up[k]]
        starts[k].append(start)
        free[k] = start + {Forward: forward, Backward: backward}.get(type(item), 0)
        ends[k][item] = free[k]
        next_up[k] += 1
    if next_up != list(map(len, orders)):
        raise ValueError("the orders wait for each other")
    counts = [[sum(type(item) is kind for item in order) for kind in (Forward, Backward)] for order in orders]
    busy = sum(f * forward + b * backward for f, b in counts)
    end = max(free, default=0)
    return starts, 1 - busy / end / K if end else 0.0, [most_in_flight(order) for order in orders]


def most_in_flight(order):
    open_, most = set(), 0
    for item in order:
        if isinstance(item, Forward):
            open_.add((item.minibatch, item.microbatch))
        most = max(most, len(open_))
        if isinstance(item, Backward):
            open_.remove((item.minibatch, item.microbatch))
    return most
