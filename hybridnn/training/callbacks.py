"""Callbacks for `Trainer.fit`: early stopping, a learning rate that falls on a plateau, and the progress bar."""

from __future__ import annotations

import os
import re
import sys
from html import escape
from importlib import import_module
from math import inf, isfinite
from shutil import get_terminal_size
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hybridnn.comm.mpi import detect_launch
from hybridnn.errors import SettingError
from hybridnn.nn.kernels import HostArray
from hybridnn.training.records import MONITORS, losses_text
from hybridnn.training.trained_network import Callback
from hybridnn.utils.checks import require_choice, require_number, require_type, require_whole, with_advice

if TYPE_CHECKING:
    from hybridnn.training.records import EpochRecord
    from hybridnn.training.trained_network import TrainedNetwork

CELLS = 20  # of the bar in a terminal
REFRESH_SECONDS = 0.1  # least time between two updates
ADVICE_ON_MONITORS = {"mode": "the monitor says whether more is better", "start_from_epoch": "there is no such option"}


class _Monitor(Callback):
    """Follows the best value of a monitor, and counts the evaluated epochs since then."""

    def __init__(self, monitor: str, patience: int, min_delta: float) -> None:
        if isinstance(monitor, str):
            monitor = "train_loss" if monitor == "loss" else re.sub("^val_", "validation_", monitor)
        self.monitor = require_choice("monitor", monitor, MONITORS)
        self.patience = require_whole("patience", patience, 1)
        self.min_delta = require_number("min_delta", min_delta, at_least=0)
        self._begin()

    def _begin(self) -> None:
        self.best_epoch = self._without = 0
        self.best = -inf * MONITORS[self.monitor]

    def on_train_begin(self, trainer: TrainedNetwork) -> None:
        """Forget an earlier training, and refuse one without the monitored value."""
        if self.monitor != "train_loss" and not trainer.has_validation:
            allowed = "the training has no such values: give fit validation samples, or monitor 'train_loss'"
            raise SettingError("monitor", self.monitor, allowed)
        self._begin()

    def _is_better(self, record: EpochRecord) -> bool | None:
        """Whether an epoch is the best one so far; None for one that was not evaluated."""
        value = record.monitored(self.monitor)
        if value is None:
            return None
        sign = MONITORS[self.monitor]
        if not self.best_epoch or (isfinite(value) and sign * (value - self.best) > self.min_delta):
            self.best, self.best_epoch, self._without = value, record.epoch, 0
            return True
        self._without += 1
        return False


class EarlyStopping(_Monitor):
    """Ends a training when a monitored value has not improved for some evaluated epochs.

    Parameters
    ----------
    monitor : str
        ``"validation_loss"``, ``"validation_accuracy"``, ``"validation_r2"``, ``"validation_roc_auc"``,
        ``"validation_average_precision"`` or ``"train_loss"``.
        Attribute of `EpochRecord`, or its name in Keras, ``"val_loss"`` or ``"loss"``. Epochs without an evaluation are
        left out. If an evaluated epoch does not have it, the training ends with a `SettingError`.
    patience : int
        Evaluated epochs without an improvement, after which the training ends.
    min_delta : float
        Least change that counts as an improvement.
    restore_best_weights : bool
        Whether the weights at the end are those of the best epoch, also if all epochs were trained.

    Attributes
    ----------
    best_epoch : int
        Epoch with the best value; 0 before the first one.
    best : float
        Its value.
    stopped_epoch : int
        Epoch after which the training ended; 0 if it did not end early.
    """

    @with_advice(ADVICE_ON_MONITORS)
    def __init__(
        self,
        monitor: str = "validation_loss",
        patience: int = 10,
        min_delta: float = 0.0,
        *,
        restore_best_weights: bool = True,
    ) -> None:
        self.restore_best_weights = require_type("restore_best_weights", restore_best_weights, bool)
        super().__init__(monitor, patience, min_delta)

    def _begin(self) -> None:
        super()._begin()
        self.stopped_epoch = 0
        self._weights: dict[str, HostArray] | None = None

    def on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:
        """Compare the epoch with the best one."""
        is_better = self._is_better(record)
        if is_better and self.stopped_epoch:  # an epoch before, since the last drain of the pipeline
            self.stopped_epoch, trainer.stop_training = 0, False
        if is_better and self.restore_best_weights:
            self._weights = trainer.weights()
        if is_better is False and self._without >= self.patience:
            self.stopped_epoch, trainer.stop_training = record.epoch, True

    def on_train_end(self, trainer: TrainedNetwork) -> None:
        """Restore the weights of the best epoch."""
        if self._weights is not None:
            trainer.load_weights(self._weights)
            self._weights = None


class ReduceLROnPlateau(_Monitor):
    """Multiplies the learning rate when a monitored value has not improved for some evaluated epochs.

    Parameters
    ----------
    monitor, patience, min_delta
        As in `EarlyStopping`; so are the attributes `best` and `best_epoch`.
    factor : float
        Of the rate, between 0 and 1; see `Trainer.set_learning_rate`.
    """

    @with_advice(ADVICE_ON_MONITORS)
    def __init__(
        self, monitor: str = "validation_loss", factor: float = 0.1, patience: int = 10, *, min_delta: float = 1e-4
    ) -> None:
        self.factor = require_number("factor", factor, above=0, below=1)
        super().__init__(monitor, patience, min_delta)

    def on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:
        """Compare the epoch with the best one."""
        if self._is_better(record) is False and self._without >= self.patience:
            self._without = 0
            trainer.set_learning_rate(trainer.optimizer.lr * self.factor)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


class ProgressBar(Callback):
    """Shows epochs and losses while `Trainer.fit` runs, on rank 0.

    A terminal or a notebook shows one line, which is updated in place; a file, or a terminal below ``mpirun`` or
    ``srun``, gets a line for every epoch.

    Parameters
    ----------
    epochs : int
        Epochs of the training.
    """

    @with_advice({})
    def __init__(self, epochs: int) -> None:
        self.epochs = require_whole("epochs", epochs, 1)
        self._begin()

    def _begin(self) -> None:
        self._done, self._text = 0, f"epoch 0/{self.epochs}"
        self._started, self._shown_at = perf_counter(), 0.0
        self._handle: Any = None  # of the output in a notebook

    def on_train_begin(self, trainer: TrainedNetwork) -> None:
        """Show the bar without epochs."""
        self._begin()
        self._show(trainer)

    def on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:
        """Advance the bar."""
        self._done += 1
        self._text = f"epoch {self._done}/{self.epochs}, {losses_text(record)}"
        left = (perf_counter() - self._started) / self._done * (self.epochs - self._done)
        if not _updates_in_place():
            if trainer.grid.rank == 0:
                print(self._text, flush=True)
        elif perf_counter() - self._shown_at >= REFRESH_SECONDS:
            self._show(trainer, f", {left:.0f} s left")

    def on_train_end(self, trainer: TrainedNetwork) -> None:
        """Leave the last state of the bar."""
        self._show(trainer, end="\n")

    def _show(self, trainer: TrainedNetwork, more: str = "", end: str = "") -> None:
        if trainer.grid.rank != 0 or not _updates_in_place():
            return
        self._shown_at = perf_counter()
        text = self._text + more
        if in_notebook():
            bar = f'<progress value="{self._done}" max="{self.epochs}"></progress>'
            bundle = {"text/plain": text, "text/html": f"{bar} {escape(text)}"}
            if self._handle is None:  # the bar is shown below the cell, and updated there
                display: Any = import_module("IPython.display").display  # which has no types
                self._handle = display(bundle, raw=True, display_id=True)
            else:
                self._handle.update(bundle, raw=True)
            return
        filled = CELLS * min(self._done, self.epochs) // self.epochs
        line = f"{'━' * filled}{'─' * (CELLS - filled)} {text}"
        print(f"\r\033[K{line[: get_terminal_size().columns - 1]}", end=end, flush=True)


def _updates_in_place() -> bool:
    """Whether the output is a notebook or a terminal; launchers forward whole lines of a rank."""
    return in_notebook() or (sys.stdout.isatty() and detect_launch(os.environ) is None)
