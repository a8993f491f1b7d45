"""`hybridnn partition`: the stages, their times and bytes, profiles, and wrong input."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reference.command_line import Run, error_line

MILLISECONDS = [(1.0, 2.0), (2.0, 4.0), (1.0, 2.0), (0.5, 0.5)]
"""Forward and backward, in milliseconds; messages at the default costs are much shorter."""


@pytest.fixture
def run(run_hybridnn: Run) -> Run:
    """Run ``hybridnn partition`` beside a profile of layers of 3, 6, 3 and 1 ms, with outputs of 1 kB."""
    layers = [
        {"forward_seconds": a / 1e3, "backward_seconds": b / 1e3, "output_bytes": 1000, "parameter_bytes": 1_000_000}
        for a, b in MILLISECONDS
    ]
    Path("layers.json").write_text(json.dumps(layers))
    return partial(run_hybridnn, "partition")


def facts(run: Run, *arguments: str) -> dict[str, Any]:
    code, text, err = run(*arguments, "--format", "json")
    assert (code, err) == (0, "")
    result: dict[str, Any] = json.loads(text)
    return result


PROFILE = ("--profile", "layers.json")


def test_json_has_the_uniform_partition_and_that_of_the_profile(run: Run) -> None:
    found = facts(run, *PROFILE, "--stages", "3")
    assert found["source"] == {"file": "layers.json"}
    assert (found["alpha"], found["beta"]) == (5e-6, 2e-10)
    # 3 6 | 3 | 1 against 3 | 6 | 3 1
    assert (found["uniform"]["stages"], found["profile"]["stages"]) == ([2, 1, 1], [1, 1, 2])
    assert found["uniform"]["stage_seconds"] == pytest.approx([0.009, 0.003, 0.001])
    assert (found["uniform"]["bottleneck"], found["profile"]["bottleneck"]) == pytest.approx((0.009, 0.006))
    assert found["profile"]["balance"] == pytest.approx((3 + 6 + 4) / 3 / 6)
    assert found["uniform"]["message_seconds"] == pytest.approx([2 * (5e-6 + 1000 * 2e-10)] * 2)
    assert "replicated" not in found


def test_text_shows_layers_stages_and_the_settings(run: Run, run_as_ranks: Run) -> None:
    code, text, err = run(*PROFILE, "--stages", "3", "--ranks", "5")
    assert (code, err) == (0, "")
    rows = [line.split() for line in text.splitlines()]
    assert ["1", "-", "2.000", "4.000", "1,000", "1,000,000"] in rows
    assert ["uniform", "9.000", "0.48", "0", "0-1", "1", "9.000", "0.010"] in rows
    assert ["2", "2-3", "1", "4.000"] in rows
    # 3 ms, 6 ms on three ranks, 4 ms; nothing with five ranks is below 3.
    assert "replicated: parallel.partition = [1, 1, 2], parallel.stages = [{batch = 1}, {batch = 2}, {batch = 2" in text
    assert run_as_ranks("partition", *PROFILE, "--stages", "3", "--ranks", "5") == (0, text, "")


def test_timing_needs_only_settings(run: Run) -> None:
    Path("small.toml").write_text("[model]\nhidden = [12, 9]\n[training]\nbatch_size = 7\ndtype = 'float64'\n")
    synthetic = ("--set", "data.name=synthetic", "--set", "data.synthetic={inputs=5, outputs=3}")
    options = ("small.toml", *synthetic, "--stages", "2")
    found = facts(run, *options, "--save-profile", "saved.json")
    assert found["source"] == {"samples": 7, "dtype": "float64", "threads": 1, "repeats": 20}
    layers = found["layers"]
    assert [(layer["inputs"], layer["outputs"]) for layer in layers] == [(5, 12), (12, 9), (9, 3)]
    assert [layer["output_bytes"] for layer in layers] == [12 * 7 * 8, 9 * 7 * 8, 3 * 7 * 8]
    again = facts(run, *options, "--profile", "saved.json")
    for key in ("layers", "uniform", "profile"):
        assert again[key] == found[key]
    text = run(*options, "--samples", "3", "--threads", "2")[1]
    assert "20 passes of 3 samples on this machine, float64, BLAS threads: 2" in text


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ([], "give --stages"),
        (["--stages", "4"], "parallel.pipeline = 4: "),
        (["--stages", "2", "--ranks", "1"], "ranks = 1: "),
        (["--stages", "2", *PROFILE, "--samples", "3"], "--samples = 3: "),
        (["--stages", "2", *PROFILE, "--set", "model.hidden=[6,6]"], "layers.json: 4 layers, the network"),
        (["--stages", "2", "--alpha", "-1"], "--alpha"),
        (["--stages", "2", "--save-profile", "no/p.json"], "--save-profile = 'no/p.json': "),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(run: Run, arguments: list[str], setting: str) -> None:
    assert setting in error_line(run(*arguments))
