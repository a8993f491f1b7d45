"""Event files for TensorBoard, which has to be installed: losses, metrics, learning rate and speed of a run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hybridnn.errors import SettingError
from hybridnn.runs.run_files import read_records
from hybridnn.training.callbacks import Callback
from hybridnn.training.records import EpochRecord, StepRecord
from hybridnn.training.trained_network import TrainedNetwork

FOLDER = "tensorboard"


def require_tensorboard() -> None:
    """Raise `SettingError` unless TensorBoard is installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise SettingError("output.tensorboard", True, "needs the package tensorboard: pip install tensorboard")


class TensorBoardLog(Callback):
    """Writes scalars over the number of updates to a folder of the run.

    The history of a resumed run is written again, and earlier files are removed: these may have steps after the
    checkpoint from which the run is resumed.

    Parameters
    ----------
    folder : Path or None
        Run folder; None on ranks other than 0, which write nothing.
    evaluated : str
        Split on which epochs are evaluated, which names the curves.
    """

    def __init__(self, folder: Path | None, evaluated: str) -> None:
        self._folder, self._evaluated = folder, evaluated
        self._writer: Any = None

    def on_train_begin(self, trainer: TrainedNetwork) -> None:
        """Write the history of the run so far."""
        if self._folder is None:
            return
        from tensorboard.summary import Writer

        for path in (self._folder / FOLDER).glob("events.out.tfevents.*"):
            path.unlink()
        self._writer = Writer(str(self._folder / FOLDER))
        for record in read_records(self._folder)[0]:
            if isinstance(record, StepRecord):
                self.on_train_batch_end(trainer, record)
            elif isinstance(record, EpochRecord):
                self.on_epoch_end(trainer, record)

    def on_train_batch_end(self, trainer: TrainedNetwork, record: StepRecord) -> None:
        """Add a logged step."""
        if self._writer is not None:
            self._writer.add_scalar("loss/minibatch", record.train_loss, record.step)

    def on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:
        """Add an epoch."""
        if self._writer is None:
            return
        values = {
            "loss/train": record.train_loss,
            f"loss/{self._evaluated}": record.validation_loss,
            f"accuracy/{self._evaluated}": record.validation_accuracy,
            f"r2/{self._evaluated}": record.validation_r2,
            "learning rate": record.learning_rate,
            "samples per second": record.samples_per_second,
        }
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, record.step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left, also after an error."""
        if self._writer is not None:
            self._writer.close()
