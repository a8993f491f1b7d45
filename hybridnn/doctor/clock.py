"""Clocks: that the one which times steps runs, is fine enough, and that the nodes agree on the date."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import pairwise

from hybridnn.doctor.facts import RankFacts
from hybridnn.doctor.finding import Finding
from hybridnn.utils.text import format_seconds, name_numbers

COARSE_SECONDS = 1e-5
READINGS = 2000
NAP_SECONDS = 0.02
OLDEST = 1.7e9
"""Seconds since 1970 before which no clock of a running machine can be right: November 2023."""
APART_SECONDS = 2.0
MEANINGLESS = "times measured here mean nothing: set the system's clock source right"


def check_clock(
    tick: Callable[[], float] = time.perf_counter,
    date: Callable[[], float] = time.time,
    nap: Callable[[float], None] = time.sleep,
) -> Finding:
    """Whether this process's clocks go forward, in fine steps, and at the pace of a nap."""
    readings = [tick() for _ in range(READINGS)]
    steps = [after - before for before, after in pairwise(readings)]
    forward = [step for step in steps if step > 0]
    start = tick()
    nap(NAP_SECONDS)
    napped = tick() - start
    finest = min(forward, default=napped)
    if min(steps) < 0:
        return Finding(
            "clock", "failure", "the clock that times steps runs backwards", "times of this machine mean nothing"
        )
    if napped < 0.5 * NAP_SECONDS:
        took = format_seconds(max(napped, 0.0))
        what = f"a nap of {format_seconds(NAP_SECONDS)} took {took} by the clock that times steps"
        return Finding("clock", "failure", what, MEANINGLESS)
    if finest > COARSE_SECONDS:
        return Finding(
            "clock", "warning", f"steps of {format_seconds(finest)}", "too coarse to time layers and messages"
        )
    if date() < OLDEST:
        return Finding("clock", "warning", "the date is wrong", "set it: files and downloads rely on it")
    return Finding("clock", "ok", "goes forward, in steps finer than 10 us")


def check_clocks_agree(facts: Mapping[int, RankFacts]) -> Finding | None:
    """Whether the dates of all ranks agree to a few seconds; None for a rank that is alone."""
    if len(facts) == 1:
        return None
    dates = {rank: fact.wall_clock for rank, fact in facts.items()}
    middle = sorted(dates.values())[len(dates) // 2]
    apart = [rank for rank, date in dates.items() if abs(date - middle) > APART_SECONDS]
    if apart:
        most = max(abs(dates[rank] - middle) for rank in apart)
        advice = "let nodes set their clocks by NTP: times in files of different ranks cannot be compared"
        return Finding(
            "dates",
            "warning",
            f"{name_numbers('rank', apart)} up to {format_seconds(most)} away from the others",
            advice,
        )
    return Finding("dates", "ok", f"the ranks agree to {APART_SECONDS:g} s")
