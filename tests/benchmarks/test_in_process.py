"""The benchmark of ranks in one process, with so few calls that its times mean nothing."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from benchmarks import in_process, parts


def test_a_short_run_gives_every_figure() -> None:
    trainings = list(in_process.trainings(1, epochs=1))
    assert [row["way"] for row in trainings] == ["training", "program"]
    for row in trainings:
        assert row["ratio"] == pytest.approx(row["seconds_of_one"] / row["seconds_of_four"])
    engine = list(in_process.engine(1, calls=3))
    assert [row["quantity"] for row in engine] == [
        "start and end of 8 ranks",
        *(f"message: {name}" for name in in_process.PATTERNS),
        *(f"clock of a ring all-reduce of {ranks} ranks" for ranks in (2, 4, 7)),
    ]
    assert all(row["measured"] <= row["asked"] for row in engine if row["unit"] == "relative error")
    out = StringIO()
    for sheet in parts.PARTS["in-process"].sheets:
        sheet.show([*trainings, *engine], Console(file=out, width=200))
    assert sum(line.startswith("│") for line in out.getvalue().splitlines()) == len(trainings) + len(engine)


def test_both_trainings_are_the_same() -> None:
    assert in_process.train_four(2) == pytest.approx(in_process.train_one(2), rel=1e-4)  # float32


@pytest.mark.parametrize("program", in_process.PATTERNS.values())
def test_every_rank_sends_one_message_for_each_call(program: in_process.Program) -> None:
    messages = in_process.run_ranks(4, program, 6).messages
    sent = [message.rank for message in messages if message.name in ("send", "allreduce")]
    assert sorted(sent) == [rank for rank in range(4) for _ in range(6)]
