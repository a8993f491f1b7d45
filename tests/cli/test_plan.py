"""`hybridnn plan` and `simulate`: tables, drawings, curves, the JSON with the same figures, and wrong input."""

import json
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hybridnn.config.settings import load_settings
from hybridnn.cost.machine import Quality
from hybridnn.cost.machine_file import read_machine, write_machine
from hybridnn.cost.prediction.predict import predict
from hybridnn.runs.workload import layout_from_settings, workload_from_settings
from reference.command_line import Run, error_line, facts_of, output_of
from reference.machines import make_machine

NETWORK = ["--set", "model.hidden=[64,64,64]"]
MACHINE = make_machine(alpha=1e-6, beta=1e-9, multiply_add=1e-10, call=1e-6, ranks_per_node=8)


@pytest.fixture
def run(run_hybridnn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``hybridnn plan`` in a folder with a machine file."""
    monkeypatch.delenv("HYBRIDNN_MACHINE", raising=False)
    write_machine(MACHINE, tmp_path / "machine.toml")
    return partial(run_hybridnn, "plan", *NETWORK)


def test_figures_are_those_of_the_prediction(run: Run) -> None:
    found = facts_of(run, "--ranks", "4", "--top", "20")
    assert (found["machine"], found["ranks"], len(found["options"])) == ("made up", 4, 20)
    settings = load_settings(None, NETWORK[1:])
    workload = workload_from_settings(settings)
    for option in found["options"]:
        keys = {key: value for key, value in option["parallel"].items() if value is not None}
        changes = [f"parallel.{key}={json.dumps(value)}" for key, value in keys.items()]
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
    text = output_of(run("--ranks", "4", "--top", "5"))
    table, _, conclusions = text.partition("times and bytes of a step")
    assert max(map(len, table.splitlines())) <= 100
    assert "…" not in table
    best = next(option for option in facts_of(run, "--ranks", "4")["options"] if option["best_exact"])
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
    assert facts_of(run)["ranks"] == 8
    text = output_of(run("--ranks", "16"))
    assert "The machine is made for 8 ranks: more of them take turns." in text


def test_a_machine_of_many_nodes(run: Run, tmp_path: Path) -> None:
    """12,500 nodes of 8 ranks follow from two keys of the machine file, and the plan has as few lines as any other."""
    machine = make_machine(alpha=1e-6, beta=1e-9, call=1e-6, nodes=12_500, ranks_per_node=8)
    write_machine(machine, tmp_path / "machine.toml")
    text = output_of(run("--set", "training.batch_size=50000", "--top", "2"))
    assert text.startswith("100,000 ranks on made up")
    assert len(text.splitlines()) < 20
    assert all(len(line) < 1000 for line in text.splitlines())


def test_several_numbers_of_ranks_are_a_curve_of_the_best_exact_layouts(run: Run, tmp_path: Path) -> None:
    found = facts_of(run, "--ranks", "1, 2,4,8", "--picture", "a.svg")
    assert {path.name for path in tmp_path.glob("*.svg")} == {"a.svg", "a-efficiency.svg", "a-breakdown.svg"}
    assert (found["machine"], found["kind"]) == ("made up", "best")
    best = {ranks: one(facts_of(run, "--ranks", str(ranks))) for ranks in (1, 2, 4, 8)}
    for point in found["points"]:
        expected = best[point["ranks"]]
        assert point["layout"] == expected["layout"]
        assert point["seconds_per_step"] == pytest.approx(expected["seconds_per_step"])
        assert point["speed_up"] == pytest.approx(best[1]["seconds_per_step"] / expected["seconds_per_step"])
        assert point["low"] <= point["speed_up"] <= point["high"]
    text = output_of(run("--ranks", "1,2,4,8"))
    assert text.startswith("the best exact layouts, one minibatch, up to 8 ranks of made up: ")
    for point in found["points"]:
        assert f" ({point['low']:.4g} to {point['high']:.4g}), " in text
        assert f"ms: {point['layout']}\n" in text


def test_a_curve_of_a_doubtful_file_has_no_errors(run: Run, tmp_path: Path) -> None:
    quality = {"held_out_error": 53.0, "held_out_of": "passes", "noise": 0.0, "load_average": 0.0, "busy_ranks": 2}
    write_machine(make_machine(quality=quality), tmp_path / "machine.toml")
    text = output_of(run("--ranks", "1,2", "--picture", "a.png"))
    assert "machine file: doubtful: held-out error 5300%" in text
    assert "layouts: speed-up, ms per step\n" in text
    assert " to " not in text.partition("layouts: speed-up")[2]
    assert [point["low"] for point in facts_of(run, "--ranks", "1,2")["points"]] == [None, None]


def one(plan: dict[str, Any]) -> dict[str, Any]:
    """The best exact layout."""
    (found,) = (option for option in plan["options"] if option["best_exact"])
    return found


def test_sources_of_the_machine_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = make_machine(call=1e-6).model_copy(update={"name": "named"})
    write_machine(named, tmp_path / "other.toml")
    monkeypatch.setenv("HYBRIDNN_MACHINE", "other.toml")
    assert facts_of(run, "--ranks", "2")["machine"] == "named"
    assert facts_of(run, "--ranks", "2", "--machine", "machine.toml")["machine"] == "made up"
    monkeypatch.delenv("HYBRIDNN_MACHINE")
    assert facts_of(run, "--ranks", "2")["machine"] == "made up"
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


SETTINGS = """\
[data]
name = "synthetic"
[model]
hidden = [32, 32, 32]
[training]
batch_size = 256
[parallel]
pipeline = 2
method = "1f1b"
microbatches = 4
"""

CLUSTER = ("--machine", "cluster-1024")


@pytest.fixture
def simulate(run_hybridnn: Run, tmp_path: Path) -> Run:
    """Run ``hybridnn simulate`` on the settings above."""
    (tmp_path / "settings.toml").write_text(SETTINGS)
    return lambda *arguments: run_hybridnn("simulate", "settings.toml", *arguments)


def simulated(simulate: Run, *arguments: str) -> Any:
    return facts_of(simulate, *CLUSTER, *arguments)


def test_text_and_json(simulate: Run) -> None:
    value = simulated(simulate, "--ranks", "8")
    assert (value["ranks"], value["minibatches"], value["microbatches"]) == (8, 1, 4)
    assert value["seconds"] == pytest.approx(value["seconds_per_step"])
    for parts in (value["mean_of_ranks"], *value["stages"]):
        names = ("compute", "overhead", "communicate", "bubble", "wait")
        total = sum(parts[f"{name}_seconds_per_step"] for name in names)
        assert total == pytest.approx(value["seconds_per_step"])
    assert len(value["drawing"]["rows"]) == 2
    out = output_of(simulate("--ranks", "8", *CLUSTER))
    assert "1f1b: 2 stages, 1 minibatch, 4 microbatches each, simulated" in out
    assert "8 ranks of cluster-1024: pipeline 2 x batch 4, 1f1b with 4 microbatches" in out
    assert "ms per step" in out
    assert "drain" not in out
    stale = "--set", "parallel.method=pipedream", "--set", "parallel.microbatches=1"
    assert "samples/s; the epoch with its drain\n" in output_of(simulate("--ranks", "2", *CLUSTER, *stale))


def test_pictures(simulate: Run) -> None:
    for curve, name, beginning in (((), "a.pdf", b"%PDF"), (("--curve", "weak"), "a.svg", b"<?xml")):
        assert simulate("--ranks", "4", *CLUSTER, *curve, "--out", name)[0] == 0
        assert Path(name).read_bytes().startswith(beginning)
    assert {path.name for path in Path().glob("a-*.svg")} == {"a-efficiency.svg", "a-breakdown.svg"}
    refused = error_line(simulate("--ranks", "4", *CLUSTER, "--curve", "weak", "--format", "svg"))
    assert "--format = 'svg': makes several files: give --out FILE" in refused


def test_curves(simulate: Run) -> None:
    curve = simulated(simulate, "--ranks", "16", "--curve", "strong")
    assert [point["ranks"] for point in curve["points"]] == [1, 2, 4, 8, 16]
    assert {point["batch_size"] for point in curve["points"]} == {256}
    out = output_of(simulate("--ranks", "512", *CLUSTER, "--curve", "strong"))
    # Four microbatches of 64 samples, for 64 batch ranks at 128 ranks and more at more.
    assert "more batch ranks than samples of a microbatch, so that some have none: 256, 512 ranks" in out
    assert "-0.0%" not in out
    out = output_of(simulate("--ranks", "16", *CLUSTER, "--curve", "weak"))
    assert "weak scaling" in out
    assert "2048" in out  # the minibatch of eight replicas


@pytest.mark.parametrize("ranks", [64, pytest.param(1024, marks=pytest.mark.slow)])
def test_a_curve_names_its_layout_and_faster_ones(simulate: Run, tmp_path: Path, ranks: int) -> None:
    """784-3x1024-10 with few samples on 64 nodes of 16 ranks: a curve of replicas is not how far scaling goes."""
    machine = read_machine("cluster-1024").model_copy(update={"nodes": 64, "ranks_per_node": 16})
    write_machine(machine, tmp_path / "machine.toml")
    network = ("--set", "data.name=mnist", "--set", "model.hidden=[1024,1024,1024]")
    flat = ("--set", "parallel.pipeline=1", "--set", "parallel.method=1f1b", "--curve", "strong", *network)
    out = output_of(simulate("--ranks", str(ranks), *flat))
    title = "strong scaling of one layout by more replicas, one minibatch, up to"
    assert out.startswith(f"{title} {ranks} ranks of cluster-1024: batch {ranks}")
    named = out.partition("faster by more than the errors of both (hybridnn plan): speed-up")[2]
    assert "  64 ranks: 46.58 (31.05 to 69.87), 2.142 ms: batch 2 x model 32 (alternating)\n" in named
    if ranks == 1024:
        assert "1024 ranks: 142.2 (94.81 to 213.3), 0.7017 ms: batch 8 x model 128 (alternating)\n" in named
        return
    split = ("--set", "parallel.model=32", "--set", "parallel.model_split=alternating")
    out = output_of(simulate("--ranks", "64", *flat, *split))
    assert "faster by more than" not in out
    found = facts_of(simulate, "--ranks", "64", *flat, "--machine", "machine.toml")
    assert found["faster"][-1]["layout"] == "batch 2 x model 32 (alternating)"
    assert {point["layout"] for point in found["points"][1:]} == {f"batch {2**power}" for power in range(1, 7)}


def test_an_efficiency_above_100_percent_is_explained(simulate: Run, tmp_path: Path) -> None:
    """Weights that one rank's cache does not hold, and two ranks' caches do."""
    machine = make_machine()
    forward = machine.compute[0].forward.model_copy(update={"uncached_weight_seconds": 1e-6})
    slow = machine.compute[0].model_copy(update={"forward": forward, "cache_bytes": 64 * 64 * 3.0})
    write_machine(machine.model_copy(update={"compute": (slow,)}), tmp_path / "cache.toml")
    options = ("--machine", "cache.toml", "--set", "model.hidden=[64,64]", "--curve", "strong")
    flat = ("--set", "parallel.pipeline=1", "--set", "parallel.method=1f1b", "--set", "parallel.model=2")
    out = output_of(simulate("--ranks", "2", *options, *flat))
    assert "above 100%: what one rank reads and writes in a step does not fit its cache" in out


@pytest.mark.parametrize(
    ("arguments", "busy"),
    [(["--ranks", "64"], 64), (["--ranks", "256"], None), (["--ranks", "256", "--curve", "weak"], 1)],
)
def test_costs_of_more_busy_ranks_than_there_are_have_a_warning(simulate, arguments, busy) -> None:
    """The costs of the machine are for 128 busy ranks of a node."""
    flat = ("--set", "parallel.pipeline=1", "--set", "parallel.method=1f1b", "--set", "training.batch_size=256")
    out = output_of(simulate(*CLUSTER, *arguments, *flat))
    warnings = [line for line in out.splitlines() if line.startswith("Computing costs are those of 128 busy ranks")]
    assert [f": {busy} have more memory bandwidth" in line for line in warnings] == ([] if busy is None else [True])


def test_pictures_of_a_doubtful_machine_file_say_so(simulate: Run, tmp_path: Path) -> None:
    quality = Quality(held_out_error=0.05, held_out_of="send", noise=0.85, load_average=0.0, busy_ranks=1)
    write_machine(make_machine(quality=quality), tmp_path / "bad.toml")
    for options in ((), ("--curve", "strong")):
        code, _, error = simulate("--ranks", "2", "--machine", "bad.toml", "--out", "step.svg", *options)
        assert code == 0
        assert "is doubtful, and so are its predictions: noise 85%" in error
        assert options or "by a doubtful machine file" in (tmp_path / "step.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "7"], "does not fit 7 ranks"),
        (["--curve", "steep"], "'steep' is not one of 'strong', 'weak'"),
        (["--machine", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_mistakes(simulate: Run, arguments: list[str], message: str) -> None:
    assert message in error_line(simulate("--ranks", "8", *CLUSTER, *arguments))  # the last of two options counts
