"""Lists that grow in loops over counters."""

from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    InputGradient,
    ReduceGradients,
    Update,
    WeightGradient,
)


def gpipe(size, stage):
    order = []
    for t in range(size.minibatches):
        for m in range(size.microbatches):
            order.append(Forward(t, m))
        for m in range(size.microbatches):
            order.append(Backward(t, m))
        order += [ReduceGradients(t), Update(t)]
    return order


def one_forward_one_backward(size, stage):
    order = []
    for t in range(size.minibatches):
        forward = backward = 0
        while backward < size.microbatches:
            if forward < size.microbatches and forward - backward < size.stages - stage:
                order.append(Forward(t, forward))
                forward += 1
            else:
                order.append(Backward(t, backward))
                backward += 1
        order += [ReduceGradients(t), Update(t)]
    return order


def zero_bubble_h1(size, stage):
    order = []
    for t in range(size.minibatches):
        forward = gradient = weight = 0
        while weight < size.microbatches:
            if forward < size.microbatches and forward - gradient < size.stages - stage:
                order.append(Forward(t, forward))
                forward += 1
            elif gradient < size.microbatches and gradient - weight <= stage:
                order.append(InputGradient(t, gradient))
                gradient += 1
                if gradient - weight > stage:
                    order.append(WeightGradient(t, weight))
                    weight += 1
            else:
                order.append(WeightGradient(t, weight))
                weight += 1
        order += [ReduceGradients(t), Update(t)]
    return order
