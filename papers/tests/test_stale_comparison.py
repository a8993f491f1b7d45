"""The reference comparison in a small form: chosen rates, fresh seeds, an interruption, another method, two kernels."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

import pytest

from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.utils.files import read_toml
from hybridnn_papers import stale_comparison
from hybridnn_papers.stale_comparison import DESCRIPTION, advice, best_rates, main, rates_beyond, together

SMALL = """
jobs = 2
rates = 3
factor = 4.0
margin = 0.01
layouts = {seeds = [0], epochs = 1}
choice = {seeds = [9], epochs = 2, validation_fraction = 0.2}
result = {seeds = [0, 1, 2], budgets = [1, 3]}
[settings]
model = {hidden = [12, 12, 12]}
training = {batch_size = 100}
parallel = {partition = "uniform"}
[tasks.digits]
depths = [2, 3]
target = 0.5
data = {rows = 300, split_seed = 0}
[optimizers]
sgd = {name = "sgd", lr = 0.02, momentum = 0.9}
[pairs]
2bw = {method = "pipedream-2bw", optimizer = "sgd"}
"""


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_small_comparison_continues_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    (tmp_path / "mine.toml").write_text('pairs.mine = {method = "vanilla", optimizer = "sgd"}\n')
    monkeypatch.setattr(stale_comparison, "DESCRIPTION", tmp_path / "small.toml")
    folder, run = tmp_path / "found", subprocess.run

    def interrupted(command: list[str], **options: Any) -> Any:
        if "result" in command[5]:
            raise KeyboardInterrupt
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main([str(folder)])
    monkeypatch.setattr(subprocess, "run", run)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/cells/*/history.jsonl")}
    assert len(before) >= 6
    assert main([str(folder), "--add", str(tmp_path / "mine.toml")]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    records = rows_of(folder / "records.csv")
    seeds = {(row["pair"], row["chosen_for"]): row["seed"] for row in records}
    assert {pair for pair, _ in seeds} == {"1f1b-sgd", "2bw", "mine"}
    assert {row["seed"] for row in records} == {"0", "1", "2"}
    exact, cut = (next(row for row in records if row["pair"] == pair) for pair in ("1f1b-sgd", "2bw"))
    assert exact["microbatches"] == cut["microbatches"] == "2"
    assert float(exact["memory"]) < float(cut["memory"])  # 2BW keeps another version
    assert float(exact["idle"]) == pytest.approx(2 / 8)  # 2 (K - 1) / (3 M + 2 (K - 1)) with K = M = 2
    trained = {
        (row["depth"], row["seed"]): (row["metric_3"], row["microbatches"], row["memory"])
        for row in records
        if row["pair"] == "1f1b-sgd"
    }
    assert len(trained) == 6
    for seed in "012":  # one training at both depths, with the layouts of each
        (metric, *layout), (other, *deeper) = trained["2", seed], trained["3", seed]
        assert (metric, layout[0], deeper[0]) == (other, "2", "3")
        assert float(deeper[1]) < float(layout[1])
    steps, work = 3, 3
    for row in records:
        time = float(row["epochs_to_target"]) * steps * work / (1 - float(row["idle"]))
        assert float(row["slots_to_target"]) == pytest.approx(time)
    verdicts = rows_of(folder / "verdicts.csv")
    assert {(row["pair"], row["base"]) for row in verdicts} == {("2bw", "1f1b-sgd"), ("mine", "1f1b-sgd")}
    assert {row["measure"] for row in verdicts} == {"metric_1", "metric_3", "slots_to_target"}
    assert len((folder / "advice.txt").read_text().splitlines()) == len(verdicts) == 12


@pytest.mark.parametrize(
    ("scores", "best", "beyond"),
    [
        ({1.0: (0.5, -3), 2.0: (0.9, -2), 4.0: (0.8, -2.5)}, (2.0, 2.0), []),
        ({1.0: (0.5, -3), 2.0: (0.9, -2), 4.0: (0.8, -1)}, (2.0, 4.0), [8.0]),
        ({1.0: (0.9, -3), 2.0: (0.8, -2), 4.0: (0.7, -1)}, (1.0, 4.0), [0.5, 8.0]),
        ({1.0: (-inf, -inf), 2.0: (-inf, -inf)}, (1.0, 1.0), [0.5]),  # all diverged
    ],
)
def test_rates_are_added_until_the_best_are_inside(
    scores: Mapping[float, tuple[float, float]], best: tuple[float, float], beyond: list[float]
) -> None:
    assert best_rates(scores) == best
    assert rates_beyond(scores, 2.0) == beyond


def test_what_differs_between_two_kernels_is_undecided() -> None:
    about = {"task": "digits", "depth": 2, "pair": "a", "base": "b", "against_base": "+0.1", "reason": ""}
    here = [{**about, "measure": f"metric_{n}", "verdict": verdict} for n, verdict in enumerate(("lower", "equal"))]
    beside = [{name: str(value) for name, value in row.items()} | {"verdict": "lower"} for row in here]
    found = together(here, beside)
    assert [row["verdict"] for row in found] == ["lower", "undecided"]
    assert [line.split(": ")[1].split(" against ")[0] for line in advice(found, 0.01)] == ["a costs", "a undecided"]


def test_description_has_every_method_with_an_exact_pair() -> None:
    description = read_toml(DESCRIPTION)
    methods = {pair["method"] for pair in description["pairs"].values()}
    assert methods | {"ddg"} == {name for name, method in METHODS.items() if not method.exact}
    for pair in description["pairs"].values():
        assert {pair["optimizer"], pair.get("base", "sgd")} <= description["optimizers"].keys()
    assert description["choice"]["seeds"] != description["result"]["seeds"]
