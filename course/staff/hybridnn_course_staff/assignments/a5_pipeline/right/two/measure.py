"""One instruction of every stage in turn, until nothing runs any more."""

from itertools import accumulate

from hybridnn.pipeline.schedules.instructions import Backward, Forward


def measure_orders(orders, forward, backward, message):
    stages = len(orders)
    seconds = {Forward: forward, Backward: backward}
    starts = [[] for _ in orders]
    clocks = [0.0] * stages
    ended = {}

    def run_one(k):
        """Run the next instruction of stage k, if there is one and it can run."""
        if len(starts[k]) == len(orders[k]):
            return False
        item = orders[k][len(starts[k])]
        begin = clocks[k]
        neighbour = {Forward: k - 1, Backward: k + 1}.get(type(item), -1)
        if type(item) is Backward and (k, Forward(item.minibatch, item.microbatch)) not in ended:
            return False
        if 0 <= neighbour < stages:
            if (neighbour, item) not in ended:
                return False
            begin = message + max(begin, ended[neighbour, item])
        starts[k].append(begin)
        clocks[k] = ended[k, item] = begin + seconds.get(type(item), 0)
        return True

    while any([run_one(k) for k in range(stages)]):
        pass
    if any(len(done) < len(order) for done, order in zip(starts, orders)):
        raise ValueError("the orders cannot run")

    most = []
    busy = 0
    for order in orders:
        kinds = [type(item) for item in order]
        busy += sum(seconds.get(kind, 0) for kind in kinds)
        most.append(max(accumulate((kind is Forward) - (kind is Backward) for kind in kinds), default=0))
    area = stages * max(clocks)
    return starts, 1 - busy / area if area else 0.0, most
