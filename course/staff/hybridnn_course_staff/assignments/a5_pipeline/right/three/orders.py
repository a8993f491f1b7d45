"""Generators with counters, and a greedy choice of the next instruction."""

from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Forward,
    InputGradient,
    ReduceGradients,
    Update,
    WeightGradient,
)


def numbers(size):
    return list(reversed(range(size.microbatches)))


def end(t):
    return [WeightGradient(t, ALL_MICROBATCHES), ReduceGradients(t), Update(t)]


def gpipe(size, stage):
    order = []
    for t in range(size.minibatches):
        order.extend(kind(t, m) for kind in (Forward, InputGradient) for m in numbers(size))
        order.extend(end(t))
    return order


def alternate(t, size, bound):
    waiting, done = numbers(size), []
    while waiting or done:
        if waiting and len(done) < bound:
            done.append(waiting.pop(0))
            yield Forward(t, done[-1])
        else:
            yield InputGradient(t, done.pop(0))


def one_forward_one_backward(size, stage):
    bound = 2 * (size.stages - 1 - stage) + 1
    return [item for t in range(size.minibatches) for item in (*alternate(t, size, bound), *end(t))]


def zero_bubble_h1(size, stage):
    order = []
    for t in range(size.minibatches):
        owed = []
        for item in alternate(t, size, size.stages - stage):
            order.append(item)
            if isinstance(item, InputGradient):
                owed.append(item.microbatch)
                if len(owed) > stage:
                    order.append(WeightGradient(t, owed.pop(0)))
        order += [*(WeightGradient(t, m) for m in owed), ReduceGradients(t), Update(t)]
    return order
