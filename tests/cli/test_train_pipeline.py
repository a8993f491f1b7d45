"""`hybridnn train` with a pipeline: every method on four ranks, output and records, and wrong input."""

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from hybridnn.cost import order_search
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.runs.run_files import read_config
from reference.command_line import Run, assert_same_weights, error_line, output_of, records_of

ON_FOUR = ("train", "--in-process", "4")
HIDDEN = ["--hidden", "32,32,32,32,32,32,32"]
DIGITS = [*HIDDEN, "--epochs", "12", "--lr", "0.02", "--set", "model.activation=tanh", "--pipeline", "4"]


PAGE = (Path(__file__).parents[2] / "docs" / "use" / "pipelines.md").read_text(encoding="utf-8")


@pytest.mark.sweep
@pytest.mark.parametrize("method", METHODS)
def test_the_command_of_the_page_of_pipelines_trains_digits_by_every_method(method: str, run_hybridnn: Run) -> None:
    (options,) = re.findall(r"^hybridnn train -n 4 (.*) --method 1f1b$", PAGE, re.MULTILINE)
    (deeper,) = re.findall(r"^`(--hidden \S+)`", PAGE, re.MULTILINE)
    command = [*options.split(), *(deeper.split() if METHODS[method].chunks[0] > 1 else []), "--method", method]
    out = output_of(run_hybridnn(*ON_FOUR, *command, "--epochs", "6", "--out", "run"))
    header, *_, last, end = records_of("run")
    assert end["kind"] == "end"
    assert last["validation_accuracy"] > 0.8
    layout = header["layout"]
    assert (layout["method"], len(layout["stages"])) == (command[-1], 4)
    assert "4 x 1 x 1 (pipeline x batch x model)" in out
    assert "stage 3" in out
    with np.load("run/weights.npz") as weights:
        assert weights[f"layers.{len(header['sizes']) - 2}.weight"].shape == (10, 64)


def test_a_searched_order_is_stored_and_resumed_with(run_hybridnn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    output_of(run_hybridnn(*ON_FOUR, *DIGITS, "--method", "searched", "--epochs", "1", "--out", "run"))
    order = read_config(Path("run")).parallel.order
    assert records_of("run")[0]["layout"]["order"] == list(order)
    assert "parallel.order" in error_line(run_hybridnn(*ON_FOUR, *DIGITS, "--set", "parallel.order=3"))
    command = (*ON_FOUR, *DIGITS, "--method", "searched", "--set", f"parallel.order={list(order[:3])}")
    assert "a word for each of 4 stages" in error_line(run_hybridnn(*command))
    monkeypatch.setattr(order_search, "search", None)  # a resumed run does not search
    output_of(run_hybridnn(*ON_FOUR, "--resume", "run", "--set", "training.epochs=2"))
    assert read_config(Path("run")).parallel.order == order


def test_header_and_history_have_the_memory_of_every_stage(run_hybridnn: Run) -> None:
    options = ["--method", "pipedream", "--epochs", "1", "--out", "run", "--format", "json"]
    _, out, _ = run_hybridnn(*ON_FOUR, *DIGITS, *options)
    printed, recorded = json.loads(out)["header"], records_of("run")[0]
    assert recorded == {"kind": "header", **printed}
    assert recorded["layout"]["layers"] == [2] * 4
    for stage, memory in enumerate(recorded["memory"]):
        version_bytes = 4 * sum(rows * (columns + 1) for rows, columns in LAYERS_OF[stage])
        assert memory["weight_version_bytes"] == pytest.approx((3 - stage) * version_bytes, rel=0.05)
        assert min(memory["activation_bytes"], memory["buffer_bytes"]) > 0


LAYERS_OF = [[(32, 64), (32, 32)], [(32, 32)] * 2, [(32, 32)] * 2, [(32, 32), (10, 32)]]


def test_header_report_and_output_have_the_mean_staleness(run_hybridnn: Run) -> None:
    options = ["--set", "data.rows=60", "--set", "data.test_fraction=0.2", "--batch-size", "8", "--epochs", "1"]
    out = output_of(run_hybridnn(*ON_FOUR, *DIGITS, *options, "--method", "vanilla", "--out", "run"))
    header = records_of("run")[0]
    minibatches = -(-header["train_samples"] // 8)
    of_stages = [sum(min(t, 3 - k) for t in range(minibatches)) / minibatches for k in range(4)]
    assert header["stage_staleness"] == pytest.approx(of_stages)
    assert header["mean_staleness"] == pytest.approx(sum(of_stages) / 4)
    shown = f"{header['mean_staleness']:.2f} updates on average; of the stages "
    assert shown + ", ".join(f"{mean:.2f}" for mean in of_stages) in out
    facts = json.loads(run_hybridnn("report", "run", "--format", "json")[1])
    assert facts["mean_staleness"] == header["mean_staleness"]
    assert facts["stage_staleness"] == header["stage_staleness"]
    assert shown in run_hybridnn("report", "run")[1]
    full = ["--method", "vanilla", "--epochs", "5", "--set", "training.drain_every=3", "--out", "full"]
    assert run_hybridnn(*ON_FOUR, *DIGITS, *options, *full)[0] == 0
    of_first = sum(min(t, 3) for t in range(3 * minibatches)) / (3 * minibatches)
    assert records_of("full")[0]["stage_staleness"][0] == pytest.approx(of_first)
    exact = ["--method", "1f1b", "--out", "exact"]
    assert "staleness" not in run_hybridnn(*ON_FOUR, *DIGITS, *options, *exact)[1]
    assert records_of("exact")[0]["mean_staleness"] == 0


def test_a_full_pipeline_stops_at_a_signal_after_its_drain_and_resumes_as_without_the_stop(
    run_hybridnn, signal_at
) -> None:
    options = ["--set", "data.rows=250", "--set", "output.log_every=1", "--epochs", "5"]
    options += ["--method", "spectrain", "--set", "training.drain_every=2"]
    assert run_hybridnn(*ON_FOUR, *DIGITS, *options, "--out", "whole")[0] == 0
    signal_at(3, signal.SIGUSR1)
    code, _, err = run_hybridnn(*ON_FOUR, *DIGITS, *options, "--out", "run")
    assert code == 75
    assert "stopped by SIGUSR1 after step 4; wrote run/checkpoints/step-00000004" in err
    changed = run_hybridnn(*ON_FOUR, "--resume", "run", "--set", "training.drain_every=1")
    assert "training.drain_every" in error_line(changed)
    out = output_of(run_hybridnn(*ON_FOUR, "--resume", "run"))
    assert "10, the last 6 in" in out
    assert_same_weights("run", "whole")
    assert [record["epoch"] for record in records_of("run", "epoch")] == [1, 2, 3, 4, 5]
    assert [record["epoch"] for record in records_of("run", "measured")] == [1, 2, 3, 4, 5]


def test_stages_of_different_widths_train_and_written_settings_repeat_the_run(run_hybridnn: Run) -> None:
    stages = ["--set", "parallel.stages=[{batch=2}, {model=2}]"]
    out = output_of(run_hybridnn(*ON_FOUR, *HIDDEN, "--epochs", "2", *stages, "--method", "gpipe", "--out", "run"))
    assert "2 x 1 + 1 x 2 (batch x model of each stage)" in out
    assert run_hybridnn(*ON_FOUR, "run/config.toml", "--out", "again")[0] == 0
    assert_same_weights("again", "run")


PIPELINE = ["--pipeline", "2"]
WRONG: dict[str, tuple[int, list[str], list[str]]] = {
    "a stale method on one stage": (1, ["--method", "fr", "--pipeline", "1"], ["parallel.method = 'fr'", "-n 2"]),
    "spectrain with an optimizer that does not predict weights": (
        2,
        [*PIPELINE, "--method", "spectrain", "--optimizer", "rmsprop"],
        ["optimizer.name = 'rmsprop'", "does not predict weights, as spectrain needs"],
    ),
    "widths beside an axis": (
        3,
        ["--set", "parallel.stages=[{batch=2}, {}]", "--batch", "2"],
        ["parallel.batch = 2", "does not belong to stages"],
    ),
    "an unknown key of a stage": (
        2,
        ["--set", "parallel.stages=[{batch=1}, {modle=1}]"],
        ["parallel.stages[1].modle", "did you mean model"],
    ),
    "ranks that are no multiple of the stages": (3, PIPELINE, ["pipeline 2", "3 ranks"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_and_exit_code_2(case: str, run_hybridnn: Run) -> None:
    ranks, arguments, fragments = WRONG[case]
    line = error_line(run_hybridnn("train", "--in-process", str(ranks), *arguments))
    assert all(fragment in line for fragment in fragments), line
    assert not Path("runs").exists()
