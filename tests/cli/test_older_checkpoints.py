"""A run goes on from an older checkpoint where the newest ones are damaged, and names each that it passes over."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn.cli.train_view import TrainView
from mpi_runner.slowness import deadline
from reference import forgeries
from reference.command_line import Run, assert_same_weights
from reference.damaged_files import REPLACEMENTS, replace

RUN = "run"
SMALL = (
    *("train", "--data", "synthetic", "--hidden", "9", "--batch-size", "25", "-q"),
    *("--set", "data.rows=200", "--set", "data.synthetic.test_samples=20"),
)
ARRAY = "layers.0.weight.npy"


def forged(field: str, value: Any) -> Callable[[Path], None]:
    return lambda checkpoint: forgeries.forge(checkpoint / "manifest.json", field.split("/"), value)


def in_place_of(name: str, kind: str) -> Callable[[Path], object]:
    return lambda checkpoint: replace(checkpoint / name, kind)


def other_array(change: Callable[[Any], Any], *, shape: bool = False) -> Callable[[Path], None]:
    """A function that changes an array, its size and its digest, and its `shape` in the manifest too."""

    def harm(checkpoint: Path) -> None:
        path = checkpoint / ARRAY
        np.save(path, change(np.load(path)))
        found = {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for field, value in (found | ({"shape": np.load(path).shape} if shape else {})).items():
            forged(f"arrays/{ARRAY}/{field}", value)(checkpoint)

    return harm


def another_name(name: str) -> Callable[[Path], None]:
    def harm(checkpoint: Path) -> None:
        arrays = json.loads((checkpoint / "manifest.json").read_text())["arrays"]
        forged("arrays", arrays | {name: arrays[ARRAY]})(checkpoint)

    return harm


def other_slot(checkpoint: Path) -> None:
    """Rename the arrays of the optimizer."""
    for path in checkpoint.glob("*.velocity.npy"):
        path.rename(path.with_name(path.name.replace("velocity", "speed")))
    path = checkpoint / "manifest.json"
    path.write_text(path.read_text().replace("velocity", "speed"))
    forged("slots", ["speed"])(checkpoint)


def empty_manifest(checkpoint: Path) -> None:
    """A manifest without content, whose digest is right."""
    path, sums = checkpoint / "manifest.json", checkpoint / "SHA256SUMS"
    before, after = (hashlib.sha256(data).hexdigest() for data in (path.read_bytes(), b""))
    path.write_bytes(b"")
    sums.write_text(sums.read_text().replace(before, after))


def flip_version(checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 3'))


WHOLE_EPOCH = {"minibatches": 8, "samples": 200}
"""Progress after an epoch, where that of the next one is expected."""

HARM: list[Callable[[Path], object]] = [
    *(in_place_of("", kind) for kind in ("a FIFO", "a link to itself", "a link to nothing")),
    lambda checkpoint: (replace(checkpoint, "nothing"), checkpoint.write_text("x")),
    lambda checkpoint: (replace(checkpoint, "nothing"), checkpoint.mkdir()),
    *(in_place_of(name, kind) for name in ("manifest.json", "SHA256SUMS", ARRAY) for kind in REPLACEMENTS),
    # The layers of the stages only matter to stale methods.
    *(forged(field, value) for field, value in forgeries.VALUES if field != "origin/layout/layers"),
    *(forged(f"arrays/{ARRAY}/{field}", value) for field, value in forgeries.ARRAY_VALUES),
    *(another_name(name) for name in forgeries.NAMES),
    lambda checkpoint: [forged(f"progress/{key}", value)(checkpoint) for key, value in WHOLE_EPOCH.items()],
    forged("progress/step", 10**6),
    forged("slots", ["velocity", "speed"]),
    other_array(lambda array: array.T.copy()),
    other_array(lambda array: array.T.copy(), shape=True),  # an array of another network
    other_array(lambda array: array[:0]),
    other_slot,
    empty_manifest,
    flip_version,
]
"""Damage of a checkpoint from which a run cannot go on, each in another checkpoint of a run."""


@pytest.mark.timeout(300)
def test_a_run_goes_on_from_an_older_checkpoint(run_hybridnn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = len(HARM) // 8 + 3
    train = (*SMALL, "--epochs", str(epochs))
    every_step = ("--set", "training.checkpoint_every=1", "--set", f"training.keep={8 * epochs}")
    assert run_hybridnn(*train, "--out", "uninterrupted")[0] == 0

    def on_epoch_end(view: TrainView, trainer: Any, record: Any) -> None:
        if record.epoch == epochs - 1:
            raise RuntimeError("the plug was pulled")

    with monkeypatch.context() as patch:
        patch.setattr(TrainView, "on_epoch_end", on_epoch_end)
        with pytest.raises(RuntimeError, match="plug"):
            run_hybridnn(*train, *every_step, "--out", RUN)
    newest: list[Path] = []
    while (found := sorted(Path(RUN, "checkpoints").iterdir(), reverse=True)) != newest:
        newest = found
        time.sleep(deadline(0.5))  # the last one may still be written
    assert len(newest) > len(HARM)
    for damage, checkpoint in zip(HARM, newest, strict=False):
        damage(checkpoint)
    code, _, err = run_hybridnn("train", "--resume", RUN, "-q")
    assert code == 0, err
    named = [line for line in err.splitlines() if "skipped" in line]
    for checkpoint in newest[: len(HARM)]:
        assert len([line for line in named if checkpoint.name in line]) == 1, checkpoint
    assert len(named) == len(HARM)
    assert_same_weights(RUN, "uninterrupted")
