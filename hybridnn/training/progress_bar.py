"""A line that shows how far a training is, in terminals, notebooks and files."""

from __future__ import annotations

import sys
from html import escape
from importlib import import_module
from shutil import get_terminal_size
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hybridnn.training.records import losses_text
from hybridnn.training.trained_network import Callback

if TYPE_CHECKING:
    from hybridnn.training.records import EpochRecord
    from hybridnn.training.trained_network import TrainedNetwork

CELLS = 20  # of the bar in a terminal
REFRESH_SECONDS = 0.1  # least time between two updates


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


class ProgressBar(Callback):
    """Shows epochs and losses while `Trainer.fit` runs, on rank 0.

    A terminal or a notebook shows one line, which is updated in place; a file gets a line for every epoch.

    Parameters
    ----------
    epochs : int
        Epochs of the training.
    """

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
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
            self._display({"text/plain": text, "text/html": f"{bar} {escape(text)}"})
            return
        filled = CELLS * min(self._done, self.epochs) // self.epochs
        line = f"{'━' * filled}{'─' * (CELLS - filled)} {text}"
        print(f"\r\033[K{line[: get_terminal_size().columns - 1]}", end=end, flush=True)

    def _display(self, bundle: dict[str, str]) -> None:
        """Show the bar below the cell, or update it there."""
        if self._handle is None:
            display: Any = import_module("IPython.display").display  # which has no types
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def _updates_in_place() -> bool:
    """Whether the output is a notebook or a terminal."""
    return in_notebook() or sys.stdout.isatty()
