"""One generator of passes, which goes forward whenever the memory allows it."""

from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Forward,
    InputGradient,
    ReduceGradients,
    Update,
    WeightGradient,
)


def passes(size, most):
    """One minibatch, as kinds and microbatches: a stage goes forward whenever less than `most` are in flight."""
    forward = list(range(size.microbatches))
    in_flight = []
    while forward or in_flight:
        if forward and len(in_flight) < most:
            in_flight.insert(0, forward.pop())
            yield Forward, in_flight[0]
        else:
            yield InputGradient, in_flight.pop()


def merged(size, most):
    for t in range(size.minibatches):
        yield from (kind(t, m) for kind, m in passes(size, most))
        yield WeightGradient(t, ALL_MICROBATCHES)
        yield ReduceGradients(t)
        yield Update(t)


def gpipe(size, stage):
    return list(merged(size, size.microbatches))


def one_forward_one_backward(size, stage):
    return list(merged(size, 2 * (size.stages - 1 - stage) + 1))


def zero_bubble_h1(size, stage):
    order = []
    for t in range(size.minibatches):
        put_off = []
        for kind, m in passes(size, size.stages - stage):
            order.append(kind(t, m))
            if kind is InputGradient:
                put_off.append(WeightGradient(t, m))
                # stages with fewer microbatches in flight keep as many more until their weight gradient
                if len(put_off) > stage:
                    order.append(put_off.pop(0))
        order += put_off
        order += [ReduceGradients(t), Update(t)]
    return order
