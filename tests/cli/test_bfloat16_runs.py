"""Runs in mixed precision: their files hold float32, and they go on and are used like others."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hybridnn.config.settings import load_settings
from hybridnn.runs.workload import workload_from_settings
from reference.command_line import Run, assert_same_weights, records_of

TRAIN = ("train", "--hidden", "16", "--batch-size", "200", "--set", "training.dtype=bfloat16", "-q")


def test_a_resumed_run_is_the_uninterrupted_one_to_the_last_bit_and_is_evaluated(run_hybridnn: Run) -> None:
    assert run_hybridnn(*TRAIN, "--epochs", "3", "--out", "whole")[0] == 0
    assert run_hybridnn(*TRAIN, "--set", "training.checkpoint_every=7", "--epochs", "1", "--out", "run")[0] == 0
    arrays = [np.load(path) for path in Path("run/checkpoints").rglob("*.npy")]
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}
    assert run_hybridnn("train", "--resume", "run", "--epochs", "3", "-q")[0] == 0
    assert_same_weights("run", "whole")
    with np.load("run/weights.npz") as weights:
        assert {weights[name].dtype for name in weights.files} == {np.dtype(np.float32)}
    last, text = records_of("run", "epoch")[-1], run_hybridnn("evaluate", "run")[1]
    found = {line.split()[0]: line.split()[1] for line in text.splitlines()[:5]}
    assert found["loss"] == f"{last['test_loss']:.6g}"  # by rounded products
    assert found["accuracy"] == f"{last['test_accuracy']:.6g}"
    of_dtypes = (load_settings(None, [f"training.dtype={dtype}"]) for dtype in ("float32", "bfloat16"))
    one, other = map(workload_from_settings, of_dtypes)
    assert (one, one.itemsize) == (other, 4), "the bytes of a prediction are those of float32"
