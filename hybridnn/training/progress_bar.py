"""A bar that shows how far a training is, in terminals and notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridnn.training.callbacks import Callback

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from hybridnn.training.records import EpochRecord
    from hybridnn.training.trained_network import TrainedNetwork


class ProgressBar(Callback):
    """Shows epochs and losses while `Trainer.fit` runs, on rank 0, on a line that is updated in place.

    Where the output is neither a terminal nor a notebook, nothing is shown.

    Parameters
    ----------
    epochs : int
        Epochs of the training.
    console : rich.console.Console, optional
    """

    def __init__(self, epochs: int, console: Console | None = None) -> None:
        self.epochs, self._console = epochs, console
        self._bar: Progress | None = None

    def on_train_begin(self, trainer: TrainedNetwork) -> None:
        """Show the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = self._console or Console()
        if trainer.grid.rank != 0 or not (console.is_terminal or console.is_jupyter):
            return
        columns = (TextColumn("epoch"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console)
        self._bar.add_task("", total=self.epochs)
        self._bar.start()

    def on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:
        """Advance the bar."""
        if self._bar is None:
            return
        text = f"train loss {record.train_loss:.4g}"
        if record.metric is not None:
            text += f", test {'accuracy' if record.test_accuracy is not None else 'R²'} {record.metric:.4g}"
        self._bar.update(self._bar.task_ids[0], advance=1, description=text)

    def on_train_end(self, trainer: TrainedNetwork) -> None:
        """Leave the last state of the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
