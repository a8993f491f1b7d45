"""Known mistakes in the orders of A5, each a complete wrong solution with a hint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hybridnn.pipeline.schedules.computation_orders import ScheduleSize
from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    InputGradient,
    Instruction,
    ReduceGradients,
    Update,
    WeightGradient,
)
from hybridnn_course.assignment import Variant
from hybridnn_course.exercises.a5_pipeline.calls import most_in_flight
from hybridnn_course_staff.assignment import Mistake
from hybridnn_course_staff.assignments.a5_pipeline.solution import (
    OrderFunction,
    Passes,
    alternating,
    gpipe_solution,
    one_forward_one_backward_solution,
)

OfMinibatch = Callable[[Variant, Passes, ScheduleSize, int], Sequence[Instruction]]
"""From the variant, the passes of a minibatch, the size and the stage to the minibatch's part of the order."""


def _by_minibatch(part: OfMinibatch) -> Callable[[Variant], OrderFunction]:
    """An order that does the same for one minibatch after another."""

    def of_variant(variant: Variant) -> OrderFunction:
        def order(size: ScheduleSize, stage: int) -> list[Instruction]:
            parts = (part(variant, Passes(variant, size, t), size, stage) for t in range(size.minibatches))
            return [item for one in parts for item in one]

        return order

    return of_variant


def _warm_up(variant: Variant, size: ScheduleSize, stage: int) -> int:
    return most_in_flight(variant, size, stage) - 1


# -- mistakes of both orders ------------------------------------------------------------------------------------------


def _updating_after_each(order: Sequence[Instruction]) -> list[Instruction]:
    """The order with an update directly after each backward pass, and none at the end of the minibatch."""
    found: list[Instruction] = []
    for item in order:
        if isinstance(item, (Backward, InputGradient)):
            t, m = item.minibatch, item.microbatch
            found += [item, *([WeightGradient(t, m)] if isinstance(item, InputGradient) else [])]
            found += [ReduceGradients(t), Update(t)]
        elif isinstance(item, Forward):
            found.append(item)
    return found


def _update_per_microbatch(solution: Callable[[Variant], OrderFunction]) -> Callable[[Variant], OrderFunction]:
    return lambda variant: lambda size, stage: _updating_after_each(solution(variant)(size, stage))


def _reducing_early(order: Sequence[Instruction]) -> Iterator[Instruction]:
    """The order with each reduction directly after the last forward pass of its minibatch."""
    kept = [item for item in order if not isinstance(item, ReduceGradients)]
    last = {item.minibatch: position for position, item in enumerate(kept) if isinstance(item, Forward)}
    for position, item in enumerate(kept):
        yield item
        if last[item.minibatch] == position:
            yield ReduceGradients(item.minibatch)


def _reduce_too_early(solution: Callable[[Variant], OrderFunction]) -> Callable[[Variant], OrderFunction]:
    return lambda variant: lambda size, stage: list(_reducing_early(solution(variant)(size, stage)))


def _reduce_forgotten(solution: Callable[[Variant], OrderFunction]) -> Callable[[Variant], OrderFunction]:
    return lambda variant: (
        lambda size, stage: [item for item in solution(variant)(size, stage) if not isinstance(item, ReduceGradients)]
    )


def _always_minibatch_0(solution: Callable[[Variant], OrderFunction]) -> Callable[[Variant], OrderFunction]:
    return lambda variant: lambda size, stage: [item.of_minibatch(0) for item in solution(variant)(size, stage)]


def _split(item: Instruction) -> Sequence[Instruction]:
    return (item, WeightGradient(item.minibatch, item.microbatch)) if isinstance(item, InputGradient) else (item,)


def _not_merged(solution: Callable[[Variant], OrderFunction]) -> Callable[[Variant], OrderFunction]:
    return lambda variant: (
        lambda size, stage: [
            part
            for item in solution(variant)(size, stage)
            if not isinstance(item, WeightGradient)
            for part in _split(item)
        ]
    )


def _of_both(solution: Callable[[Variant], OrderFunction]) -> tuple[Mistake, ...]:
    """Mistakes that occur in GPipe as in 1F1B."""
    return (
        Mistake(
            "update-per-microbatch",
            _update_per_microbatch(solution),
            "The weights are updated after every microbatch, so that later microbatches of the minibatch read other "
            "weights than earlier ones. Of what is the gradient of a minibatch the mean?",
        ),
        Mistake(
            "reduce-too-early",
            _reduce_too_early(solution),
            "The gradients are reduced over the ranks while backward passes of the minibatch are still to come. Which "
            "gradients does the sum then lack?",
        ),
        Mistake(
            "reduce-forgotten",
            _reduce_forgotten(solution),
            "There is no ReduceGradients. With several batch ranks per stage, what would each of them apply?",
        ),
        Mistake(
            "always-minibatch-0",
            _always_minibatch_0(solution),
            "Every instruction has the minibatch 0. Which samples does the second minibatch of the order use?",
        ),
        Mistake(
            "weight-gradients-not-merged",
            _not_merged(solution),
            "There is a weight gradient for every microbatch. How many products does your variant ask for?",
            variants={"weight_gradients": ["merged"]},
        ),
    )


# -- gpipe ------------------------------------------------------------------------------------------------------------


def _one_at_a_time(variant: Variant, passes: Passes, size: ScheduleSize, stage: int) -> Sequence[Instruction]:
    return [*alternating(passes.forward, passes.backward, 0), *passes.end]


def _backward_reversed(variant: Variant, passes: Passes, size: ScheduleSize, stage: int) -> Sequence[Instruction]:
    return [*passes.forward, *passes.backward[::-1], *passes.end]


def _all_minibatches_forward(variant: Variant) -> OrderFunction:
    def gpipe(size: ScheduleSize, stage: int) -> list[Instruction]:
        order = gpipe_solution(variant)(size, stage)
        forward = [item for item in order if isinstance(item, Forward)]
        return forward + [item for item in order if not isinstance(item, Forward)]

    return gpipe


def _no_backward_on_first(variant: Variant, passes: Passes, size: ScheduleSize, stage: int) -> Sequence[Instruction]:
    return [*passes.forward, *(passes.backward if stage else []), *(passes.end if stage else passes.update)]


def _stage_is_microbatch(variant: Variant, passes: Passes, size: ScheduleSize, stage: int) -> Sequence[Instruction]:
    return [
        *passes.forward[stage:],
        *passes.forward[:stage],
        *passes.backward[stage:],
        *passes.backward[:stage],
        *passes.end,
    ]


GPIPE = (
    Mistake(
        "one-at-a-time",
        _by_minibatch(_one_at_a_time),
        "Each backward pass directly follows its forward pass. When can stage 0 begin with the second microbatch, if "
        "the gradient of the first one comes back from the last stage?",
    ),
    Mistake(
        "backward-reversed",
        _by_minibatch(_backward_reversed),
        "The backward passes are in the reverse order of the forward passes. In which order does the handout ask for "
        "them?",
    ),
    Mistake(
        "minibatches-mixed",
        _all_minibatches_forward,
        "Forward passes of a later minibatch come before the update of the earlier one. Which weights do they read?",
    ),
    Mistake(
        "first-stage-without-backward",
        _by_minibatch(_no_backward_on_first),
        "Stage 0 has no backward passes. It sends no gradient on, but which gradients does its update need?",
    ),
    Mistake(
        "begins-at-own-number",
        _by_minibatch(_stage_is_microbatch),
        "Stage k begins with microbatch k. Which microbatch arrives first from the previous stage?",
    ),
    *_of_both(gpipe_solution),
)


# -- 1f1b -------------------------------------------------------------------------------------------------------------


def _with_warm_up(
    warm_up: Callable[[Variant, ScheduleSize, int], int],
) -> Callable[[Variant], OrderFunction]:
    """1F1B with another number of forward passes in the warm-up."""

    def part(variant: Variant, passes: Passes, size: ScheduleSize, stage: int) -> Sequence[Instruction]:
        return [*alternating(passes.forward, passes.backward, warm_up(variant, size, stage)), *passes.end]

    return _by_minibatch(part)


def _no_drain(variant: Variant, passes: Passes, size: ScheduleSize, stage: int) -> Sequence[Instruction]:
    warm_up = min(_warm_up(variant, size, stage), size.microbatches)
    steady = passes.backward[: size.microbatches - warm_up]
    return [*alternating(passes.forward, steady, warm_up), *passes.end]


def _drain_reversed(variant: Variant, passes: Passes, size: ScheduleSize, stage: int) -> Sequence[Instruction]:
    warm_up = min(_warm_up(variant, size, stage), size.microbatches)
    steady = size.microbatches - warm_up
    backward = [*passes.backward[:steady], *passes.backward[steady:][::-1]]
    return [*alternating(passes.forward, backward, warm_up), *passes.end]


def _backward_first(variant: Variant, passes: Passes, size: ScheduleSize, stage: int) -> Sequence[Instruction]:
    warm_up = _warm_up(variant, size, stage)
    order: list[Instruction] = list(passes.forward[:warm_up])
    for number, one in enumerate(passes.backward):
        order += [one, *passes.forward[warm_up + number : warm_up + number + 1]]
    return [*order, *passes.end]


def _too_many_forwards(variant: Variant, passes: Passes, size: ScheduleSize, stage: int) -> Sequence[Instruction]:
    """The warm-up is as long as ever, where there are fewer microbatches."""
    warm_up, t = _warm_up(variant, size, stage), passes.update[0].minibatch
    beyond = [Forward(t, m) for m in range(size.microbatches, warm_up)]
    return [*passes.forward[:warm_up], *beyond, *alternating(passes.forward[warm_up:], passes.backward, 0), *passes.end]


def _all_forwards_first(variant: Variant) -> OrderFunction:
    return gpipe_solution(variant)


def _no_flush(variant: Variant) -> OrderFunction:
    def one_forward_one_backward(size: ScheduleSize, stage: int) -> list[Instruction]:
        of_all = [Passes(variant, size, t) for t in range(size.minibatches)]
        forward = [item for passes in of_all for item in passes.forward]
        backward = [item for passes in of_all for item in passes.backward]
        ends: dict[Instruction, list[Instruction]] = {passes.backward[-1]: passes.end for passes in of_all}
        order = alternating(forward, backward, _warm_up(variant, size, stage))
        return [part for item in order for part in (item, *ends.get(item, ()))]

    return one_forward_one_backward


ONE_FORWARD_ONE_BACKWARD = (
    Mistake(
        "warm-up-short",
        _with_warm_up(lambda variant, size, stage: max(0, _warm_up(variant, size, stage) - 1)),
        "The stages before the last one begin with one forward pass too few, and then wait. How many microbatches may "
        "be in flight on stage 0, and how many are in flight in your order directly before its first backward pass?",
    ),
    Mistake(
        "warm-up-long",
        _with_warm_up(lambda variant, size, stage: _warm_up(variant, size, stage) + 1),
        "Every stage has one microbatch more in flight than it may. After which forward pass can the last stage "
        "compute its first backward pass?",
    ),
    Mistake(
        "same-on-all-stages",
        _with_warm_up(lambda variant, size, stage: _warm_up(variant, size, 0)),
        "All stages begin with as many forward passes as stage 0. Which stage receives the first gradient, and which "
        "one receives it last?",
    ),
    Mistake(
        "stages-reversed",
        _with_warm_up(lambda variant, size, stage: _warm_up(variant, size, size.stages - 1 - stage)),
        "The first stage begins with one forward pass, and the last stage with the most: the stages wait for each "
        "other. How far is each stage from the last one?",
    ),
    Mistake(
        "no-drain",
        _by_minibatch(_no_drain),
        "The order of a minibatch ends with its last forward pass and one backward pass. Which microbatches are still "
        "in flight then?",
    ),
    Mistake(
        "drain-reversed",
        _by_minibatch(_drain_reversed),
        "The last backward passes are in reverse order. In which order does the next stage send its gradients?",
    ),
    Mistake(
        "backward-before-forward",
        _by_minibatch(_backward_first),
        "In each pair the backward pass comes before the forward pass. What has the last stage computed before its "
        "first backward pass?",
    ),
    Mistake(
        "fewer-microbatches-than-stages",
        _by_minibatch(_too_many_forwards),
        "With few microbatches, the warm-up has forward passes of microbatches that do not exist. What is the number "
        "of the last microbatch?",
    ),
    Mistake(
        "all-forwards-first",
        _all_forwards_first,
        "This is GPipe: all forward passes come first. Its bubble is the same; how many microbatches' activations does "
        "it store?",
    ),
    Mistake(
        "no-flush",
        _no_flush,
        "Forward passes of the next minibatch begin before the update of this one, so they read old weights. When may "
        "the first forward pass of the next minibatch start?",
    ),
    *_of_both(one_forward_one_backward_solution),
)


# -- zero bubble ------------------------------------------------------------------------------------------------------


def _zero_bubble(variant: Variant, passes: Passes, size: ScheduleSize, stage: int, late: int) -> list[Instruction]:
    """1F1B whose weight gradients are so many microbatches late, without those that are left over at the end."""
    order: list[Instruction] = []
    count = 0
    for item in alternating(passes.forward, passes.of_input, size.stages - 1 - stage):
        order.append(item)
        if isinstance(item, InputGradient):
            count += 1
            order += passes.of_weights[count - 1 - late : count - late] if count > late else []
    return order


def _late_by(late: Callable[[ScheduleSize, int], int]) -> Callable[[Variant], OrderFunction]:
    def part(variant: Variant, passes: Passes, size: ScheduleSize, stage: int) -> Sequence[Instruction]:
        number = min(late(size, stage), size.microbatches)
        left_over = passes.of_weights[size.microbatches - number :]
        return [*_zero_bubble(variant, passes, size, stage, number), *left_over, *passes.update]

    return _by_minibatch(part)


def _left_over_lost(variant: Variant, passes: Passes, size: ScheduleSize, stage: int) -> Sequence[Instruction]:
    return [*_zero_bubble(variant, passes, size, stage, stage), *passes.update]


def _left_over_after_update(variant: Variant, passes: Passes, size: ScheduleSize, stage: int) -> Sequence[Instruction]:
    left_over = passes.of_weights[max(0, size.microbatches - stage) :]
    return [*_zero_bubble(variant, passes, size, stage, stage), *passes.update, *left_over]


def _weights_first(variant: Variant, passes: Passes, size: ScheduleSize, stage: int) -> Sequence[Instruction]:
    order: list[Instruction] = []
    for item in alternating(passes.forward, passes.of_input, size.stages - 1 - stage):
        order += [WeightGradient(*item.part)] if isinstance(item, InputGradient) else []
        order.append(item)
    return [*order, *passes.update]


def _not_split(variant: Variant, passes: Passes, size: ScheduleSize, stage: int) -> Sequence[Instruction]:
    backward = [Backward(*item.part) for item in passes.of_input]
    return [*alternating(passes.forward, backward, size.stages - 1 - stage), *passes.update]


def _gpipe_split(variant: Variant, passes: Passes, size: ScheduleSize, stage: int) -> Sequence[Instruction]:
    return [*passes.forward, *passes.of_input, *passes.of_weights, *passes.update]


ZERO_BUBBLE = (
    Mistake(
        "weights-at-once",
        _late_by(lambda size, stage: 0),
        "The order is valid, but each weight gradient directly follows its input gradient, as in 1F1B. Which stages "
        "wait at the end of the minibatch, and what could they compute then?",
    ),
    Mistake(
        "weights-last",
        _late_by(lambda size, stage: size.microbatches),
        "The order is valid, but all weight gradients come last, and until then the activations of all microbatches "
        "are stored. How many does stage k have to keep back to fill its bubble?",
    ),
    Mistake(
        "late-from-the-end",
        _late_by(lambda size, stage: size.stages - 1 - stage),
        "The first stages delay their weight gradients, and the last one does not. Which stage has the fewest "
        "microbatches in flight, and can store more activations?",
    ),
    Mistake(
        "equally-late",
        _late_by(lambda size, stage: size.stages - 1),
        "The weight gradients are equally late on all stages. Stage 0 has the most microbatches in flight: how many "
        "activations does it store in addition?",
    ),
    Mistake(
        "left-over-lost",
        _by_minibatch(_left_over_lost),
        "The weight gradients of the last microbatches are missing. How many are late when the last input gradient is "
        "computed?",
    ),
    Mistake(
        "left-over-after-update",
        _by_minibatch(_left_over_after_update),
        "The last weight gradients come after the update. Which gradients does the update apply?",
    ),
    Mistake(
        "weights-before-input",
        _by_minibatch(_weights_first),
        "A weight gradient comes before the input gradient of its microbatch. Which of the two computes what the other "
        "one needs, and which of them does the previous stage wait for?",
    ),
    Mistake(
        "not-split",
        _by_minibatch(_not_split),
        "The backward passes are not split. Which part of a backward pass can be moved?",
    ),
    Mistake(
        "forwards-first",
        _by_minibatch(_gpipe_split),
        "All forward passes come first, so the activations of all microbatches are stored. What bounds them in 1F1B?",
    ),
)
