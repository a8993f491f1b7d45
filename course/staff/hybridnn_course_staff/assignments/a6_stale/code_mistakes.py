"""Known wrong solutions of A6: weight versions in buffers, and stages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from hybridnn_course.assignment import Variant
from hybridnn_course_staff.assignment import Mistake
from hybridnn_course_staff.assignments.a6_stale.solution import (
    Array,
    Stage,
    UpdateRule,
    WeightVersions,
    stage_solution,
    store_solution,
)

# -- store ------------------------------------------------------------------------------------------------------------

StoreType = type[WeightVersions]


def _store(make: Callable[[StoreType], StoreType]) -> Callable[[Variant], StoreType]:
    """A subclass of the solution of the variant."""
    return lambda variant: make(store_solution(variant))


def _aliased(base: Any) -> Any:
    class WeightVersions(base):  # type: ignore[misc]
        _older: Any

        def update(self, rule: UpdateRule, kept: Collection[int] = ()) -> None:
            numbers = {self._number(which, self._updates + 1) for which in kept}
            self._older = {
                n: buffer for n, buffer in {**self._older, self._updates: self._current}.items() if n in numbers
            }
            rule(self._current, self._current)
            self._updates += 1

    return WeightVersions


def _in_turn(most: int) -> Callable[[Any], Any]:
    """Versions in a ring of at most so many buffers."""

    def make(base: Any) -> Any:
        class WeightVersions(base):  # type: ignore[misc]
            def __init__(self, weights: Array, versions: int) -> None:
                self._ring = [weights, *(np.empty_like(weights) for _ in range(min(versions, most) - 1))]
                self._updates = 0

            def read(self, which: int) -> Array:
                return self._ring[self._number(which, self._updates) % len(self._ring)]  # type: ignore[no-any-return]

            def update(self, rule: UpdateRule, kept: Collection[int] = ()) -> None:
                slot, size = self._updates, len(self._ring)
                rule(self._ring[slot % size], self._ring[(slot + 1) % size])
                self._updates += 1

        return WeightVersions

    return make


def _ages_before(base: Any) -> Any:
    class WeightVersions(base):  # type: ignore[misc]
        def update(self, rule: UpdateRule, kept: Collection[int] = ()) -> None:
            super().update(rule, [which + 1 for which in kept])

    return WeightVersions


def _from_stale_weights(base: Any) -> Any:
    class WeightVersions(base):  # type: ignore[misc]
        def update(self, rule: UpdateRule, kept: Collection[int] = ()) -> None:
            oldest = min(self._older, default=None)
            stale = self._current if oldest is None else self._older[oldest]
            super().update(lambda old, new: rule(stale, new), kept)

    return WeightVersions


def _copied(base: Any) -> Any:
    class WeightVersions(base):  # type: ignore[misc]
        def update(self, rule: UpdateRule, kept: Collection[int] = ()) -> None:
            def copy_first(old: Array, new: Array) -> None:
                np.copyto(new, old)
                rule(new, new)

            super().update(copy_first if self._updates in self._numbers(kept) else rule, kept)

        def _numbers(self, kept: Collection[int]) -> set[int]:
            return {self._number(which, self._updates + 1) for which in kept}

    return WeightVersions


def _read_copied(base: Any) -> Any:
    class WeightVersions(base):  # type: ignore[misc]
        def read(self, which: int) -> Array:
            return super().read(which).copy()  # type: ignore[no-any-return]

    return WeightVersions


def _kept_for_ever(base: Any) -> Any:
    class WeightVersions(base):  # type: ignore[misc]
        _older: Any
        _current: Any

        def update(self, rule: UpdateRule, kept: Collection[int] = ()) -> None:
            old = new = self._current
            if self._updates in {self._number(which, self._updates + 1) for which in kept}:
                self._older[self._updates] = old
                new = self._free.pop() if self._free else np.empty_like(old)
            rule(old, new)
            self._current = new
            self._updates += 1

    return WeightVersions


def _new_array(base: Any) -> Any:
    class WeightVersions(base):  # type: ignore[misc]
        _older: Any
        _current: Any

        def update(self, rule: UpdateRule, kept: Collection[int] = ()) -> None:
            self._older[self._updates] = self._current
            new = np.empty_like(self._current)
            rule(self._current, new)
            self._current = new
            self._updates += 1

    return WeightVersions


STORE = (
    Mistake(
        "in-place-before-backward",
        _store(_aliased),
        "Reads of older versions return the elements of the current one. If they are stored: is each of them an "
        "array of its own, or the one that the update wrote to?",
    ),
    Mistake(
        "ring-of-buffers",
        _store(_in_turn(1 << 10)),
        "The buffers are used in turn, so a version that is kept for longer than the others was overwritten. Which "
        "buffer may an update write to if `kept` has gaps?",
    ),
    Mistake(
        "freed-too-early",
        _store(_in_turn(2)),
        "Only the version before the current one survives; older ones were overwritten, although `kept` names them. "
        "When may a buffer be used again?",
    ),
    Mistake(
        "ages-of-before",
        _store(_ages_before),
        "The ages in `kept` were taken as those before the update. What is the age of the current weights once the "
        "update is done?",
        {"version_names": ["age"]},
    ),
    Mistake(
        "updates-stale-weights",
        _store(_from_stale_weights),
        "An update started from an old version, so the updates since are lost. A gradient of old weights is applied to "
        "which weights?",
    ),
    Mistake(
        "copied",
        _store(_copied),
        "The values are right, but the weights are copied before an update. From where, and to where, could `rule` "
        "compute instead?",
    ),
    Mistake(
        "read-copied",
        _store(_read_copied),
        "The values are right, but `read` returns new arrays. Who would change the array that it returns?",
    ),
    Mistake(
        "kept-for-ever",
        _store(_kept_for_ever),
        "The values are right, but versions are stored that nobody reads again, so that there are more and more "
        "buffers. What may happen to a version that is not in `kept`?",
    ),
    Mistake(
        "new-array-each-update",
        _store(_new_array),
        "The values are right, but every update allocates an array. Where are the buffers that the constructor "
        "allocated?",
    ),
)


# -- stage ------------------------------------------------------------------------------------------------------------

StageType = type[Stage]


def _stage(make: Callable[[StageType], StageType]) -> Callable[[Variant], StageType]:
    """A subclass of the solution of the variant."""
    return lambda variant: make(stage_solution(variant))


def _stores(stored: Callable[[Any, Array, Array], tuple[Any, ...]]) -> Callable[[Any], Any]:
    """The solution that stores other things for the backward pass: inputs, outputs and weights."""

    def make(base: Any) -> Any:
        class Stage(base):  # type: ignore[misc]
            def _stored_for(self, x: Array, y: Array) -> tuple[Any, ...]:
                return (*stored(self, x, y), self._updates)

        return Stage

    return make


def _without_weights(stage: Any, x: Array, y: Array) -> tuple[Any, ...]:
    return (x, None, None) if stage._method == "fr" else (x, y, None)


def _with_activations(stage: Any, x: Array, y: Array) -> tuple[Any, ...]:
    return x, y, stage.weights if stage._method == "ddg" else None


def _with_weights(stage: Any, x: Array, y: Array) -> tuple[Any, ...]:
    return (x, None if stage._method == "fr" else y, None if stage._method == "vanilla" else stage.weights)


def _copied_weights(stage: Any, x: Array, y: Array) -> tuple[Any, ...]:
    if stage._method == "fr":
        return x, None, None
    return x, y, stage.weights.copy() if stage._method == "ddg" else None


def _everything_with_weights(stage: Any, x: Array, y: Array) -> tuple[Any, ...]:
    return x, y, stage.weights


def _callers_array(base: Any) -> Any:
    class Stage(base):  # type: ignore[misc]
        def forward(self, minibatch: int, x: Array) -> Array:
            y = self._outputs(self.weights, x)
            self._stored[minibatch] = self._stored_for(x, y)
            return y  # type: ignore[no-any-return]

    return Stage


def _one_slot(base: Any) -> Any:
    class Stage(base):  # type: ignore[misc]
        def forward(self, minibatch: int, x: Array) -> Array:
            y = super().forward(minibatch, x)
            self._last = self._stored.pop(minibatch)
            return y  # type: ignore[no-any-return]

        def backward(self, minibatch: int, dy: Array) -> Array:
            x, y, *others = self._last
            samples = dy.shape[1]  # of another minibatch
            x = np.resize(x.T, (samples, len(x))).T
            y = None if y is None else np.resize(y.T, (samples, len(y))).T
            self._stored[minibatch] = (x, y, *others)
            return super().backward(minibatch, dy)  # type: ignore[no-any-return]

    return Stage


def _updates_stashed(base: Any) -> Any:
    class Stage(base):  # type: ignore[misc]
        weights: Any

        def backward(self, minibatch: int, dy: Array) -> Array:
            used, current = self._stored[minibatch][2], self.weights
            dx = super().backward(minibatch, dy)
            self.weights = self.weights + (0 if used is None else used - current)
            return dx  # type: ignore[no-any-return]

    return Stage


def _dx_after_update(base: Any) -> Any:
    class Stage(base):  # type: ignore[misc]
        def backward(self, minibatch: int, dy: Array) -> Array:
            x, y, weights, _ = self._stored[minibatch]
            y = self._outputs(self.weights if weights is None else weights, x) if y is None else y
            super().backward(minibatch, dy)
            dz = dy * (1 - y * y) if self._tanh else dy
            return (self.weights if weights is None else weights).T @ dz  # type: ignore[no-any-return]

    return Stage


def _kept_minibatches(base: Any) -> Any:
    class Stage(base):  # type: ignore[misc]
        def backward(self, minibatch: int, dy: Array) -> Array:
            stored = self._stored[minibatch]
            dx = super().backward(minibatch, dy)
            self._stored[minibatch] = stored
            return dx  # type: ignore[no-any-return]

    return Stage


def _counts_own_update(base: Any) -> Any:
    class Stage(base):  # type: ignore[misc]
        def backward(self, minibatch: int, dy: Array) -> Array:
            *stored, updates = self._stored[minibatch]
            self._stored[minibatch] = (*stored, updates - 1)
            return super().backward(minibatch, dy)  # type: ignore[no-any-return]

    return Stage


STAGE = (
    Mistake(
        "in-place-before-backward",
        _stage(_stores(_without_weights)),
        "DDG's backward pass uses the current weights here, with the activations of older ones. If the weights of the "
        "forward pass are stored: is that another array than the one that the updates write to?",
    ),
    Mistake(
        "fr-old-activations",
        _stage(_stores(_with_activations)),
        "FR's backward pass uses the activations of the forward pass here. What does FR store, and what does it "
        "compute before a backward pass?",
    ),
    Mistake(
        "fr-old-weights",
        _stage(_stores(_with_weights)),
        "FR computes its activations again with the weights of the forward pass here. What would be new in them?",
    ),
    Mistake(
        "vanilla-stashes",
        _stage(_stores(_everything_with_weights)),
        "All methods use the weights and the activations of the forward pass in the backward pass. Which of them do?",
    ),
    Mistake(
        "callers-array",
        _stage(_callers_array),
        "The stored inputs have changed before the backward pass. To whom does the array `x` belong?",
    ),
    Mistake(
        "one-slot",
        _stage(_one_slot),
        "The backward pass uses the inputs and activations of the last forward pass, which was that of another "
        "minibatch. How many minibatches are in flight on a stage?",
    ),
    Mistake(
        "updates-stored-weights",
        _stage(_updates_stashed),
        "With DDG, the update starts from the stored weights, so the updates since are lost. A gradient of old "
        "weights is applied to which weights?",
    ),
    Mistake(
        "dx-after-update",
        _stage(_dx_after_update),
        "Where a method uses the current weights, dx was computed with the weights after the update. In which order "
        "are dx and the update?",
    ),
    Mistake(
        "counts-its-own-update",
        _stage(_counts_own_update),
        "The staleness is too large by one. Which updates lie between the forward and the backward pass of a "
        "minibatch?",
        {"stale_rate": ["by staleness"]},
    ),
    Mistake(
        "kept-for-ever",
        _stage(_kept_minibatches),
        "The values are right, but the stage still stores what belongs to minibatches that are complete. When is it "
        "used for the last time?",
    ),
    Mistake(
        "copied-weights",
        _stage(_stores(_copied_weights)),
        "The values are right, but there is a copy of the weights for every minibatch in flight, besides the current "
        "ones. Do two of these arrays have the same elements?",
    ),
)
