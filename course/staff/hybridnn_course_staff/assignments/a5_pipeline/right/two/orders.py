"""Slices and `zip_longest`; what ends a minibatch is added by one function."""

from itertools import chain, zip_longest

from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    InputGradient,
    ReduceGradients,
    Update,
    WeightGradient,
)


def of_all_minibatches(size, passes_of):
    return list(chain.from_iterable([*passes_of(t), ReduceGradients(t), Update(t)] for t in range(size.minibatches)))


def passes(kind, t, size):
    return [kind(t, m) for m in range(size.microbatches)]


def gpipe(size, stage):
    return of_all_minibatches(size, lambda t: passes(Forward, t, size) + passes(Backward, t, size))


def in_turn(forward, backward, warm_up):
    pairs = zip_longest(forward[warm_up:], backward)
    return forward[:warm_up] + [item for pair in pairs for item in pair if item is not None]


def one_forward_one_backward(size, stage):
    warm_up = size.stages - 1 - stage
    return of_all_minibatches(size, lambda t: in_turn(passes(Forward, t, size), passes(Backward, t, size), warm_up))


def zero_bubble_h1(size, stage):
    def order(t):
        weights = passes(WeightGradient, t, size)
        for item in in_turn(passes(Forward, t, size), passes(InputGradient, t, size), size.stages - 1 - stage):
            yield item
            if type(item) is InputGradient and item.microbatch >= stage:
                yield weights.pop(0)
        yield from weights

    return of_all_minibatches(size, order)
