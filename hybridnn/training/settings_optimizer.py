"""The ``[optimizer]`` and ``[schedule]`` sections: the update rule, and its rate as training goes on."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from hybridnn.settings_errors import refused
from hybridnn.settings_types import AtLeastZero, BelowOne, Betas, Counts, Fraction, Positive, Section

__all__ = ["OptimizerSettings", "ScheduleSettings"]

ADAM_KEYS = frozenset({"betas", "eps"})
SGD_KEYS = frozenset({"momentum", "dampening", "nesterov"})
FOREIGN_OPTIMIZER_KEYS = {"sgd": ADAM_KEYS, "adam": SGD_KEYS, "adamw": SGD_KEYS}

STEP_KEYS = frozenset({"milestones", "factor"})
DECAY_KEYS = frozenset({"warmup_epochs", "final_factor"})
FOREIGN_SCHEDULE_KEYS = {
    "constant": STEP_KEYS | DECAY_KEYS,
    "step": DECAY_KEYS,
    "warmup-linear": STEP_KEYS,
    "cosine": STEP_KEYS,
}


class OptimizerSettings(Section):
    """``[optimizer]``: the update rule, with PyTorch's meaning of every number.

    The default of `lr` is 0.005 for sgd and 0.001 for adam and adamw; that of `weight_decay` is 0.01 for adamw, else 0.
    """

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Positive = 0.005
    momentum: BelowOne = 0.9
    dampening: Fraction = 0.0
    nesterov: bool = False
    weight_decay: AtLeastZero = 0.0
    betas: Betas = (0.9, 0.999)
    eps: Positive = 1e-8

    def foreign_keys(self) -> frozenset[str]:
        """Keys of the other optimizers."""
        return FOREIGN_OPTIMIZER_KEYS[self.name]

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_optimizer(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        adaptive = given.get("name") in ("adam", "adamw")
        defaults = {
            "lr": 0.001 if adaptive else 0.005,
            "weight_decay": 0.01 if given.get("name") == "adamw" else 0.0,
        }
        return defaults | given

    @model_validator(mode="after")
    def _keys_agree(self) -> OptimizerSettings:
        self.require_no_foreign_key(f"name = {self.name!r}")
        if self.nesterov and not (self.momentum > 0 and self.dampening == 0):
            raise refused("nesterov", True, "needs momentum > 0 and dampening = 0")
        return self


class ScheduleSettings(Section):
    """``[schedule]``: factors on the learning rate as training goes on.

    Attributes
    ----------
    milestones : tuple of int
        Epochs after which ``step`` multiplies the rate by `factor`, increasing.
    factor : float
        Of ``step``.
    warmup_epochs : float
        Epochs in which ``warmup-linear`` and ``cosine`` raise the rate from zero; ``warmup-linear`` needs some.
    final_factor : float
        What ``warmup-linear`` and ``cosine`` end with, as a part of the base rate.
    """

    name: Literal["constant", "step", "warmup-linear", "cosine"] = "constant"
    milestones: Counts = ()
    factor: Positive = 0.1
    warmup_epochs: AtLeastZero = 0.0
    final_factor: Fraction = 0.0

    def foreign_keys(self) -> frozenset[str]:
        """Keys of the other schedules."""
        return FOREIGN_SCHEDULE_KEYS[self.name]

    @model_validator(mode="after")
    def _keys_agree(self) -> ScheduleSettings:
        self.require_no_foreign_key(f"name = {self.name!r}")
        if self.name == "step" and not self.milestones:
            raise refused("milestones", [], "name = 'step' needs at least one epoch, for example [5, 8]")
        if any(later <= earlier for earlier, later in zip(self.milestones, self.milestones[1:], strict=False)):
            raise refused("milestones", list(self.milestones), "must increase")
        if self.name == "warmup-linear" and self.warmup_epochs == 0:
            raise refused("warmup_epochs", self.warmup_epochs, "name = 'warmup-linear' needs a number above 0")
        return self
