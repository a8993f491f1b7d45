"""Event files for TensorBoard, which has to be installed: losses, metrics, learning rate and speed of a run."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

from hybridnn.errors import SettingError
from hybridnn.training.records import EpochRecord, Record, StepRecord

FOLDER = "tensorboard"


def require_tensorboard() -> None:
    """Raise `SettingError` unless TensorBoard is installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise SettingError("output.tensorboard", True, "needs the package tensorboard: pip install tensorboard")


class TensorBoardLog:
    """Writes scalars over the number of updates to a folder of the run.

    Parameters
    ----------
    folder : Path
        Run folder.
    evaluated : str
        Split on which epochs are evaluated, which names the curves.
    records : iterable of Record
        History of the run so far. Its steps and epochs are written again, and earlier files removed: these may have
        steps after the checkpoint from which the run is resumed.
    """

    def __init__(self, folder: Path, evaluated: str, records: Iterable[Record]) -> None:
        from tensorboard.summary import Writer

        for path in (folder / FOLDER).glob("events.out.tfevents.*"):
            path.unlink()
        self._writer, self._evaluated = Writer(str(folder / FOLDER)), evaluated
        for record in records:
            if isinstance(record, StepRecord):
                self.step(record)
            elif isinstance(record, EpochRecord):
                self.epoch(record)

    def step(self, record: StepRecord) -> None:
        """Add a logged step."""
        self._writer.add_scalar("loss/minibatch", record.train_loss, record.step)

    def epoch(self, record: EpochRecord) -> None:
        """Add an epoch."""
        values = {
            "loss/train": record.train_loss,
            f"loss/{self._evaluated}": record.test_loss,
            f"accuracy/{self._evaluated}": record.test_accuracy,
            f"r2/{self._evaluated}": record.test_r2,
            "learning rate": record.learning_rate,
            "samples per second": record.samples_per_second,
        }
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, record.step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
