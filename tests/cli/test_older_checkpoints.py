"""A run goes on from an older checkpoint where the newest ones are damaged, and names each that it passes over."""

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
from reference.command_line import Run, assert_same_weights
from reference.damaged_files import REPLACEMENTS, forge, replace

RUN = "run"
SMALL = (
    *("train", "--data", "synthetic", "--hidden", "9", "--batch-size", "25", "-q"),
    *("--set", "data.rows=200", "--set", "data.synthetic.test_samples=20"),
)
ARRAY = "layers.0.weight.npy"


def forged(field: str, value: Any) -> Callable[[Path], None]:
    return lambda checkpoint: forge(checkpoint / "manifest.json", field.split("/"), value)


def in_place_of(name: str, kind: str) -> Callable[[Path], object]:
    return lambda checkpoint: replace(checkpoint / name, kind)


def replace_text(path: Path, before: str, after: str) -> None:
    path.write_text(path.read_text().replace(before, after))


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
    replace_text(checkpoint / "manifest.json", "velocity", "speed")
    forged("slots", ["speed"])(checkpoint)


def empty_manifest(checkpoint: Path) -> None:
    """A manifest without content, whose digest is right."""
    path, sums = checkpoint / "manifest.json", checkpoint / "SHA256SUMS"
    before, after = (hashlib.sha256(data).hexdigest() for data in (path.read_bytes(), b""))
    path.write_bytes(b"")
    replace_text(sums, before, after)


FIELDS: dict[str, tuple[Any, ...]] = {
    "format_version": (10**6, 10**30, "1", 0.5, None, []),
    "origin": (None,),
    "origin/layout/method": ("", "no such method", None),
    "origin/layout/stages": ([], [[0, 0]]),
    "origin/layout/chunks": (0, -1),
    "progress": ([],),
    "progress/minibatches": (10**6, 2**62, -1),
    "progress/epoch": (0, 10**12),
    "progress/step": (-5, 10**40),
    "progress/samples": (7000, -20, float("nan")),
    "progress/loss_sum": ("much",),
    "slots": (["nothing"], None),
    "arrays": ({}, []),
}
ARRAY_FIELDS: dict[str, tuple[Any, ...]] = {
    "shape": ([10**12], [], [-1, 3], None),
    "dtype": ("object", "no dtype"),
    "bytes": (8 << 40, -1),
    "sha256": ("", "0" * 64),
}
"""Fields of a manifest and of an array in it, and wrong values; layers of stages only matter to stale methods."""

HARM: list[Callable[[Path], object]] = [
    *(in_place_of("", kind) for kind in ("a FIFO", "a link to itself", "a link to nothing")),
    lambda checkpoint: (replace(checkpoint, "nothing"), checkpoint.write_text("x")),
    lambda checkpoint: (replace(checkpoint, "nothing"), checkpoint.mkdir()),
    *(in_place_of(name, kind) for name in ("manifest.json", "SHA256SUMS", ARRAY) for kind in REPLACEMENTS),
    *(forged(field, value) for field, values in FIELDS.items() for value in values),
    *(forged(f"arrays/{ARRAY}/{field}", value) for field, values in ARRAY_FIELDS.items() for value in values),
    # Outside of the folder, too long, or with a NUL.
    *map(another_name, ("../../config.toml", "/dev/zero", "x" * 5000 + ".npy", "layers\0.npy", "", ".")),
    # The progress after an epoch, where that of the next one is expected.
    lambda checkpoint: (forged("progress/minibatches", 8)(checkpoint), forged("progress/samples", 200)(checkpoint)),
    forged("progress/step", 10**6),
    forged("slots", ["velocity", "speed"]),
    other_array(lambda array: array.T.copy()),
    other_array(lambda array: array.T.copy(), shape=True),  # an array of another network
    other_array(lambda array: array[:0]),
    other_slot,
    empty_manifest,
    lambda checkpoint: replace_text(checkpoint / "manifest.json", '"format_version": 1', '"format_version": 3'),
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
