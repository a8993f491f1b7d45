"""Known wrong solutions of A2: the gradient on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn_course.assignment import Variant
from hybridnn_course_staff.assignment import Mistake

Sums = Sequence[Any]
"""Gradient by the weights, gradient by the biases, and loss: sums over the samples of one rank."""

Wrong = Callable[[Variant], Callable[..., Any]]


def _local(weights: NDArray[Any], bias: NDArray[Any], x: NDArray[Any], labels: NDArray[Any]) -> Sums:
    logits = x @ weights.T + bias
    logits -= logits.max(axis=1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(logits)
    sums = exponentials.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    delta = exponentials / sums
    delta[rows, labels] -= 1
    loss = np.sum(np.log(sums[:, 0]) - logits[rows, labels])
    return delta.T @ x, delta.sum(axis=0), loss


def _summed(group: Any, values: Any) -> NDArray[np.float64]:
    array = np.array(values, np.float64, ndmin=1)
    group.allreduce(array)
    return array.reshape(np.shape(values))


def _combined(combine: Callable[[Any, Sums, int], Sums]) -> Wrong:
    """A wrong solution that combines the sums of the ranks by a function of the group, the sums and the samples."""

    def global_gradient(group: Any, weights: Any, bias: Any, x: Any, labels: Any) -> Any:
        with np.errstate(all="ignore"):
            gradient, bias_gradient, loss = combine(group, _local(weights, bias, x, labels), len(labels))
        return gradient, bias_gradient, float(loss)

    return lambda _: global_gradient


def _own_count(samples: int, plainly: bool) -> Any:
    """Number of samples of one rank by which it divides; an empty one divides by zero, or by 1."""
    return np.float64(samples) if plainly else max(samples, 1)


def _average_of_averages(plainly: bool) -> Wrong:
    return _combined(
        lambda group, sums, own: [_summed(group, part / _own_count(own, plainly)) / group.size for part in sums]
    )


def _local_count(plainly: bool) -> Wrong:
    return _combined(lambda group, sums, own: [_summed(group, part) / _own_count(own, plainly) for part in sums])


def _not_divided() -> Wrong:
    return _combined(lambda group, sums, own: [_summed(group, part) for part in sums])


def _divided_by_ranks_too() -> Wrong:
    return _combined(
        lambda group, sums, own: [_summed(group, part) / (_summed(group, own) * group.size) for part in sums]
    )


def _divided_by_ranks_only() -> Wrong:
    return _combined(lambda group, sums, own: [_summed(group, part) / group.size for part in sums])


def _no_sum(plainly: bool) -> Wrong:
    return _combined(lambda group, sums, own: [part / _own_count(own, plainly) for part in sums])


def _averages_summed(plainly: bool) -> Wrong:
    return _combined(lambda group, sums, own: [_summed(group, part / _own_count(own, plainly)) for part in sums])


def _summed_twice() -> Wrong:
    def combine(group: Any, sums: Sums, own: int) -> Sums:
        gradient, bias_gradient, loss = (_summed(group, part) / _summed(group, own) for part in sums)
        return _summed(group, gradient), _summed(group, bias_gradient), loss

    return _combined(combine)


def _bias_stays_local() -> Wrong:
    def combine(group: Any, sums: Sums, own: int) -> Sums:
        gradient, bias_gradient, loss = sums
        count = _summed(group, own)
        return _summed(group, gradient) / count, bias_gradient / count, _summed(group, loss) / count

    return _combined(combine)


def _loss_stays_local() -> Wrong:
    def combine(group: Any, sums: Sums, own: int) -> Sums:
        gradient, bias_gradient, loss = sums
        count = _summed(group, own)
        return _summed(group, gradient) / count, _summed(group, bias_gradient) / count, loss / max(own, 1)

    return _combined(combine)


def _empty_rank_leaves() -> Wrong:
    def combine(group: Any, sums: Sums, own: int) -> Sums:
        return [_summed(group, part) / _summed(group, own) for part in sums] if own else sums

    return _combined(combine)


def _many_allreduces() -> Wrong:
    def combine(group: Any, sums: Sums, own: int) -> Sums:
        gradient, bias_gradient, loss = sums
        count = _summed(group, own)
        rows = [_summed(group, row) / count for row in gradient]
        return (
            np.array(rows).reshape(gradient.shape),
            _summed(group, bias_gradient) / count,
            _summed(group, loss) / count,
        )

    return _combined(combine)


GRADIENT = (
    Mistake(
        "average-of-averages",
        _average_of_averages(plainly=False),
        "Each rank divided by its own number of samples, and the averages were averaged: samples on a rank with few "
        "of them count more. How many samples does each average stand for?",
    ),
    Mistake(
        "local-count",
        _local_count(plainly=False),
        "The sum over all ranks was divided by the samples of one rank. Whose samples are in the sum?",
    ),
    Mistake("not-divided", _not_divided(), "This is the sum over all samples. What turns it into a mean?"),
    Mistake(
        "divided-by-ranks-too",
        _divided_by_ranks_too(),
        "The sum was divided by the number of samples, and once more by the number of ranks. Does the mean change when "
        "the same samples are dealt to more ranks?",
    ),
    Mistake(
        "divided-by-ranks-only",
        _divided_by_ranks_only(),
        "The sum was divided by the number of ranks. How many samples are in the sum?",
    ),
    Mistake(
        "no-sum",
        _no_sum(plainly=False),
        "Each rank returns the mean over its own samples. How does it learn about the others?",
    ),
    Mistake(
        "averages-summed",
        _averages_summed(plainly=False),
        "Each rank divided by its own number of samples before the sum. What would the result be for equal ranks?",
    ),
    Mistake(
        "summed-twice",
        _summed_twice(),
        "The gradients were summed over the ranks twice. What does the second sum add up?",
    ),
    Mistake(
        "bias-stays-local",
        _bias_stays_local(),
        "The gradient by the weights is right, but that by the biases has the samples of one rank only. Which samples "
        "does a bias act on?",
    ),
    Mistake(
        "loss-stays-local",
        _loss_stays_local(),
        "The gradients are right, but the loss is the mean over the samples of one rank. What has to travel with it?",
    ),
    Mistake(
        "empty-rank-leaves",
        _empty_rank_leaves(),
        "A rank without samples did not enter the all-reduce, and the others wait for it. Who has to enter it?",
    ),
    Mistake(
        "many-allreduces",
        _many_allreduces(),
        "The values are right, but there is one all-reduce per row. What does each of them cost, whatever its size?",
    ),
    *(
        Mistake(
            f"{name}-and-nan",
            made(True),
            f"{what} A rank without samples even divides zero by zero. Which number of samples is the same on all "
            "ranks, and never zero?",
        )
        for name, made, what in (
            (
                "average-of-averages",
                _average_of_averages,
                "Each rank divided by its own number of samples, and the averages were averaged.",
            ),
            ("local-count", _local_count, "The sum over all ranks was divided by the samples of one rank."),
            ("no-sum", _no_sum, "Each rank returns the mean over its own samples."),
            ("averages-summed", _averages_summed, "Each rank divided by its own number of samples before the sum."),
        )
    ),
)
