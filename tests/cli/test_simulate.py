"""`hybridnn simulate`: drawing, figures, curves, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridnn.cost.machine import Quality
from hybridnn.cost.machine_file import read_machine, write_machine
from reference.command_line import Run, error_line
from reference.machines import make_machine

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

MACHINE = ("--machine", "cluster-1024")


@pytest.fixture
def simulate(run_hybridnn: Run, tmp_path: Path) -> Run:
    """Run ``hybridnn simulate`` on the settings above."""
    (tmp_path / "settings.toml").write_text(SETTINGS)
    return lambda *arguments: run_hybridnn("simulate", "settings.toml", *arguments)


def facts(simulate: Run, *arguments: str) -> dict[str, Any]:
    code, out, error = simulate("--format", "json", *MACHINE, *arguments)
    assert (code, error) == (0, "")
    value = json.loads(out)
    assert isinstance(value, dict)
    return value


def test_text_and_json(simulate: Run) -> None:
    value = facts(simulate, "--ranks", "8")
    assert (value["ranks"], value["minibatches"], value["microbatches"]) == (8, 1, 4)
    assert value["seconds"] == pytest.approx(value["seconds_per_step"])
    for parts in (value["mean_of_ranks"], *value["stages"]):
        names = ("compute", "overhead", "communicate", "bubble", "wait")
        total = sum(parts[f"{name}_seconds_per_step"] for name in names)
        assert total == pytest.approx(value["seconds_per_step"])
    assert len(value["drawing"]["rows"]) == 2
    code, out, error = simulate("--ranks", "8", *MACHINE)
    assert (code, error) == (0, "")
    assert "1f1b: 2 stages, 1 minibatch, 4 microbatches each, simulated" in out
    assert "8 ranks of cluster-1024: pipeline 2 x batch 4, 1f1b with 4 microbatches" in out
    assert "ms per step" in out


def test_pictures(simulate: Run) -> None:
    for curve, name, beginning in (((), "a.pdf", b"%PDF"), (("--curve", "weak"), "a.svg", b"<?xml")):
        assert simulate("--ranks", "4", *MACHINE, *curve, "--out", name)[0] == 0
        assert Path(name).read_bytes().startswith(beginning)
    assert {path.name for path in Path().glob("a-*.svg")} == {"a-efficiency.svg", "a-breakdown.svg"}
    refused = error_line(simulate("--ranks", "4", *MACHINE, "--curve", "weak", "--format", "svg"))
    assert "--format = 'svg': makes several files: give --out FILE" in refused


def test_curves(simulate: Run) -> None:
    curve = facts(simulate, "--ranks", "512", "--curve", "strong")
    assert [point["ranks"] for point in curve["points"]] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert {point["batch_size"] for point in curve["points"]} == {256}
    code, out, _ = simulate("--ranks", "512", *MACHINE, "--curve", "strong")
    assert code == 0
    # Four microbatches of 64 samples, for 64 batch ranks at 128 ranks and more at more.
    assert "more batch ranks than samples of a microbatch, so that some have none: 256, 512 ranks" in out
    assert "-0.0%" not in out
    code, out, _ = simulate("--ranks", "16", *MACHINE, "--curve", "weak")
    assert code == 0
    assert "weak scaling" in out
    assert "2048" in out  # the minibatch of eight replicas


def test_a_curve_names_its_layout_and_faster_ones(simulate: Run, tmp_path: Path) -> None:
    """784-3x1024-10 with few samples on 64 nodes of 16 ranks: a curve of replicas is not how far scaling goes."""
    machine = read_machine("cluster-1024").model_copy(update={"nodes": 64, "ranks_per_node": 16})
    write_machine(machine, tmp_path / "machine.toml")
    network = ("--set", "data.name=mnist", "--set", "model.hidden=[1024,1024,1024]")
    flat = ("--set", "parallel.pipeline=1", "--set", "parallel.method=1f1b", "--curve", "strong", *network)
    code, out, error = simulate("--ranks", "1024", *flat)
    assert (code, error) == (0, "")
    title = "strong scaling of one layout by more replicas, one minibatch, up to 1024 ranks of cluster-1024: batch 1024"
    assert out.startswith(title)
    named = out.partition("faster by more than the errors of both (hybridnn plan): speed-up")[2]
    assert "  64 ranks: 46.58 (31.05 to 69.87), 2.142 ms: batch 2 x model 32 (alternating)\n" in named
    assert "1024 ranks: 142.2 (94.81 to 213.3), 0.7017 ms: batch 8 x model 128 (alternating)\n" in named
    split = ("--set", "parallel.model=32", "--set", "parallel.model_split=alternating")
    code, out, _ = simulate("--ranks", "64", *flat, *split)
    assert code == 0
    assert "faster by more than" not in out
    found = facts(simulate, "--ranks", "64", *flat, "--machine", "machine.toml")
    assert found["faster"][-1]["layout"] == "batch 2 x model 32 (alternating)"
    assert {point["layout"] for point in found["points"][1:]} == {f"batch {2**power}" for power in range(1, 7)}


def test_layouts_that_training_accepts_are_simulated(simulate: Run, tmp_path: Path) -> None:
    """More ranks than the machine has, and more batch ranks than samples."""
    write_machine(make_machine(ranks_per_node=2), tmp_path / "two.toml")
    code, out, error = simulate("--ranks", "4", "--machine", "two.toml")
    assert (code, error) == (0, "")
    assert "The machine is made for 2 ranks: more of them take turns." in out
    code, out, error = simulate("--ranks", "1024", *MACHINE)
    assert (code, error) == (0, "")
    assert "more batch ranks than samples of a microbatch, so that some have none: 1024 ranks" in out


def test_an_efficiency_above_100_percent_is_explained(simulate: Run, tmp_path: Path) -> None:
    """Weights that one rank's cache does not hold, and two ranks' caches do."""
    machine = make_machine()
    forward = machine.compute[0].forward.model_copy(update={"uncached_weight_seconds": 1e-6})
    slow = machine.compute[0].model_copy(update={"forward": forward, "cache_bytes": 64 * 64 * 3.0})
    write_machine(machine.model_copy(update={"compute": (slow,)}), tmp_path / "cache.toml")
    options = ("--machine", "cache.toml", "--set", "model.hidden=[64,64]", "--curve", "strong")
    flat = ("--set", "parallel.pipeline=1", "--set", "parallel.method=1f1b", "--set", "parallel.model=2")
    code, out, error = simulate("--ranks", "2", *options, *flat)
    assert (code, error) == (0, "")
    assert "above 100%: what one rank reads and writes in a step does not fit its cache" in out


@pytest.mark.parametrize(
    ("arguments", "busy"),
    [(["--ranks", "64"], 64), (["--ranks", "256"], None), (["--ranks", "256", "--curve", "weak"], 1)],
)
def test_costs_of_more_busy_ranks_than_there_are_have_a_warning(
    simulate: Run, arguments: list[str], busy: int | None
) -> None:
    """The costs of the machine are for 128 busy ranks of a node."""
    flat = ("--set", "parallel.pipeline=1", "--set", "parallel.method=1f1b", "--set", "training.batch_size=256")
    code, out, error = simulate(*MACHINE, *arguments, *flat)
    assert (code, error) == (0, "")
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
    assert message in error_line(simulate("--ranks", "8", *MACHINE, *arguments))  # the last of two options counts
