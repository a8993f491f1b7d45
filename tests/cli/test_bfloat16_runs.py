"""Runs in mixed precision: their files hold float32, and they go on and are used like others."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hybridnn.config.settings import load_settings
from hybridnn.runs.workload import workload_from_settings
from reference.command_line import Run, assert_same_weights, records_of

TRAIN = ("train", "--hidden", "16", "--batch-size", "200", "--set", "training.dtype=bfloat16", "-q")
CHECKPOINTS = ("--set", "training.checkpoint_every=7")


def test_a_resumed_run_is_the_uninterrupted_one_to_the_last_bit(run_hybridnn: Run) -> None:
    assert run_hybridnn(*TRAIN, "--epochs", "3", "--out", "whole")[0] == 0
    assert run_hybridnn(*TRAIN, *CHECKPOINTS, "--epochs", "1", "--out", "run")[0] == 0
    arrays = [np.load(path) for path in Path("run/checkpoints").rglob("*.npy")]
    assert arrays
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}
    assert run_hybridnn("train", "--resume", "run", "--epochs", "3", "-q")[0] == 0
    assert_same_weights("run", "whole")
    with np.load("run/weights.npz") as weights:
        assert {weights[name].dtype for name in weights.files} == {np.dtype(np.float32)}


def test_a_run_is_evaluated_with_rounded_products(run_hybridnn: Run) -> None:
    assert run_hybridnn(*TRAIN, "--epochs", "2", "--out", "run")[0] == 0
    last = records_of("run", "epoch")[-1]
    code, text, _ = run_hybridnn("evaluate", "run")
    assert code == 0
    found = {line.split()[0]: line.split()[1] for line in text.splitlines()[:5]}
    assert found["loss"] == f"{last['test_loss']:.6g}"
    assert found["accuracy"] == f"{last['test_accuracy']:.6g}"


def test_bytes_are_those_of_float32() -> None:
    settings = (load_settings(None, [f"training.dtype={dtype}"]) for dtype in ("float32", "bfloat16"))
    one, other = map(workload_from_settings, settings)
    assert (one, one.itemsize) == (other, 4)
