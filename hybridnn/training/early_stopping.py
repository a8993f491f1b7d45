"""Early stopping, by the best epoch so far."""

from __future__ import annotations

import re
from math import inf, isfinite
from typing import TYPE_CHECKING

from hybridnn.errors import SettingError
from hybridnn.nn.kernels import HostArray
from hybridnn.training.records import MONITORS
from hybridnn.training.trained_network import Callback
from hybridnn.utils.checks import require_choice, require_number, require_whole

if TYPE_CHECKING:
    from hybridnn.training.records import EpochRecord
    from hybridnn.training.trained_network import TrainedNetwork


class EarlyStopping(Callback):
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

    def __init__(
        self,
        monitor: str = "validation_loss",
        patience: int = 10,
        min_delta: float = 0.0,
        *,
        restore_best_weights: bool = True,
    ) -> None:
        monitor = "train_loss" if monitor == "loss" else re.sub("^val_", "validation_", monitor)
        require_choice("monitor", monitor, MONITORS)
        require_whole("patience", patience, 1)
        require_number("min_delta", min_delta, at_least=0)
        self.monitor, self.patience, self.min_delta = monitor, patience, min_delta
        self.restore_best_weights = restore_best_weights
        self._begin()

    def _begin(self) -> None:
        self.best_epoch = self.stopped_epoch = self._without = 0
        self.best = -inf * MONITORS[self.monitor]
        self._weights: dict[str, HostArray] | None = None

    def on_train_begin(self, trainer: TrainedNetwork) -> None:
        """Forget an earlier training."""
        self._begin()

    def on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:
        """Compare the epoch with the best one."""
        value = record.monitored(self.monitor)
        if value is None:
            if record.validation_loss is None and record.epoch % trainer.config.evaluate_every == 0:
                allowed = "the training has no such values: give fit validation samples, or monitor 'train_loss'"
                raise SettingError("monitor", self.monitor, allowed)
            return
        sign = MONITORS[self.monitor]
        if not self.best_epoch or (isfinite(value) and sign * (value - self.best) > self.min_delta):
            self.best, self.best_epoch, self._without = value, record.epoch, 0
            if self.stopped_epoch:  # an epoch before, since the last drain of the pipeline
                self.stopped_epoch, trainer.stop_training = 0, False
            if self.restore_best_weights:
                self._weights = trainer.weights()
            return
        self._without += 1
        if self._without >= self.patience:
            self.stopped_epoch, trainer.stop_training = record.epoch, True

    def on_train_end(self, trainer: TrainedNetwork) -> None:
        """Restore the weights of the best epoch."""
        if self._weights is not None:
            trainer.load_weights(self._weights)
            self._weights = None
