"""Schedules of a user's own from JSON files: what is written is read again, texts are instructions, wrong files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridnn import schedule
from hybridnn.drawing.timelines import KINDS, read_schedule
from hybridnn.errors import DataError, HybridnnError, SettingError
from hybridnn.pipeline.checks.lint import lint
from hybridnn.pipeline.schedules.instructions import COMPUTATIONS
from hybridnn.pipeline.schedules.methods import METHODS, make_schedule
from reference.command_line import Run, error_line

TWO_STAGES: dict[str, Any] = {
    "method": "mine",
    "stages": [
        ["forward 0.0", "forward 0.1", "backward 0.0", "backward 0.1", "reduce gradients 0", "update 0"],
        ["forward 0.0", "backward 0.0", "forward 0.1", "backward 0.1", "reduce gradients 0", "update 0"],
    ],
}


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("method", list(METHODS))
def test_what_the_command_writes_is_read_as_the_same_schedule(run_hybridnn: Run, method: str) -> None:
    assert run_hybridnn("schedule", method, "--stages", "3", "--format", "json", "--out", "a.json")[0] == 0
    made = schedule(method, stages=3).timeline.schedule
    found = read_schedule("a.json")
    assert found.orders == made.orders
    for name in ("stages", "chunks", "minibatches", "microbatches", "policy", "method"):
        assert getattr(found, name) == getattr(made, name)
    assert run_hybridnn("schedule", "a.json", "--format", "json", "--out", "b.json")[0] == 0
    first, second = (json.loads(Path(name).read_text()) for name in ("a.json", "b.json"))
    assert first == second


@pytest.mark.parametrize("method", ["zb-h1", "interleaved", "spectrain"])
def test_computations_as_texts_get_their_messages(tmp_path: Path, method: str) -> None:
    microbatches = 6 if METHODS[method].cuts_minibatches else 1
    chunks = 2 if method == "interleaved" else 1
    made = make_schedule(method, stages=3, minibatches=4, microbatches=microbatches, chunks=chunks)
    stages = [[str(item) for item in order if isinstance(item, COMPUTATIONS)] for order in made.orders]
    content = {"stages": stages, "weight_policy": made.policy.name}
    found = read_schedule(write(tmp_path / "own.json", content))
    assert found.orders == made.orders
    assert found.method == "own"
    lint(found)


def test_a_schedule_of_ones_own_is_drawn_and_timed(run_hybridnn: Run) -> None:
    write(Path("mine.json"), TWO_STAGES)
    code, text, err = run_hybridnn("schedule", "mine.json")
    assert (code, err) == (0, "")
    assert "mine: 2 stages, 1 minibatch, 2 microbatches each" in text
    # Stage 0 computes 2 x (1 + 2), and waits for 1 while stage 1 computes backward 0.0, and 2 for backward 0.1.
    assert "makespan 9, bubble fraction 33.33%" in text
    assert "lint: ok" in text
    assert repr(schedule("mine.json")) == "<mine: 2 stages, 1 minibatch of 2 microbatches, makespan 9, bubble 33.3%>"
    assert run_hybridnn("schedule", "mine.json", "--out", "mine.svg")[0] == 0
    assert Path("mine.svg").read_text().startswith("<svg")


FORWARD = ["forward 0"]
PASSES = ["forward 0", "backward 0", "reduce gradients 0", "update 0"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "not a schedule: it must be an object with"),
        ({"stages": [3]}, "stage 0: not a list of at most 1,000,000 instructions"),
        ({"stages": [[]]}, "there is no instruction"),
        ({"stages": [["forwrd 0"]]}, "stage 0, instruction 0: no instruction 'forwrd'; did you mean forward?"),
        ({"stages": [["forward"], ["0"]]}, "stage 1, instruction 0: '0' is not an instruction such as 'forward 0'"),
        ({"stages": [[None]]}, "stage 0, instruction 0: neither a text nor an object"),
        ({"stages": [[{"instruction": "forward", "minibatch": -1}]]}, "minibatch = -1: must be a whole number from 0"),
        ({"stages": [[{"instruction": "forward", "chunk": True}]]}, "chunk = True: must be a whole number"),
        ({"stages": [FORWARD], "weight_policy": "none"}, "weight_policy = 'none': must be one of exact, initial"),
        ({"stages": [FORWARD], "minibatches": 0}, "minibatches = 0: must be a whole number from 1"),
        ({"stages": [PASSES, FORWARD]}, "stage 1: backward 0 is missing"),
    ],
)
def test_file_that_is_no_schedule(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError) as error:
        read_schedule(write(tmp_path / "mine.json", content))
    assert "mine.json: " in str(error.value)
    assert message in str(error.value)


def test_a_schedule_that_does_not_work_is_refused_by_the_linter(run_hybridnn: Run) -> None:
    for stages, message in (
        ([PASSES, ["backward 0", "forward 0", *PASSES[2:]]], "stage 1, instruction 0 (backward 0): comes before fo"),
        ([PASSES, PASSES[:-1]], "stage 1, end of the list: update 0 is missing"),
        ([[*PASSES, "forward 0"], PASSES], "stage 0, "),
    ):
        write(Path("mine.json"), {"stages": stages})
        assert message in error_line(run_hybridnn("schedule", "mine.json"))
    assert "none.json: cannot be read" in error_line(run_hybridnn("schedule", "none.json"))
    line = error_line(run_hybridnn("schedule", "mine.json", "--chunks", "2"))
    assert line == "Error: chunks = 2: mine.json has the instructions of every stage"
    with pytest.raises(SettingError, match="microbatches = 3"):
        schedule("mine.json", microbatches=3)


INSTRUCTIONS = st.builds(
    lambda name, *numbers: {
        "instruction": name,
        **dict(zip(("minibatch", "microbatch", "chunk"), numbers, strict=True)),
    },
    st.sampled_from(sorted(KINDS)),
    *[st.integers(0, 2)] * 3,
)
TEXTS = st.sampled_from(
    [*PASSES, "forward 0.1", "backward 0.1", "input gradient 0", "weight gradient 0", "recompute 0"]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(TEXTS | INSTRUCTIONS, max_size=8) | st.permutations(PASSES), min_size=1, max_size=3),
    st.sampled_from(["exact", "stashed", "current", "predicted", "vertical sync", "double-buffered"]),
)
def test_any_lists_are_a_schedule_or_one_line(tmp_path: Path, stages: list[Any], policy: str) -> None:
    path = write(tmp_path / "mine.json", {"stages": stages, "weight_policy": policy})
    refusal = ""
    try:
        lint(schedule(str(path)).timeline.schedule)
    except HybridnnError as error:
        refusal = str(error)
    assert not refusal or refusal.isprintable()
