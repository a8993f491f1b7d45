"""Reference solutions of A5."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Backward,
    Forward,
    InputGradient,
    Instruction,
    ReduceGradients,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.schedule import ScheduleSize
from hybridnn_course.assignment import Variant
from hybridnn_course.exercises.a5_pipeline.calls import most_in_flight

OrderFunction = Callable[[ScheduleSize, int], list[Instruction]]


class Passes:
    """The instructions of a minibatch in a variant: passes in the order of the microbatches, and what follows them.

    The backward passes are in groups, of one instruction each.
    """

    def __init__(self, variant: Variant, size: ScheduleSize, minibatch: int) -> None:
        count = size.microbatches
        numbers = range(count) if variant["microbatch_order"] == "ascending" else range(count)[::-1]
        merges = variant["weight_gradients"] == "merged"
        backward = InputGradient if merges else Backward
        self.update = [ReduceGradients(minibatch), Update(minibatch)]
        self.forward = [Forward(minibatch, m) for m in numbers]
        self.backward = [[backward(minibatch, m)] for m in numbers]
        self.of_input = [InputGradient(minibatch, m) for m in numbers]
        self.of_weights = [WeightGradient(minibatch, m) for m in numbers]
        merged = [WeightGradient(minibatch, ALL_MICROBATCHES)] if merges else []
        self.end = [*merged, *self.update]


def alternating(
    forward: Sequence[Instruction], backward: Sequence[Sequence[Instruction]], warm_up: int
) -> list[Instruction]:
    """So many forward passes, then forward passes and groups of backward passes in turn, then the other groups."""
    order = list(forward[:warm_up])
    for number, group in enumerate(backward, warm_up):
        order += [*forward[number : number + 1], *group]
    return order


def gpipe_solution(variant: Variant) -> OrderFunction:
    """All forward passes of a minibatch, then all backward passes."""

    def gpipe(size: ScheduleSize, stage: int) -> list[Instruction]:
        order: list[Instruction] = []
        for t in range(size.minibatches):
            passes = Passes(variant, size, t)
            order += [*alternating(passes.forward, passes.backward, size.microbatches), *passes.end]
        return order

    return gpipe


def one_forward_one_backward_solution(variant: Variant) -> OrderFunction:
    """1F1B with a bound of the microbatches in flight."""

    def one_forward_one_backward(size: ScheduleSize, stage: int) -> list[Instruction]:
        order: list[Instruction] = []
        for t in range(size.minibatches):
            passes = Passes(variant, size, t)
            warm_up = most_in_flight(variant, size, stage) - 1
            order += [*alternating(passes.forward, passes.backward, warm_up), *passes.end]
        return order

    return one_forward_one_backward


def zero_bubble_solution(variant: Variant) -> OrderFunction:
    """1F1B with weight gradients k microbatches late."""

    def zero_bubble_h1(size: ScheduleSize, stage: int) -> list[Instruction]:
        order: list[Instruction] = []
        for t in range(size.minibatches):
            passes = Passes(variant, size, t)
            late = min(stage, size.microbatches)
            left_over = passes.of_weights[size.microbatches - late :]
            backward: list[list[Instruction]] = [[one] for one in passes.of_input]
            for group, weights in zip(backward[late:], passes.of_weights, strict=False):
                group.append(weights)
            order += [*alternating(passes.forward, backward, size.stages - 1 - stage), *left_over, *passes.update]
        return order

    return zero_bubble_h1


def measure_orders(
    orders: Sequence[Sequence[Instruction]], forward: float, backward: float, message: float
) -> tuple[list[list[float]], float, list[int]]:
    """Time and memory of the stages' orders, each of which starts every instruction as early as possible.

    A stage computes its list in the order of the list, one instruction at a time. ``Forward(t, m)`` needs the output of
    ``Forward(t, m)`` of the previous stage; ``Backward(t, m)`` needs the gradient from ``Backward(t, m)`` of the next
    stage, and ``Forward(t, m)`` of its own stage. What another stage computes arrives `message` seconds after it is
    computed. The first stage has all samples at time 0, and the last stage needs no gradient. ``ReduceGradients`` and
    ``Update`` take no time and need nothing from other stages.

    Parameters
    ----------
    orders : list of list of Instruction
        The list of each stage: Forward, Backward, ReduceGradients and Update.
    forward, backward, message : float
        Seconds of a forward pass, of a backward pass, and of a message.

    Returns
    -------
    starts : list of list of float
        Start of each instruction, in the order of the lists.
    bubble : float
        Share of the stages' time, from 0 to the end of the last instruction of all stages, in which they compute
        nothing; 0 if nothing takes time.
    in_flight : list of int
        For each stage the most microbatches at a time whose forward pass it has started and whose backward pass it has
        not ended.

    Raises
    ------
    ValueError
        If the orders cannot run: a stage waits for something that never happens.
    """
    return measure(orders, forward, backward, message, exposed=False)


def measure(
    orders: Sequence[Sequence[Instruction]], forward: float, backward: float, message: float, *, exposed: bool
) -> tuple[list[list[float]], float, list[int]]:
    """As `measure_orders`; with `exposed`, a message occupies its receiver."""
    ends: dict[tuple[int, Instruction], float] = {}
    starts: list[list[float]] = [[] for _ in orders]
    free = [0.0] * len(orders)
    progress = True
    while progress:
        progress = False
        for stage, order in enumerate(orders):
            while len(starts[stage]) < len(order):
                item = order[len(starts[stage])]
                sender = _sender(stage, item, len(orders))
                own = (stage, Forward(*item.part))
                if (sender is not None and (sender, item) not in ends) or (
                    isinstance(item, Backward) and own not in ends
                ):
                    break
                start = free[stage]
                if sender is not None:
                    start = max(start + message * exposed, ends[sender, item] + message)
                seconds = forward if isinstance(item, Forward) else backward if isinstance(item, Backward) else 0.0
                starts[stage].append(start)
                ends[stage, item] = free[stage] = start + seconds
                progress = True
    if any(len(own) < len(order) for own, order in zip(starts, orders, strict=True)):
        raise ValueError("a stage waits for something that never happens")
    end = max(free, default=0.0)
    busy = sum(forward * _count(order, Forward) + backward * _count(order, Backward) for order in orders)
    return starts, 1 - busy / (len(orders) * end) if end else 0.0, [peak_in_flight(order) for order in orders]


def measure_solution(variant: Variant) -> Callable[..., tuple[list[list[float]], float, list[int]]]:
    """`measure_orders`, where messages occupy their receiver or do not."""
    if variant["messages"] == "beside":
        return measure_orders

    def measure_orders_exposed(
        orders: Sequence[Sequence[Instruction]], forward: float, backward: float, message: float
    ) -> tuple[list[list[float]], float, list[int]]:
        return measure(orders, forward, backward, message, exposed=True)

    return measure_orders_exposed


def _sender(stage: int, item: Instruction, stages: int) -> int | None:
    """The stage whose message a pass needs."""
    if isinstance(item, Forward) and stage > 0:
        return stage - 1
    return stage + 1 if isinstance(item, Backward) and stage < stages - 1 else None


def _count(order: Sequence[Instruction], kind: type[Instruction]) -> int:
    return sum(isinstance(item, kind) for item in order)


def peak_in_flight(order: Sequence[Instruction]) -> int:
    """Most microbatches at a time between their forward and the end of their backward pass."""
    most = count = 0
    for item in order:
        count += isinstance(item, Forward)
        most = max(most, count)
        count -= isinstance(item, Backward)
    return most
