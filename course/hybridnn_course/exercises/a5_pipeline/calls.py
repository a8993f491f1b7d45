"""Calls of the student's functions of A5, and the trainings with them."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hybridnn.pipeline.schedules.instructions import Forward, InputGradient, Instruction, WeightGradient
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.pipeline.schedules.schedule import ScheduleSize
from hybridnn_course.answers import MEASURED, Values
from hybridnn_course.assignment import Function, Variant
from hybridnn_course.exercises.a5_pipeline.notation import LETTERS, checked_rules, to_order, to_text
from hybridnn_course.injection import injected
from hybridnn_course.whole_run import train_digits


def most_in_flight(variant: Variant, size: ScheduleSize, stage: int) -> int:
    """Microbatches that a stage may have in flight in 1F1B."""
    behind = size.stages - 1 - stage
    return (behind if variant["in_flight"] == "fewest" else 2 * behind) + 1


STAGES, MICROBATCHES = 4, 5
SIZES = (64, 64, 64, 64, 10)


def size_of(inputs: Values) -> ScheduleSize:
    """Size of the schedule of a case."""
    return ScheduleSize(inputs["stages"], inputs["minibatches"], inputs["microbatches"])


def texts_of(function: Function, size: ScheduleSize) -> list[str]:
    """The orders of all stages in the short form."""
    return [to_text(function(size, stage), size.minibatches) for stage in range(size.stages)]


def call_order(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What the function returns or writes, as values."""
    size = size_of(inputs)
    texts = texts_of(function, size)
    return {"rules": checked_rules(size, texts), **{f"stage {stage}": text for stage, text in enumerate(texts)}}


def _train_with(method: str, function: Function, variant: Variant, bound: Any = None) -> Values:
    """Train on digits with the student's order in place of the one of a method, on 4 stages."""

    def adapted(size: ScheduleSize, stage: int) -> list[Instruction]:
        return list(function(size, stage))

    changed = replace(METHODS[method], order=adapted)
    if bound is not None:
        changed = replace(changed, activations=bound)
    methods = MappingProxyType({**METHODS, method: changed})
    settings: dict[str, Any] = {"method": method, "microbatches": MICROBATCHES, "weight_grad": "per-microbatch"}
    with injected("hybridnn.pipeline.schedules.methods:METHODS", methods, "hybridnn.training.trainer"):
        return train_digits(STAGES, SIZES, grid={"pipeline": STAGES}, **settings)


def run_gpipe(function: Function, variant: Variant) -> Values:
    """The training with the function."""
    return _train_with("gpipe", function, variant)


def run_one_forward_one_backward(function: Function, variant: Variant) -> Values:
    """The training with the function."""

    def bound(size: ScheduleSize, stage: int) -> int:
        if variant["weight_gradients"] == "merged":
            return size.microbatches
        return min(most_in_flight(variant, size, stage), size.microbatches)

    return _train_with("1f1b", function, variant, bound)


def run_zero_bubble(function: Function, variant: Variant) -> Values:
    """The training with the function."""
    return _train_with("zb-h1", function, variant)


def call_zero_bubble(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What the function returns or writes, as values."""
    size = size_of(inputs)
    texts = texts_of(function, size)
    found: dict[str, Any] = {"rules": checked_rules(size, texts)}
    for kind in (Forward, InputGradient, WeightGradient):
        chosen = [[one for one in text.split() if one[0] == LETTERS[kind]] for text in texts]
        found[f"{kind.name}s"] = [" ".join(sorted(row) if kind is WeightGradient else row) for row in chosen]
    kinds = {LETTERS[kind] for kind in (Forward, InputGradient, WeightGradient)}
    found["others"] = [" ".join(one for one in text.split() if one[0] not in kinds) for text in texts]
    return {**found, MEASURED: {"orders": texts}}


def call_measure(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What is measured of orders; with ``"stuck"``, also whether orders that cannot run are refused."""
    starts, bubble, in_flight = function([to_order(text) for text in inputs["orders"]], *inputs["seconds"])
    rows = [[float(start) for start in row] for row in starts]
    found = {"starts": rows, "bubble": float(bubble), "in flight": [int(most) for most in in_flight]}
    if "stuck" in inputs:
        try:
            function([to_order(text) for text in inputs["stuck"]], *inputs["seconds"])
        except ValueError:
            return {**found, "refused": True}
        return {**found, "refused": False}
    return found


def run_measure(function: Function, variant: Variant) -> Values:
    """Bubble and memory of the library's orders, by the student's function; messages take no time."""
    found: dict[str, Any] = {}
    for method in ("gpipe", "1f1b"):
        for stages, microbatches in ((2, 4), (4, 8), (8, 8)):
            size = ScheduleSize(stages, 1, microbatches)
            orders = [METHODS[method].order(size, stage) for stage in range(stages)]
            _, bubble, in_flight = function(orders, 1.0, 2.0, 0.0)
            name = f"{method}, {stages} stages, {microbatches} microbatches"
            found |= {f"bubble of {name}": float(bubble), f"in flight of {name}": [int(most) for most in in_flight]}
    return found
