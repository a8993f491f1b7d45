"""The figures of the papers: Kang 2019, Figures 2 to 5, as grids derived from its text, and Chen et al. 2018, Figure 7.

A cell is one unit of time, in which a forward or a backward pass runs; minibatches count from 1, as in the papers.
"""

from __future__ import annotations

from typing import Any

import pytest

from hybridnn.pipeline.checks.simulated_schedule import Durations, Timeline, simulate
from hybridnn.pipeline.schedules.methods import make_schedule

LETTERS = {"forward": "F", "backward": "B", "recompute": "R"}


def timeline_of(method: str, stages: int, minibatches: int, **options: Any) -> Timeline:
    schedule = make_schedule(method, stages=stages, minibatches=minibatches, **options)
    return simulate(schedule, Durations(forward=1, backward=1, weight=0.5))


def grid(timeline: Timeline) -> list[str]:
    """One row per device, one cell per unit of time."""
    rows = []
    for stage in timeline.stages:
        cells = [" ."] * round(timeline.makespan)
        for timed in stage:
            if timed.instruction.name in LETTERS:
                assert timed.end - timed.start == 1
                assert cells[round(timed.start)] == " ."
                cells[round(timed.start)] = LETTERS[timed.instruction.name] + str(timed.instruction.minibatch + 1)
        rows.append(" ".join(cell.strip().ljust(2) for cell in cells).rstrip())
    return rows


FIGURE_2 = """
F1 .  .  .  .  .  .  B1 F2 .  .  .  .  .  .  B2
.  F1 .  .  .  .  B1 .  .  F2 .  .  .  .  B2 .
.  .  F1 .  .  B1 .  .  .  .  F2 .  .  B2 .  .
.  .  .  F1 B1 .  .  .  .  .  .  F2 B2 .  .  .
"""

# With barriers, five units per step: a forward pass through all devices, and all their backward passes at once.
FIGURE_3 = """
F1 .  .  .  .  F2 .  .  .  .  F3 .  .  .  .  F4 .  .  .  B1 F5 .  .  .  B2 B3 B4 B5
.  F1 .  .  .  .  F2 .  .  .  .  F3 .  .  B1 .  F4 .  .  B2 .  F5 .  .  B3 B4 B5 .
.  .  F1 .  .  .  .  F2 .  B1 .  .  F3 .  B2 .  .  F4 .  B3 .  .  F5 .  B4 B5 .  .
.  .  .  F1 B1 .  .  .  F2 B2 .  .  .  F3 B3 .  .  .  F4 B4 .  .  .  F5 B5 .  .  .
"""

# As Figure 3, with a recomputation before each backward pass of all devices but the last.
FIGURE_4 = """
F1 .  .  .  .  F2 .  .  .  .  .  F3 .  .  .  .  .  F4 .  .  .  R1 B1 R2 B2 R3 B3 R4 B4
.  F1 .  .  .  .  F2 .  .  .  .  .  F3 .  .  R1 B1 .  F4 .  .  R2 B2 R3 B3 R4 B4 .  .
.  .  F1 .  .  .  .  F2 .  R1 B1 .  .  F3 .  R2 B2 .  .  F4 .  R3 B3 R4 B4 .  .  .  .
.  .  .  F1 B1 .  .  .  F2 B2 .  .  .  .  F3 B3 .  .  .  .  F4 B4 .  .  .  .  .  .  .
"""

FIGURE_5 = """
F1 F2 F3 F4 .  .  .  B1 F5 B2 F6 B3 .  B4 .  B5 .  B6
.  F1 F2 F3 .  .  B1 F4 B2 F5 B3 F6 B4 .  B5 .  B6 .
.  .  F1 F2 .  B1 F3 B2 F4 B3 F5 B4 F6 B5 .  B6 .  .
.  .  .  F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 .  .  .
"""

FIGURES = [("sequential", 2, FIGURE_2), ("ddg", 5, FIGURE_3), ("fr", 4, FIGURE_4), ("pipedream", 6, FIGURE_5)]


@pytest.mark.parametrize(("method", "minibatches", "figure"), FIGURES, ids=[figure[0] for figure in FIGURES])
def test_figures_2_to_5(method: str, minibatches: int, figure: str) -> None:
    expected = [row.rstrip() for row in figure.strip().splitlines()]
    assert grid(timeline_of(method, 4, minibatches, barriers=method in ("ddg", "fr"))) == expected


def reads_of(timeline: Timeline, minibatch: int) -> list[dict[str, tuple[int, int]]]:
    """Per device, (version, updates predicted ahead) that each pass of a minibatch (from 1) reads."""
    return [
        {
            LETTERS[i.instruction.name]: tuple(i.read)
            for i in stage
            if i.read and i.instruction.minibatch == minibatch - 1
        }
        for stage in timeline.stages
    ]


def updates_before(timeline: Timeline, minibatch: int, letter: str) -> list[int]:
    """Per device, the updates that are done when a pass of a minibatch (from 1) runs."""
    counts = []
    for stage in timeline.stages:
        names = [(i.instruction.name, i.instruction.minibatch) for i in stage]
        here = next(n for n, (name, t) in enumerate(names) if LETTERS.get(name) == letter and t == minibatch - 1)
        counts.append(sum(name == "update" for name, _ in names[:here]))
    return counts


def of_version(*versions: int) -> list[tuple[int, int]]:
    return [(version, 0) for version in versions]


@pytest.mark.parametrize("method", ["ddg", "pipedream"])
def test_fifth_minibatch_with_stashed_weights(method: str) -> None:
    """Section 2.2.2: it uses the weights updated from minibatches 1, 2, 3 and 4 at devices 1 to 4, in both passes.

    And before its backward pass the weights of device 1 are updated from minibatch 4.
    """
    timeline = timeline_of(method, 4, 8)
    reads = reads_of(timeline, 5)
    assert [read["F"] for read in reads] == [read["B"] for read in reads] == of_version(1, 2, 3, 4)
    assert updates_before(timeline, 5, "F") == [1, 2, 3, 4]
    assert updates_before(timeline, 5, "B") == [4, 4, 4, 4]


def test_fifth_minibatch_with_features_replay() -> None:
    """Section 2.3.2: weights updated from minibatch 1 in the forward pass at device 1, 4 in all backward passes."""
    timeline = timeline_of("fr", 4, 8)
    reads = reads_of(timeline, 5)
    assert [read["F"] for read in reads] == of_version(1, 2, 3, 4)
    assert [read["R"] for read in reads[:3]] == of_version(4, 4, 4)
    assert [read["B"] for read in reads] == of_version(4, 4, 4, 4)
    first = [(i.instruction.name, i.instruction.minibatch + 1) for i in timeline.stages[0]]
    # Section 2.3: "after the forward pass of minibatch 8, we need to do the backward pass of minibatch 5".
    passes = [one for one in first if one[0] in LETTERS]
    assert passes[passes.index(("forward", 8)) + 1 :][:2] == [("recompute", 5), ("backward", 5)]


@pytest.mark.parametrize(
    ("method", "forward", "backward", "units"),
    [
        # 7c, without synchronization: each GPU keeps the version of its forward pass; the first one's is W_5 in both.
        ("pipedream", [(2, 0), (3, 0), (4, 0)], [(2, 0), (3, 0), (4, 0)], (5, 5)),
        # 7c: the earliest version, W_5 of the first GPU, in the entire round trip.
        ("pipedream-vsync", [(2, 0)] * 3, [(2, 0)] * 3, (5, 5)),
        # 7b: without mitigation, the round trip begins with W_5 and ends with W_9.
        ("vanilla", [(2, 0), (3, 0), (4, 0)], [(4, 0)] * 3, (5, 9)),
        # 7d: every task predicts W_9, with s of equations 5 and 6.
        ("spectrain", [(2, 2), (3, 1), (4, 1)], [(4, 0), (4, 0), (4, 1)], (9, 9)),
    ],
)
def test_figure_7_of_chen(
    method: str, forward: list[tuple[int, int]], backward: list[tuple[int, int]], units: tuple[int, int]
) -> None:
    """Three GPUs, batch 5, which enters in time unit 5; the paper numbers weights by time units, W_5 at first.

    With a forward or a backward task per unit, each GPU updates in every second unit. The first GPU has then done two
    updates, so its version n is W_(2n+1); GPU k (from 0) is floor(k/2) updates ahead of it when the round trip of a
    batch ends, so that its version n is W_(2(n - floor(k/2)) + 1).
    """
    reads = reads_of(timeline_of(method, 3, 9), 5)
    assert [read["F"] for read in reads] == forward
    assert [read["B"] for read in reads] == backward
    assert tuple(2 * sum(reads[0][letter]) + 1 for letter in "FB") == units
    if method == "spectrain":
        predicted = {2 * (sum(read[letter]) - k // 2) + 1 for k, read in enumerate(reads) for letter in "FB"}
        assert predicted == {9}


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5, 8])
def test_spectrain_predicts_the_end_of_the_round_trip(stages: int) -> None:
    """Counted on the clock of the figure: an update lands when its backward pass ends, one unit after it began.

    The version predicted at stage k is the number of its updates that have landed when minibatch t has made its round
    trip, without its own. With equations 5 and 6 where the pipeline is full.
    """
    for minibatches in (stages, 5 * stages):  # shorter than the pipeline is deep, and longer
        timeline = timeline_of("spectrain", stages, minibatches)
        passes = [
            {(timed.instruction.name, timed.instruction.minibatch): timed for timed in stage if timed.read is not None}
            for stage in timeline.stages
        ]
        for t in range(minibatches):
            end_of_trip = passes[0]["backward", t].end
            for k, stage in enumerate(passes):
                others = [stage["backward", i].end for i in range(minibatches) if i != t]
                aim = sum(end <= end_of_trip for end in others)
                for name in ("forward", "backward"):
                    landed = sum(end <= stage[name, t].start for end in others)
                    assert stage[name, t].read == (landed, aim - landed)
                if stages - 1 - k <= t < minibatches - k // 2:
                    assert stage["forward", t].read.ahead == k // 2 + stages - k - 1
                    assert stage["backward", t].read.ahead == k // 2
