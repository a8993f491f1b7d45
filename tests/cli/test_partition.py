"""`hybridnn partition`: the stages, their times and bytes, profiles, and wrong input."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference.command_line import Run, error_line

MILLISECONDS = [(1.0, 2.0), (2.0, 4.0), (1.0, 2.0), (0.5, 0.5)]
"""Forward and backward, in milliseconds; messages at the default costs are much shorter."""


@pytest.fixture
def run(run_hybridnn: Run) -> Run:
    """Run ``hybridnn partition`` in an empty folder."""
    return partial(run_hybridnn, "partition")


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """Write a profile of four layers of 3, 6, 3 and 1 ms, with 1 kB outputs and 1 MB of parameters each."""
    layers = [
        {
            "forward_seconds": forward / 1e3,
            "backward_seconds": backward / 1e3,
            "output_bytes": 1000,
            "parameter_bytes": 1_000_000,
        }
        for forward, backward in MILLISECONDS
    ]
    path = tmp_path / "layers.json"
    path.write_text(json.dumps(layers))
    return str(path)


def facts(run: Run, *arguments: str) -> dict[str, Any]:
    code, text, err = run(*arguments, "--format", "json")
    assert (code, err) == (0, "")
    result: dict[str, Any] = json.loads(text)
    return result


def test_a_profile_needs_no_settings(run: Run, profile: str) -> None:
    found = facts(run, "--profile", profile, "--stages", "2")
    assert found["source"] == {"file": profile}
    assert (found["alpha"], found["beta"]) == (5e-6, 2e-10)
    assert [layer["forward_seconds"] for layer in found["layers"]] == [0.001, 0.002, 0.001, 0.0005]
    assert found["uniform"]["stages"] == [2, 2]
    assert found["uniform"]["stage_seconds"] == pytest.approx([0.009, 0.004])
    # Against 3 and 10 ms, and 12 and 1 ms.
    assert found["profile"]["stages"] == [2, 2]
    assert found["profile"]["bottleneck"] == pytest.approx(0.009)
    assert found["profile"]["balance"] == pytest.approx((9 + 4) / 2 / 9)
    assert found["uniform"]["message_seconds"] == pytest.approx([2 * (5e-6 + 1000 * 2e-10)])
    assert "replicated" not in found


def test_the_profile_partition_beats_the_uniform_one(run: Run, profile: str) -> None:
    found = facts(run, "--profile", profile, "--stages", "3")
    # 3 | 6 | 3 1 against 3 6 | 3 | 1
    assert found["uniform"]["stages"] == [2, 1, 1]
    assert found["profile"]["stages"] == [1, 1, 2]
    assert found["uniform"]["bottleneck"] == pytest.approx(0.009)
    assert found["profile"]["bottleneck"] == pytest.approx(0.006)


def test_ranks_choose_the_replication(run: Run, profile: str) -> None:
    # Free messages: 9 ms on two ranks and 4 ms on one, or 3 ms on one and 10 ms on two; and all 13 ms on three ranks.
    free = ("--alpha", "0", "--beta", "0")
    two = facts(run, "--profile", profile, "--stages", "2", "--ranks", "3", *free)["replicated"]
    assert (two["stages"], two["replicas"]) == ([2, 2], [2, 1])
    assert two["stage_seconds"] == pytest.approx([0.0045, 0.004])
    chosen = facts(run, "--profile", profile, "--ranks", "3", *free)
    assert (chosen["replicated"]["stages"], chosen["replicated"]["replicas"]) == ([4], [3])
    assert chosen["uniform"]["stages"] == [4]
    # At 1 s per MB no all-reduce of gradients pays: every stage has one rank.
    dear = facts(run, "--profile", profile, "--ranks", "3", "--beta", "1e-6")
    assert dear["replicated"]["replicas"] == [1, 1, 1]


def test_text_shows_layers_stages_and_the_settings(run: Run, profile: str) -> None:
    code, text, err = run("--profile", profile, "--stages", "3", "--ranks", "5")
    assert (code, err) == (0, "")
    assert f"read from {profile}" in " ".join(text.split())  # a long path has a line of its own
    rows = [line.split() for line in text.splitlines()]
    assert ["1", "-", "2.000", "4.000", "1,000", "1,000,000"] in rows
    assert ["uniform", "9.000", "0.48", "0", "0-1", "1", "9.000", "0.010"] in rows
    assert ["profile", "6.000", "0.72", "0", "0", "1", "3.000", "0.010"] in rows
    assert ["2", "2-3", "1", "4.000"] in rows
    assert "a message of n bytes takes 5e-06 s + n x 2e-10 s" in text
    assert "uniform: parallel.partition = [2, 1, 1]" in text
    assert "profile: parallel.partition = [1, 1, 2]" in text
    # 3 ms, 6 ms on three ranks, 4 ms; nothing with five ranks is below 3.
    assert (
        "replicated: parallel.partition = [1, 1, 2], parallel.stages = [{batch = 1}, {batch = 2}, {batch = 2}]" in text
    )


def test_timing_needs_only_settings(run: Run) -> None:
    Path("small.toml").write_text("[model]\nhidden = [12, 9]\n[training]\nbatch_size = 7\ndtype = 'float64'\n")
    found = facts(run, "small.toml", "--stages", "2", "--save-profile", "saved.json")
    assert found["source"] == {"samples": 7, "dtype": "float64", "threads": 1, "repeats": 20}
    layers = found["layers"]
    assert [(layer["inputs"], layer["outputs"]) for layer in layers] == [(64, 12), (12, 9), (9, 10)]
    assert [layer["output_bytes"] for layer in layers] == [12 * 7 * 8, 9 * 7 * 8, 10 * 7 * 8]
    assert [layer["parameter_bytes"] for layer in layers] == [12 * 65 * 8, 9 * 13 * 8, 10 * 10 * 8]
    assert all(layer["forward_seconds"] > 0 and layer["backward_seconds"] > 0 for layer in layers)
    assert found["uniform"]["stages"] == [2, 1]
    # The saved profile gives the same partition, and the settings the widths.
    again = facts(run, "small.toml", "--stages", "2", "--profile", "saved.json")
    assert again["source"] == {"file": "saved.json"}
    assert [again[key] for key in ("layers", "uniform", "profile")] == [
        found[key] for key in ("layers", "uniform", "profile")
    ]


def test_settings_on_the_command_line_and_samples(run: Run) -> None:
    code, text, _ = run("--stages", "2", "--set", "model.hidden=[6]", "--samples", "3", "--threads", "2")
    assert code == 0
    assert "20 passes of 3 samples on this machine, float32, BLAS threads: 2" in text
    assert "64 > 6" in text
    assert "6 > 10" in text


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        (["data.name=synthetic", "data.synthetic.inputs=5", "data.synthetic.outputs=3"], (5, 3)),
        (["data.name=mnist"], (784, 10)),
        (["data.file=mine.npz"], (4, 3)),
    ],
)
def test_the_data_determine_the_first_and_last_width(run: Run, settings: list[str], ends: tuple[int, int]) -> None:
    x = np.random.default_rng(0).normal(size=(30, 4))
    np.savez("mine.npz", x_train=x, y_train=np.arange(30) % 3)
    options = [text for setting in settings for text in ("--set", setting)]
    layers = facts(run, *options, "--set", "model.hidden=[6]", "--stages", "2", "--samples", "2")["layers"]
    assert (layers[0]["inputs"], layers[-1]["outputs"]) == ends


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --stages, the number of stages, or --ranks"),
        (["--stages", "0"], "--stages"),
        (["--stages", "4"], "parallel.pipeline = 4: at most 3, the number of layers"),
        (["--stages", "2", "--ranks", "1"], "ranks = 1: at least 2, one for each stage"),
        (["--stages", "2", "--profile", "absent.json"], "absent.json: cannot be read: No such file or directory"),
        (["--stages", "2", "--profile", "two.json", "--samples", "3"], "--samples = 3: nothing is timed"),
        (["--stages", "2", "--profile", "two.json", "--set", "model.hidden=[6,6]"], "two.json: 2 layers, the network"),
        (["--stages", "3", "--profile", "two.json"], "parallel.pipeline = 3: at most 2, the number of layers"),
        (["--stages", "2", "--alpha", "-1"], "--alpha"),
        (["--stages", "2", "--beta", "nan"], "beta"),
        (["--stages", "2", "--set", "model.hiden=[6]"], "unknown setting model.hiden; did you mean model.hidden?"),
        (["no.toml", "--stages", "2"], "settings file = 'no.toml': cannot be read"),
        (["--stages", "2", "--save-profile", "no/p.json"], "--save-profile = 'no/p.json': there is no folder no"),
        (["--stages", "2", "--set", "data.name=digit"], "data.name = 'digit': no such data set"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(run: Run, arguments: list[str], message: str) -> None:
    layer = {"forward_seconds": 1, "backward_seconds": 1, "output_bytes": 1, "parameter_bytes": 1}
    Path("two.json").write_text(json.dumps([layer, layer]))
    assert message in error_line(run(*arguments))


def test_several_ranks_print_once_and_fail_together(run_as_ranks: Run, profile: str) -> None:
    code, text, err = run_as_ranks("partition", "--profile", profile, "--stages", "2")
    assert (code, text.count("uniform: parallel.partition"), err) == (0, 1, "")
    code, text, err = run_as_ranks("partition", "--profile", profile, "--stages", "5")
    assert (code, text, err.count("\n")) == (2, "", 1)
    assert err.startswith("Error: parallel.pipeline = 5: at most 4")
