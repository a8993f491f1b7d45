"""Known wrong solutions of A1: the loss."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybridnn_course.assignment import Variant
from hybridnn_course.exercises.a1_dense.calls import Array
from hybridnn_course_staff.assignment import Mistake
from hybridnn_course_staff.assignments.a1_dense.mistakes import LOOP_HINT, MEMORY_HINT, REBINDS_HINT
from hybridnn_course_staff.assignments.a1_dense.solution import SMOOTHING, loss_solution


def _from_exponentials(variant: Variant, shift: Callable[[Array], Array]) -> Callable[..., None]:
    """The loss, where the logits are shifted in another way."""
    smoothing = SMOOTHING if variant["loss"] == "smoothed" else 0.0

    def cross_entropy(logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array) -> None:
        shifted = logits - shift(logits)
        exponentials = np.exp(shifted)
        sums = exponentials.sum(axis=0)
        targets = (1 - smoothing) * shifted[labels, columns] + smoothing * shifted.mean(axis=0)
        loss[0] = np.sum(np.log(sums) - targets) * (scale if variant["loss"] == "mean" else 1.0)
        gradient[...] = exponentials / sums
        gradient[labels, columns] -= 1 - smoothing
        gradient[...] = (gradient - smoothing / len(logits)) * scale

    return cross_entropy


def _no_maximum(variant: Variant) -> Callable[..., None]:
    return _from_exponentials(variant, np.zeros_like)


def _global_maximum(variant: Variant) -> Callable[..., None]:
    return _from_exponentials(variant, lambda logits: np.max(logits, initial=-np.inf))


def _large_temporaries(variant: Variant) -> Callable[..., None]:
    return _from_exponentials(variant, lambda logits: np.asarray(logits.max(axis=0)))


def _changed_after(variant: Variant, change: Callable[..., None]) -> Callable[..., None]:
    """The solution, and then a change: ``change(logits, labels, columns, scale, gradient, loss)``."""
    solution = loss_solution(variant)

    def cross_entropy(logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array) -> None:
        solution(logits, labels, columns, scale, gradient, loss)
        change(logits, labels, columns, scale, gradient, loss)

    return cross_entropy


def _divided_twice(variant: Variant) -> Callable[..., None]:
    def change(logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array) -> None:
        gradient *= scale

    return _changed_after(variant, change)


def _not_scaled(variant: Variant) -> Callable[..., None]:
    def change(logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array) -> None:
        gradient /= scale

    return _changed_after(variant, change)


def _loss_averaged(variant: Variant) -> Callable[..., None]:
    def change(logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array) -> None:
        loss /= max(len(labels), 1)
        if variant["loss"] == "mean":
            loss /= scale

    return _changed_after(variant, change)


def _label_kept(variant: Variant) -> Callable[..., None]:
    def change(logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array) -> None:
        if variant["loss"] == "smoothed":
            gradient += scale * SMOOTHING / len(logits)
            gradient[labels, columns] += scale * (1 - SMOOTHING)
        else:
            gradient[labels, columns] += scale

    return _changed_after(variant, change)


def _label_logits_not_shifted(variant: Variant) -> Callable[..., None]:
    def change(logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array) -> None:
        loss -= np.sum(logits.max(axis=0)) * (scale if variant["loss"] == "mean" else 1.0)

    return _changed_after(variant, change)


def _log_of_softmax(variant: Variant) -> Callable[..., None]:
    smoothing = SMOOTHING if variant["loss"] == "smoothed" else 0.0

    def change(logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array) -> None:
        softmax = np.exp(logits - logits.max(axis=0))
        softmax /= softmax.sum(axis=0)
        targets = np.full(logits.shape, smoothing / len(logits))
        targets[labels, columns] += 1 - smoothing
        products = np.where(targets > 0, targets * np.log(softmax), 0.0)
        loss[0] = -np.sum(products) * (scale if variant["loss"] == "mean" else 1.0)

    return _changed_after(variant, change)


def _over_samples(variant: Variant) -> Callable[..., None]:
    smoothing = SMOOTHING if variant["loss"] == "smoothed" else 0.0

    def cross_entropy(logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array) -> None:
        shifted = logits - logits.max(axis=1, keepdims=True, initial=-np.inf)
        exponentials = np.exp(shifted)
        sums = exponentials.sum(axis=1, keepdims=True)
        logarithms = shifted - np.log(sums)
        targets = np.full(logits.shape, smoothing / len(logits))
        targets[labels, columns] += 1 - smoothing
        loss[0] = -np.sum(targets * logarithms) * (scale if variant["loss"] == "mean" else 1.0)
        gradient[...] = (exponentials / sums - targets) * scale

    return cross_entropy


def _loss_accumulated(variant: Variant) -> Callable[..., None]:
    solution = loss_solution(variant)

    def cross_entropy(logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array) -> None:
        before = float(loss[0])
        solution(logits, labels, columns, scale, gradient, loss)
        loss += before

    return cross_entropy


def _logits_changed(variant: Variant) -> Callable[..., None]:
    def change(logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array) -> None:
        logits -= logits.max(axis=0)

    return _changed_after(variant, change)


def _loss_rebinds(variant: Variant) -> Callable[..., None]:
    solution = loss_solution(variant)

    def cross_entropy(logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array) -> None:
        gradient = np.empty_like(logits)
        solution(logits, labels, columns, scale, gradient, loss)

    return cross_entropy


def _loss_loop(variant: Variant) -> Callable[..., None]:
    solution = loss_solution(variant)

    def cross_entropy(logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array) -> None:
        total, one = 0.0, np.empty_like(loss)
        for j in range(len(labels)):
            sample = slice(j, j + 1)
            solution(logits[:, sample], labels[sample], columns[:1], scale, gradient[:, sample], one)
            total += float(one[0])
        loss[0] = total

    return cross_entropy


LOSS = (
    Mistake(
        "divided-twice",
        _divided_twice,
        "The gradient was multiplied by `scale` twice. Which step of yours divides by the number of samples already?",
    ),
    Mistake("not-scaled", _not_scaled, "The gradient is that of the sum over the samples. What is `scale` for?"),
    Mistake(
        "loss-averaged",
        _loss_averaged,
        "The loss was divided by the number of columns of `logits`. Are these all samples of the minibatch, and does "
        "the handout ask for a mean?",
    ),
    Mistake(
        "global-maximum",
        _global_maximum,
        "The largest logit of all samples was subtracted from each: the exponentials of a sample with much smaller "
        "logits are all 0. Which maximum makes at least one exponential of every sample 1?",
    ),
    Mistake(
        "no-maximum",
        _no_maximum,
        "Exponentials of large logits are infinite. By how much may all logits of a sample change without a change of "
        "its softmax?",
    ),
    Mistake(
        "log-of-softmax",
        _log_of_softmax,
        "The loss is infinite where a probability was rounded to 0. What is the logarithm of a quotient, and which of "
        "its two parts needs no exponential?",
    ),
    Mistake(
        "label-logits-not-shifted",
        _label_logits_not_shifted,
        "The loss is wrong by the sum of the maxima: one of its two terms has shifted logits, the other has not. Which "
        "terms of log-sum-exp does the shift change?",
    ),
    Mistake(
        "label-kept",
        _label_kept,
        "The gradient is the softmax alone. What is its sum over the classes of one sample, and what should it be?",
    ),
    Mistake(
        "softmax-over-samples",
        _over_samples,
        "The exponentials were divided by sums over the samples. Which axis of an array of shape (classes, n) is "
        "summed in a softmax?",
    ),
    Mistake(
        "loss-accumulated",
        _loss_accumulated,
        "The loss was added to what the array held before. What does the docstring promise about its content?",
    ),
    Mistake(
        "logits-changed",
        _logits_changed,
        "The results are right, but the logits of the caller have changed. Into which array can the shifted logits go?",
    ),
    Mistake("loss-rebinds-out", _loss_rebinds, REBINDS_HINT),
    Mistake("loss-loops", _loss_loop, LOOP_HINT),
    Mistake("loss-allocates", _large_temporaries, MEMORY_HINT),
)
