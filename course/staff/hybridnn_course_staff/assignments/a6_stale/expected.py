"""Trainings of A6 without the student's functions: serial replays of the rules of the reference."""

from __future__ import annotations

from hybridnn_course.answers import Values
from hybridnn_course.assignment import Variant
from hybridnn_course.exercises.a6_stale.replay import MINIBATCHES, MOMENTUM, RATE, STAGES, Replay, Rule, StageReads
from hybridnn_course.exercises.a6_stale.runs import (
    METHODS,
    STAGE_METHODS,
    STORE_METHODS,
    as_reads,
    of_methods,
    train_by,
)
from hybridnn_course_staff.assignments.a6_stale.solution import distance_factor, distance_solution, rules_solution

STANDARD = {"extra_method": "two versions", "backward_length": "1"}


def replay_rules(variant: Variant) -> Values:
    """The same without the student's function."""
    return of_methods({method: Replay(_rule(variant, method), MOMENTUM).train() for method in METHODS})


def _rule(variant: Variant, method: str) -> Rule:
    function = rules_solution(variant)
    return lambda stage, minibatch: StageReads(*function(method, stage, STAGES, minibatch))


def replay_store(variant: Variant) -> Values:
    """The same without the student's class."""
    return of_methods({method: Replay(_rule(STANDARD, method), MOMENTUM).train() for method in STORE_METHODS})


def replay_stage(variant: Variant) -> Values:
    """Train with the library's pipeline; a learning rate that falls with the staleness, with the serial replay."""
    if variant["stale_rate"] == "constant":
        return of_methods({method: train_by(method) for method in STAGE_METHODS})

    def rate(staleness: int) -> float:
        return RATE / (1 + staleness)

    return of_methods({name: Replay(_rule(STANDARD, name), stale_rate=rate).train() for name in STAGE_METHODS})


def replay_distance(variant: Variant) -> Values:
    """The same without the student's function."""
    return Replay(_prediction_rule(variant), MOMENTUM).train()


def replay_predict(variant: Variant) -> Values:
    """The same without the student's function."""
    rule = _prediction_rule(STANDARD)
    return Replay(rule, MOMENTUM, lambda ahead: distance_factor(variant, MOMENTUM, ahead)).train()


def _prediction_rule(variant: Variant) -> Rule:
    function = distance_solution(variant)
    return lambda stage, t: as_reads(function(stage, STAGES, t, MINIBATCHES), t)
