"""Damage of files, and the checks of commands on damaged files."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest

from fault_drill.folder_trials import (
    FILE_FAULTS,
    PLACES_TAKEN,
    FolderTrial,
    _judge_command,
    _names,
    draw_folder_trial,
)
from fault_drill.forgeries import FIELDS, devices_can_be_made
from fault_drill.outcomes import Outcome
from fault_drill.sources import COMMANDS, TARGETS
from reference.damaged_files import CONTENT, CUTS, replace
from reference.trained_runs import write_checkpoint

NEWEST = "step-00000028"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of one layer."""
    return write_checkpoint(tmp_path / "run", 28, {"layers.0.weight": np.ones((3, 2)), "layers.0.bias": np.ones(3)})


def test_every_damage_changes_the_file(checkpoint: Path) -> None:
    for name, damage in (CUTS | CONTENT).items():
        path = checkpoint / ("layers.0.weight.npy" if "array" in name else "manifest.json")
        before = path.read_bytes()
        for seed in range(5):
            damage(path, Random(seed))
            assert path.read_bytes() != before, name
            path.write_bytes(before)


@pytest.mark.parametrize("of_folder", [False, True])
def test_files_and_folders_are_replaced(checkpoint: Path, of_folder: bool) -> None:
    path = checkpoint if of_folder else checkpoint / "manifest.json"
    for name, damage in PLACES_TAKEN.items():
        if name != "a device" or devices_can_be_made():
            damage(path, Random(0))
            kind = stat.S_IFMT(os.lstat(path).st_mode)
            assert kind != (stat.S_IFDIR if of_folder else stat.S_IFREG), name
            replace(path, "nothing")
            path.mkdir() if of_folder else path.touch()


def test_a_forged_field_keeps_digests_valid(checkpoint: Path) -> None:
    path, listed = checkpoint / "manifest.json", checkpoint / "SHA256SUMS"
    before = path.read_text()
    for name, seed in product(FIELDS, range(30)):
        FIELDS[name](path, Random(seed))
        assert json.loads(path.read_text()) != json.loads(before)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert f"{digest}  manifest.json\n" in listed.read_text()
        path.write_text(before)


def test_headers_of_arrays_exceed_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.ones((3, 2)))
    np.savez(tmp_path / "some.npz", allow_pickle=False, x=np.ones((3, 2)))
    for name in ("one.npy", "some.npz"):
        CONTENT["arrays of 8 TB"](tmp_path / name, Random(0))
    with pytest.raises((MemoryError, ValueError)):
        np.load(tmp_path / "one.npy")
    with np.load(tmp_path / "some.npz") as arrays, pytest.raises((MemoryError, ValueError)):
        arrays["x"]


def test_every_trial_of_a_file_is_possible() -> None:
    for number in range(300):
        trial = draw_folder_trial(1, number, list(FILE_FAULTS)[number % len(FILE_FAULTS)])
        assert trial == draw_folder_trial(1, number, trial.fault)
        assert trial.target in TARGETS
        assert set(trial.commands) <= set(COMMANDS)


@pytest.mark.parametrize(
    ("file", "code", "output", "right"),
    [
        ("manifest.json", 0, f"damaged, skipped: run/checkpoints/{NEWEST}/manifest.json: is a FIFO\n", True),
        ("manifest.json", 2, f"Error: run/checkpoints/{NEWEST}: damaged\n", True),
        ("manifest.json", 2, "Error: something is wrong\n", False),
        ("manifest.json", 2, f"Error: {NEWEST}: damaged\nError: {NEWEST}: damaged\n", False),
        ("manifest.json", 1, f"Error: {NEWEST}: damaged\n", False),
        ("manifest.json", -9, "", False),
        ("layers.0.weight.npy", 2, f"Error: run/checkpoints/{NEWEST}/layers.0.weight.npy: has no\n  numbers\n", True),
        ("layers.0.weight.npy", 2, f"Error: run/checkpoints/{NEWEST}/layers.1.weight.npy: has no numbers\n", False),
        ("manifest.json", 1, f"Traceback (most recent call last):\n...\nValueError: {NEWEST}\n", False),
    ],
)
def test_command_on_a_damaged_file_is_judged(tmp_path: Path, file: str, code: int, output: str, right: bool) -> None:
    names = _names(tmp_path / "run" / "checkpoints" / NEWEST / file, tmp_path, NEWEST)
    outcome = Outcome(FolderTrial(1, 0, "a FIFO", next(iter(TARGETS))))
    _judge_command("resume", code, output, names, outcome)
    assert (outcome.complaints == []) == right
    assert outcome.traceback == ("Traceback" in output)
