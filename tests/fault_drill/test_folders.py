"""Damage of files, and the checks of commands on damaged files."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from random import Random

import numpy as np
import pytest

from fault_drill.folder_trials import FILE_FAULTS, FolderTrial, _judge_command, _names, draw_folder_trial
from fault_drill.forgeries import CUTS, FIELDS, FORGERIES, PLACES_TAKEN, devices_can_be_made
from fault_drill.outcomes import Outcome
from fault_drill.sources import COMMANDS, TARGETS

NEWEST = "step-00000028"
MANIFEST = {
    "format_version": 1,
    "progress": {"step": 28, "epoch": 3, "minibatches": 4, "loss_sum": 1.5, "samples": 80},
    "origin": {"layout": {"method": "sequential", "stages": [[1, 1]], "layers": [5], "chunks": 1}},
    "slots": ["velocity"],
    "arrays": {"layers.0.weight.npy": {"shape": [3, 2], "dtype": "float64", "bytes": 176, "sha256": "ab" * 32}},
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint with a manifest, a list of digests and one array."""
    folder = tmp_path / "run" / "checkpoints" / NEWEST
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(MANIFEST, indent=2) + "\n")
    digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{'ab' * 32}  layers.0.weight.npy\n{digest}  manifest.json\n")
    np.save(folder / "layers.0.weight.npy", np.arange(6.0).reshape(3, 2))
    return folder


@pytest.mark.parametrize("name", [*CUTS, *FORGERIES])
@pytest.mark.parametrize("seed", range(5))
def test_content_is_changed(checkpoint: Path, name: str, seed: int) -> None:
    path = checkpoint / ("layers.0.weight.npy" if "array" in name else "manifest.json")
    before = path.read_bytes()
    (CUTS | FORGERIES)[name](path, Random(seed))
    assert path.read_bytes() != before


@pytest.mark.parametrize("name", PLACES_TAKEN)
@pytest.mark.parametrize("of_folder", [False, True])
def test_file_is_replaced(checkpoint: Path, name: str, of_folder: bool) -> None:
    if name == "a device" and not devices_can_be_made():
        pytest.skip("without the rights of root no device can be made")
    path = checkpoint if of_folder else checkpoint / "manifest.json"
    PLACES_TAKEN[name](path, Random(0))
    kind = stat.S_IFMT(os.lstat(path).st_mode)
    assert kind != (stat.S_IFDIR if of_folder else stat.S_IFREG)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("seed", range(30))
def test_forged_field_keeps_digests_valid(checkpoint: Path, name: str, seed: int) -> None:
    path = checkpoint / "manifest.json"
    FIELDS[name](path, Random(seed))
    assert json.loads(path.read_text()) != MANIFEST
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert f"{digest}  manifest.json\n" in (checkpoint / "SHA256SUMS").read_text()


def test_headers_of_arrays_exceed_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.ones((3, 2)))
    np.savez(tmp_path / "some.npz", allow_pickle=False, x=np.ones((3, 2)))
    for name in ("one.npy", "some.npz"):
        FORGERIES["arrays of 8 TB"](tmp_path / name, Random(0))
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
        ("manifest.json", 0, f"damaged, passed over: run/checkpoints/{NEWEST}/manifest.json: is a FIFO\n", True),
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
