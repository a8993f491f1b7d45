"""Known wrong solutions of A6: versions, distances and extrapolation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn_course.assignment import Variant
from hybridnn_course.exercises.a6_stale.calls import first_number
from hybridnn_course_staff.assignment import Mistake
from hybridnn_course_staff.assignments.a6_stale.solution import (
    Prediction,
    Reads,
    distance_factor,
    distance_solution,
    first_of_group,
    later_updates,
    rules_solution,
)

Array = NDArray[np.float64]
Rules = Callable[[str, int, int, int], Reads]
Change = Callable[[Variant, str, int, int, int, Reads], Reads]
"""From (variant, method, stage from 0, stages, minibatch, right reads) to wrong ones."""


# -- rules ------------------------------------------------------------------------------------------------------------


def _changed(change: Change) -> Callable[[Variant], Rules]:
    """The solution with some other reads."""

    def wrong(variant: Variant) -> Rules:
        right = rules_solution(variant)

        def weights_read(method: str, stage: int, stages: int, minibatch: int) -> Reads:
            reads = right(method, stage, stages, minibatch)
            return change(variant, method, stage - first_number(variant), stages, minibatch, reads)

        return weights_read

    return wrong


def _stale_by(staleness: int, minibatch: int, method: str) -> Reads:
    """Reads of a method with another staleness of the forward pass."""
    forward = max(0, minibatch - staleness)
    return {"vanilla": (forward, forward, minibatch), "fr": (forward, minibatch, minibatch)}.get(
        method, (forward, forward, forward)
    )


def _not_clamped(variant: Variant, method: str, stage: int, stages: int, t: int, reads: Reads) -> Reads:
    # Far beyond the beginning the clamp has no effect.
    late = _reads_of(variant, method, stage, stages, t + 2 * stages)
    forward, activations, backward = (version - 2 * stages for version in late)
    return forward, activations, backward


def _reads_of(variant: Variant, method: str, stage: int, stages: int, minibatch: int) -> Reads:
    return rules_solution(variant)(method, stage + first_number(variant), stages, minibatch)


def _current_in_backward(variant: Variant, method: str, stage: int, stages: int, t: int, reads: Reads) -> Reads:
    return reads[0], reads[1], t


def _ddg_current(variant: Variant, method: str, stage: int, stages: int, t: int, reads: Reads) -> Reads:
    return (reads[0], reads[1], t) if method == "ddg" else reads


def _fr_old_activations(variant: Variant, method: str, stage: int, stages: int, t: int, reads: Reads) -> Reads:
    return (reads[0], reads[0], t) if method == "fr" else reads


def _fr_stashes(variant: Variant, method: str, stage: int, stages: int, t: int, reads: Reads) -> Reads:
    return (reads[0], reads[0], reads[0]) if method == "fr" else reads


def _vanilla_stashes(variant: Variant, method: str, stage: int, stages: int, t: int, reads: Reads) -> Reads:
    return (reads[0], reads[0], reads[0]) if method == "vanilla" else reads


def _nothing_stale(variant: Variant, method: str, stage: int, stages: int, t: int, reads: Reads) -> Reads:
    return t, t, t


def _reversed_stages(variant: Variant, method: str, stage: int, stages: int, t: int, reads: Reads) -> Reads:
    return reads if method in ("vertical sync", "extra") else _stale_by(stage, t, method)


def _synchronized_always(variant: Variant, method: str, stage: int, stages: int, t: int, reads: Reads) -> Reads:
    return reads if method == "extra" else _stale_by(stages - 1, t, method)


def _no_vertical_sync(variant: Variant, method: str, stage: int, stages: int, t: int, reads: Reads) -> Reads:
    return _stale_by(stages - 1 - stage, t, method) if method == "vertical sync" else reads


def _sync_with_last_stage(variant: Variant, method: str, stage: int, stages: int, t: int, reads: Reads) -> Reads:
    return (t, t, t) if method == "vertical sync" else reads


def _last_stage_is_newest(variant: Variant, method: str, stage: int, stages: int, t: int, reads: Reads) -> Reads:
    return _stale_by(min(1, stages - 1 - stage), t, method) if method == "extra" else reads


def _newest_of_group(variant: Variant, method: str, stage: int, stages: int, t: int, reads: Reads) -> Reads:
    if method != "extra":
        return reads
    first = first_of_group(variant, stage, stages)
    same = [other for other in range(stages) if first_of_group(variant, other, stages) == first]
    return _stale_by(stages - 1 - same[-1], t, method)


RULES = (
    Mistake(
        "not-clamped-at-0",
        _changed(_not_clamped),
        "The first minibatches read versions with negative numbers. How many updates has a stage made before the first "
        "minibatch comes back to it?",
    ),
    Mistake(
        "current-in-backward",
        _changed(_current_in_backward),
        "Every method reads the current weights in its backward pass. Which methods store older versions, and for "
        "which pass do they store them?",
    ),
    Mistake(
        "ddg-current-weights",
        _changed(_ddg_current),
        "DDG's backward pass reads the current weights here, with the activations of older ones. (So do some published "
        "programs.) Which weights does the paper store together with the activations, and why?",
    ),
    Mistake(
        "fr-old-activations",
        _changed(_fr_old_activations),
        "FR's backward pass uses the activations of the forward pass here. What does FR store, and what does it "
        "compute before a backward pass?",
    ),
    Mistake(
        "fr-stashes",
        _changed(_fr_stashes),
        "FR reads old weights in its backward pass here, as DDG does. Which weights are in memory if only inputs are "
        "stored?",
    ),
    Mistake(
        "vanilla-stashes",
        _changed(_vanilla_stashes),
        "The vanilla pipeline reads old weights in its backward pass here. How many versions does it keep?",
    ),
    Mistake(
        "nothing-stale",
        _changed(_nothing_stale),
        "All passes read the newest weights that could exist. How many updates are still to come on a stage when the "
        "forward pass of minibatch t begins there?",
    ),
    Mistake(
        "reversed-stages",
        _changed(_reversed_stages),
        "The staleness grows towards the last stage. On which stage does the backward pass directly follow the forward "
        "pass?",
    ),
    Mistake(
        "synchronized-always",
        _changed(_synchronized_always),
        "Every stage is as stale as the first one. Which of the methods has vertical synchronization?",
    ),
    Mistake(
        "no-vertical-sync",
        _changed(_no_vertical_sync),
        "With vertical synchronization, the stages still read different versions for one minibatch. Which stage reads "
        "first, and what do the others do?",
    ),
    Mistake(
        "sync-with-last-stage",
        _changed(_sync_with_last_stage),
        "With vertical synchronization, all stages read a version that the first stage does not have yet. Which "
        "version exists on every stage when minibatch t enters the pipeline?",
    ),
    Mistake(
        "last-stage-is-newest",
        _changed(_last_stage_is_newest),
        "The last stage reads its newest weights in method `extra`. Does the text name an exception?",
        {"extra_method": ["two versions"]},
    ),
    Mistake(
        "newest-of-group",
        _changed(_newest_of_group),
        "In method `extra`, the stages of a group use the version of its last stage. Can its first stage have that "
        "version already?",
        {"extra_method": ["pairs", "halves"]},
    ),
)


# -- distance ---------------------------------------------------------------------------------------------------------

Aim = Callable[[Variant, int, int, int, int], tuple[Any, ...]]
"""From (variant, stage from 0, stages, minibatch, minibatches) to version and distance of both passes."""


def _reads(aim: Aim) -> Callable[[Variant], Callable[[int, int, int, int], Prediction]]:
    def wrong(variant: Variant) -> Callable[[int, int, int, int], Prediction]:
        def predicted_reads(stage: int, stages: int, minibatch: int, minibatches: int) -> Prediction:
            found = aim(variant, stage - first_number(variant), stages, minibatch, minibatches)
            return (found[0], found[1]), (found[2], found[3])

        return predicted_reads

    return wrong


def _right(variant: Variant, k: int, stages: int, t: int, minibatches: int) -> tuple[int, int, int, int]:
    right = distance_solution(variant)(k + first_number(variant), stages, t, minibatches)
    return *right[0], *right[1]


def _not_floored(variant: Variant, k: int, stages: int, t: int, minibatches: int) -> tuple[float, ...]:
    length, newest = int(variant["backward_length"]), max(0, t - (stages - 1 - k))
    aim = min(t + length * k / (1 + length), minibatches - 1)
    return newest, aim - newest, t, aim - t


def _rounded_up(variant: Variant, k: int, stages: int, t: int, minibatches: int) -> tuple[int, ...]:
    length, newest = int(variant["backward_length"]), max(0, t - (stages - 1 - k))
    aim = min(t - (-length * k // (1 + length)), minibatches - 1)
    return newest, aim - newest, t, aim - t


def _always_full(variant: Variant, k: int, stages: int, t: int, minibatches: int) -> tuple[int, ...]:
    newest, later = max(0, t - (stages - 1 - k)), later_updates(variant, k)
    ahead = min(stages - 1 - k + later, minibatches - 1 - newest)
    return newest, ahead, t, min(later, minibatches - 1 - t)


def _past_the_end(variant: Variant, k: int, stages: int, t: int, minibatches: int) -> tuple[int, ...]:
    return _right(variant, k, stages, t, minibatches + stages)


def _counts_itself(variant: Variant, k: int, stages: int, t: int, minibatches: int) -> tuple[int, ...]:
    newest = max(0, t - (stages - 1 - k))
    aim = min(t + later_updates(variant, k) + 1, minibatches)
    return newest, aim - newest, t, aim - t


def _own_update(variant: Variant, k: int, stages: int, t: int, minibatches: int) -> tuple[int, ...]:
    newest = max(0, t - (stages - 1 - k))
    return newest, t - newest, t, 0


def _same_distance(variant: Variant, k: int, stages: int, t: int, minibatches: int) -> tuple[int, ...]:
    right = _right(variant, k, stages, t, minibatches)
    return *right[:3], right[1]


def _only_later(variant: Variant, k: int, stages: int, t: int, minibatches: int) -> tuple[int, ...]:
    right = _right(variant, k, stages, t, minibatches)
    return right[0], right[3], *right[2:]


def _stages_behind(variant: Variant, k: int, stages: int, t: int, minibatches: int) -> tuple[int, ...]:
    newest = max(0, t - (stages - 1 - k))
    aim = min(t + later_updates(variant, stages - 1 - k), minibatches - 1)
    return newest, aim - newest, t, aim - t


def _negative_version(variant: Variant, k: int, stages: int, t: int, minibatches: int) -> tuple[int, ...]:
    right, newest = _right(variant, k, stages, t, minibatches), t - (stages - 1 - k)
    return newest, right[0] + right[1] - newest, *right[2:]


def _version_of_first_stage(variant: Variant, k: int, stages: int, t: int, minibatches: int) -> tuple[int, ...]:
    right, oldest = _right(variant, k, stages, t, minibatches), max(0, t - (stages - 1))
    return oldest, right[0] + right[1] - oldest, *right[2:]


def _backward_from_forward(variant: Variant, k: int, stages: int, t: int, minibatches: int) -> tuple[int, ...]:
    right = _right(variant, k, stages, t, minibatches)
    return *right[:2], *right[:2]


DISTANCE = (
    Mistake(
        "half-not-floored",
        _reads(_not_floored),
        "Some distances are not whole numbers. What does a distance count, and can there be half of one?",
    ),
    Mistake(
        "half-rounded-up",
        _reads(_rounded_up),
        "A distance was rounded up. Does the last update that was counted end before the round trip ends?",
    ),
    Mistake(
        "always-full",
        _reads(_always_full),
        "The distances of the first minibatches are those of a full pipeline. How many updates lie between version 0 "
        "and the version that minibatch 0 aims at?",
    ),
    Mistake(
        "past-the-end",
        _reads(_past_the_end),
        "The last minibatches predict updates that never come. Which minibatch makes the last update?",
    ),
    Mistake(
        "counts-its-own-update",
        _reads(_counts_itself),
        "All distances are too large by one. Does a minibatch aim at weights that contain its own update?",
    ),
    Mistake(
        "aims-at-own-update",
        _reads(_own_update),
        "Both passes aim at the moment of the stage's own backward pass. Does the round trip of the minibatch end "
        "there?",
    ),
    Mistake(
        "same-distance-in-both",
        _reads(_same_distance),
        "Both passes have the distance of the forward pass. Which updates has the stage made between them?",
    ),
    Mistake(
        "only-later-updates",
        _reads(_only_later),
        "Both passes have the distance of the backward pass. Which updates of the stage are still missing when the "
        "forward pass begins?",
    ),
    Mistake(
        "stages-behind",
        _reads(_stages_behind),
        "The number of later updates was taken from the number of stages that follow. Which stages does a minibatch "
        "still have to pass after its backward pass on stage k?",
    ),
    Mistake(
        "negative-version",
        _reads(_negative_version),
        "The first minibatches predict from versions with negative numbers. Which version is the first?",
    ),
    Mistake(
        "version-of-first-stage",
        _reads(_version_of_first_stage),
        "Every stage predicts from the version that the first stage has. Which is the newest version on this stage?",
    ),
    Mistake(
        "backward-predicts-from-forward",
        _reads(_backward_from_forward),
        "The backward pass predicts from the version of the forward pass. Is it still in memory, with one version per "
        "stage?",
    ),
)


# -- predict ----------------------------------------------------------------------------------------------------------


def _signs(variant: Variant) -> Callable[..., None]:
    def predict(self: Any, weights: Array, state: Any, lr: float, steps: int, out: Array) -> None:
        np.multiply(state.slots["velocity"], distance_factor(variant, self.momentum, steps) * lr, out=out)
        np.add(weights, out, out=out)

    return predict


def _factor(factor: Callable[[Variant, Any, float, int], float]) -> Callable[[Variant], Callable[..., None]]:
    """The solution with another factor of the velocity, from (variant, optimizer, lr, steps)."""

    def wrong(variant: Variant) -> Callable[..., None]:
        def predict(self: Any, weights: Array, state: Any, lr: float, steps: int, out: Array) -> None:
            np.multiply(state.slots["velocity"], factor(variant, self, lr, steps), out=out)
            np.subtract(weights, out, out=out)

        return predict

    return wrong


def _out_rebound(variant: Variant) -> Callable[..., Any]:
    def predict(self: Any, weights: Array, state: Any, lr: float, steps: int, out: Array) -> Array:
        out = weights - distance_factor(variant, self.momentum, steps) * lr * state.slots["velocity"]
        return out

    return predict


def _weights_changed(variant: Variant) -> Callable[..., None]:
    def predict(self: Any, weights: Array, state: Any, lr: float, steps: int, out: Array) -> None:
        np.multiply(state.slots["velocity"], distance_factor(variant, self.momentum, steps) * lr, out=out)
        weights -= out
        out[:] = weights

    return predict


def _velocity_changed(variant: Variant) -> Callable[..., None]:
    def predict(self: Any, weights: Array, state: Any, lr: float, steps: int, out: Array) -> None:
        velocity = state.slots["velocity"]
        velocity *= distance_factor(variant, self.momentum, steps) * lr
        np.subtract(weights, velocity, out=out)

    return predict


def _temporaries(variant: Variant) -> Callable[..., None]:
    def predict(self: Any, weights: Array, state: Any, lr: float, steps: int, out: Array) -> None:
        out[:] = weights - distance_factor(variant, self.momentum, steps) * lr * state.slots["velocity"]

    return predict


def _element_by_element(variant: Variant) -> Callable[..., None]:
    def predict(self: Any, weights: Array, state: Any, lr: float, steps: int, out: Array) -> None:
        distance = distance_factor(variant, self.momentum, steps) * lr
        for place, velocity in enumerate(state.slots["velocity"]):
            out[place] = weights[place] - distance * velocity

    return predict


PREDICT = (
    Mistake(
        "predicts-backwards",
        _signs,
        "The weights move against the direction of the updates. With which sign does an update apply the velocity?",
    ),
    Mistake(
        "rate-left-out",
        _factor(lambda variant, self, lr, steps: distance_factor(variant, self.momentum, steps)),
        "The learning rate is missing. By how much does one update move the weights?",
    ),
    Mistake(
        "base-rate",
        _factor(lambda variant, self, lr, steps: distance_factor(variant, self.momentum, steps) * self.lr),
        "The learning rate is that of the optimizer's settings. What is the argument `lr` for?",
    ),
    Mistake(
        "one-step",
        _factor(lambda variant, self, lr, steps: distance_factor(variant, self.momentum, 1) * lr),
        "The prediction is one update long, whatever `steps` is. What does the argument count?",
    ),
    Mistake(
        "momentum-once-more",
        _factor(lambda variant, self, lr, steps: self.momentum * distance_factor(variant, self.momentum, steps) * lr),
        "The velocity was multiplied by the momentum once more. By which velocity does the first predicted update "
        "move?",
    ),
    Mistake(
        "first-step-not-decayed",
        _factor(lambda variant, self, lr, steps: sum(self.momentum**step for step in range(steps)) * lr),
        "The first predicted update moves by the whole velocity. What does the next update do to the velocity before "
        "it applies it?",
        {"velocity": ["decays"]},
    ),
    Mistake(
        "decayed-at-once",
        _factor(lambda variant, self, lr, steps: steps * self.momentum**steps * lr),
        "All predicted updates move by the velocity of the last one. How large is the velocity of the first one?",
        {"velocity": ["decays"]},
    ),
    Mistake(
        "out-rebound",
        _out_rebound,
        "The array `out` still has its old elements after the call. What does an assignment to a name do in Python?",
    ),
    Mistake(
        "weights-changed",
        _weights_changed,
        "The prediction is right, but the weights have changed, too. Which weights does the next update start from?",
    ),
    Mistake(
        "velocity-changed",
        _velocity_changed,
        "The prediction is right, but the velocity has changed. Who reads it next?",
    ),
    Mistake(
        "temporary-arrays",
        _temporaries,
        "The prediction is right, but the call allocates whole arrays for parts of the formula. Where could a part "
        "of the result be written instead?",
    ),
    Mistake(
        "element-by-element",
        _element_by_element,
        "The prediction is right, but Python computes it element by element. How many additions does one call of "
        "NumPy's `add` do?",
    ),
)
