"""TensorBoard's event files, read with TensorBoard's own reader, have the records of the run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridnn.checkpoints.writing import CheckpointWriter
from hybridnn.cli.train_view import TrainView
from hybridnn.training.records import EpochRecord
from reference.command_line import Run, error_line, records_of

SMALL = ("train", "--hidden", "8", "--epochs", "3", "--set", "output.log_every=5", "--out", "run", "-q")
BOARD = ("--set", "output.tensorboard=true")


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Curves of a folder: pairs of a step and a value."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    to_array = pytest.importorskip("tensorboard.util.tensor_util").make_ndarray
    events = reader.EventAccumulator(str(folder), size_guidance={"tensors": 0})  # all of them
    events.Reload()
    return {
        name: [(event.step, float(to_array(event.tensor_proto))) for event in events.Tensors(name)]
        for name in events.Tags()["tensors"]
    }


def curve(records: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(record["step"], pytest.approx(record[name], rel=1e-6)) for record in records]


@pytest.mark.parametrize("ranks", [(), ("--in-process", "2")])
def test_events_are_the_records_of_the_run(run_hybridnn: Run, ranks: tuple[str, ...]) -> None:
    assert run_hybridnn(*SMALL, *BOARD, *ranks)[::2] == (0, "")
    found = scalars(Path("run/tensorboard"))
    epochs = records_of("run", "epoch")
    assert found == {
        "loss/minibatch": curve(records_of("run", "step"), "train_loss"),
        "loss/train": curve(epochs, "train_loss"),
        "loss/test": curve(epochs, "validation_loss"),
        "accuracy/test": curve(epochs, "validation_accuracy"),
        "learning rate": curve(epochs, "learning_rate"),
        "samples per second": curve(epochs, "samples_per_second"),
    }


@pytest.mark.parametrize("crashes", [False, True])
def test_events_of_a_resumed_run_are_those_of_its_history(
    run_hybridnn: Run, monkeypatch: pytest.MonkeyPatch, crashes: bool
) -> None:
    often = ("--set", "training.checkpoint_every=20")
    with monkeypatch.context() as broken:
        if crashes:

            def on_epoch_end(view: TrainView, trainer: object, record: EpochRecord) -> None:
                if record.epoch == 2:  # 10 steps after the checkpoint
                    raise RuntimeError("power failure")

            broken.setattr(TrainView, "on_epoch_end", on_epoch_end)
            broken.setattr(CheckpointWriter, "begin", CheckpointWriter.write)  # on disk before the next step
            with pytest.raises(RuntimeError, match="power"):
                run_hybridnn(*SMALL, *BOARD, *often)
        else:
            assert run_hybridnn(*SMALL, *BOARD)[0] == 0
    assert run_hybridnn("train", "--resume", "run", "--epochs", "5", "-q")[0] == 0
    found = scalars(Path("run/tensorboard"))
    assert found["loss/minibatch"] == curve(records_of("run", "step"), "train_loss")
    assert found["accuracy/test"] == curve(records_of("run", "epoch"), "validation_accuracy")
    assert [step for step, _ in found["loss/train"]] == [15, 30, 45, 60, 75]


def test_a_validation_split_names_its_curves_and_without_the_setting_there_are_none(run_hybridnn: Run) -> None:
    assert run_hybridnn(*SMALL)[0] == 0
    assert not Path("run/tensorboard").exists()
    assert run_hybridnn(*SMALL, *BOARD, "--set", "data.validation_fraction=0.2", "--out", "parts")[0] == 0
    assert {"loss/validation", "accuracy/validation"} <= set(scalars(Path("parts/tensorboard")))


def test_without_the_package_one_line_names_it(run_hybridnn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    find: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *args: None if name == "tensorboard" else find(name, *args)
    )
    for ranks in ((), ("--in-process", "2")):
        line = error_line(run_hybridnn(*SMALL, *BOARD, *ranks))
        assert line == "Error: output.tensorboard = True: needs the package tensorboard: pip install tensorboard"
    assert not Path("run").exists()
