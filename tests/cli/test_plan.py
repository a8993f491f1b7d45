"""`hybridnn plan`: the table, the JSON with the same figures, settings that can be used, and wrong input."""

from __future__ import annotations

import json
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hybridnn.config.settings import load_settings
from hybridnn.cost.machine_file import write_machine
from hybridnn.cost.prediction.predict import predict
from hybridnn.runs.workload import layout_from_settings, workload_from_settings
from reference.command_line import Run, error_line
from reference.machines import make_machine

NETWORK = ["--set", "model.hidden=[64,64,64]"]
MACHINE = make_machine(alpha=1e-6, beta=1e-9, multiply_add=1e-10, call=1e-6, ranks_per_node=8)


@pytest.fixture
def run(run_hybridnn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``hybridnn plan`` in a folder with a machine file."""
    monkeypatch.delenv("HYBRIDNN_MACHINE", raising=False)
    write_machine(MACHINE, tmp_path / "machine.toml")
    return partial(run_hybridnn, "plan", *NETWORK)


def facts(run: Run, *arguments: str) -> dict[str, Any]:
    code, text, err = run(*arguments, "--format", "json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(text)
    return found


def test_figures_are_those_of_the_prediction(run: Run) -> None:
    found = facts(run, "--ranks", "4", "--top", "20")
    assert (found["machine"], found["ranks"], len(found["options"])) == ("made up", 4, 20)
    settings = load_settings(None, NETWORK[1:])
    workload = workload_from_settings(settings)
    for option in found["options"]:
        changes = [f"parallel.{key}={json.dumps(value)}" for key, value in option["parallel"].items()]
        chosen = load_settings(None, [*NETWORK[1:], *changes])
        expected = predict(workload, layout_from_settings(chosen, 4, workload.model), MACHINE)
        assert option["seconds_per_step"] == pytest.approx(expected.seconds_per_step)
        assert option["seconds_per_epoch"] == pytest.approx(expected.seconds_per_epoch)
        assert option["bytes_per_step"] == expected.bytes_per_step
        assert option["memory_bytes"] == expected.memory_bytes
        assert (option["staleness"] == "exact") == expected.layout.exact
    assert sum(option["best"] for option in found["options"]) == 1
    assert sum(option["best_exact"] for option in found["options"]) == 1
    assert found["options"][0]["best"]


def test_the_table_fits_and_its_settings_choose_the_best(run: Run) -> None:
    code, text, err = run("--ranks", "4", "--top", "5")
    assert (code, err) == (0, "")
    table, _, conclusions = text.partition("times and bytes of a step")
    assert max(map(len, table.splitlines())) <= 100
    assert "…" not in table
    best = next(option for option in facts(run, "--ranks", "4")["options"] if option["best_exact"])
    line = next(line for line in conclusions.splitlines() if line.startswith("to use the best exact"))
    words = shlex.split(line.partition(": ")[2])
    assert words[::2] == ["--set"] * (len(words) // 2)
    chosen = load_settings(None, [*NETWORK[1:], *words[1::2]])
    layout = layout_from_settings(chosen, 4, workload_from_settings(chosen).model)
    assert (len(layout.stages), *layout.stages[0]) == tuple(
        best["parallel"][key] for key in ("pipeline", "batch", "model")
    )
    assert re.search(r"wins over .* by .* a step", conclusions)


def test_options_that_equal_the_settings_file_are_not_printed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[parallel]\nstages = [{ batch = 3 }, {}]\n")
    _, text, _ = run("run.toml", "--ranks", "1")
    line = next(line for line in text.splitlines() if line.startswith("to use the best exact"))
    # All ranks go to the batch axis without a setting, but it is said.
    assert line.endswith(": --set parallel.stages=[] --set parallel.batch=1")


def test_without_ranks_all_of_the_machine_are_used(run: Run) -> None:
    assert facts(run)["ranks"] == 8
    code, text, _ = run("--ranks", "16")
    assert code == 0
    assert "The machine is made for 8 ranks: more of them take turns." in text


def test_a_machine_of_many_nodes(run: Run, tmp_path: Path) -> None:
    """12,500 nodes of 8 ranks follow from two keys of the machine file, and the plan has as few lines as any other."""
    machine = make_machine(alpha=1e-6, beta=1e-9, call=1e-6, nodes=12_500, ranks_per_node=8)
    write_machine(machine, tmp_path / "machine.toml")
    code, text, err = run("--set", "training.batch_size=50000", "--top", "2")
    assert (code, err) == (0, "")
    assert text.startswith("100,000 ranks on made up")
    assert len(text.splitlines()) < 20
    assert all(len(line) < 1000 for line in text.splitlines())


def test_several_numbers_of_ranks_are_a_curve_of_the_best_exact_layouts(run: Run, tmp_path: Path) -> None:
    found = facts(run, "--ranks", "1, 2,4,8", "--picture", "a.svg")
    assert {path.name for path in tmp_path.glob("*.svg")} == {"a.svg", "a-efficiency.svg", "a-breakdown.svg"}
    assert (found["machine"], found["kind"]) == ("made up", "best")
    best = {ranks: one(facts(run, "--ranks", str(ranks))) for ranks in (1, 2, 4, 8)}
    for point in found["points"]:
        expected = best[point["ranks"]]
        assert point["layout"] == expected["layout"]
        assert point["seconds_per_step"] == pytest.approx(expected["seconds_per_step"])
        assert point["speed_up"] == pytest.approx(best[1]["seconds_per_step"] / expected["seconds_per_step"])
        assert point["low"] <= point["speed_up"] <= point["high"]
    code, text, err = run("--ranks", "1,2,4,8")
    assert (code, err) == (0, "")
    assert text.startswith("the best exact layouts, one minibatch, up to 8 ranks of made up: ")
    for point in found["points"]:
        assert f" ({point['low']:.4g} to {point['high']:.4g}), " in text
        assert f"ms: {point['layout']}\n" in text


def test_a_curve_of_a_doubtful_file_has_no_errors(run: Run, tmp_path: Path) -> None:
    quality = {"held_out_error": 53.0, "held_out_of": "passes", "noise": 0.0, "load_average": 0.0, "busy_ranks": 2}
    write_machine(make_machine(quality=quality), tmp_path / "machine.toml")
    code, text, err = run("--ranks", "1,2", "--picture", "a.png")
    assert (code, err) == (0, "")
    assert "machine file: doubtful: held-out error 5300%" in text
    assert "layouts: speed-up, ms per step\n" in text
    assert " to " not in text.partition("layouts: speed-up")[2]
    assert [point["low"] for point in facts(run, "--ranks", "1,2")["points"]] == [None, None]


def one(plan: dict[str, Any]) -> dict[str, Any]:
    """The best exact layout."""
    (found,) = (option for option in plan["options"] if option["best_exact"])
    assert isinstance(found, dict)
    return found


def test_a_curve_up_to_1024_ranks_of_several_nodes(run: Run, tmp_path: Path) -> None:
    ranks = [2**power for power in range(11)]
    found = facts(run, "--machine", "cluster-1024", "--ranks", ",".join(map(str, ranks)))
    assert [point["ranks"] for point in found["points"]] == ranks


def test_sources_of_the_machine_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = make_machine(call=1e-6).model_copy(update={"name": "named"})
    write_machine(named, tmp_path / "other.toml")
    monkeypatch.setenv("HYBRIDNN_MACHINE", "other.toml")
    assert facts(run, "--ranks", "2")["machine"] == "named"
    assert facts(run, "--ranks", "2", "--machine", "machine.toml")["machine"] == "made up"
    monkeypatch.delenv("HYBRIDNN_MACHINE")
    assert facts(run, "--ranks", "2")["machine"] == "made up"
    (tmp_path / "machine.toml").unlink()
    assert error_line(run("--ranks", "2")).startswith("Error: machine file = 'machine.toml': ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "1000000007"], "is the largest number up to 1000000007 that this model can use"),
        (["--machine", "nowhere.toml"], "nowhere.toml"),
        (["--machine", "little.toml", "--ranks", "2"], "no layout of 2 ranks fits; the smallest, "),
        (["--set", "training.batch=3"], "training.batch"),
        (["--ranks", "1,2,1000000007"], "is the largest number up to 1000000007 that this model can use"),
        (["--machine", "little.toml", "--ranks", "1,2"], "no layout of 1 rank fits; the smallest, "),
        *(
            (["--ranks", ranks], f"--ranks = '{ranks}': a whole number from 1, or several that increase, such as ")
            for ranks in ("", "0", "-1", "2.5", "many", "1,", "1,,2", "0,1", "2,1", "1,1", "1,2,…,8", "1;2")
        ),
        (["--ranks", "9" * 5000], "…: a whole number from 1, or several that increase"),
        (["--ranks", "2", "--picture", "a.svg"], "--picture = 'a.svg': needs a curve: give several numbers of --ranks"),
        (["--ranks", "1,2", "--picture", "a.txt"], "a name that ends with .png, .svg, .pdf"),
        (["--ranks", "1,2", "--picture", "none/a.svg"], "cannot be written"),
    ],
)
def test_wrong_input_is_one_line(run: Run, tmp_path: Path, arguments: list[str], message: str) -> None:
    write_machine(make_machine(memory=5000.0), tmp_path / "little.toml")
    line = error_line(run(*arguments))
    assert message in line
    assert re.search(r", needs [\d,]+ bytes per rank, [\d,]+ more", line) or "no layout" not in line
