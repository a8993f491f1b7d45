"""The settings of a run: what may be set, the defaults, and which values are allowed.

Every section of the settings file is one frozen model. `settings_from` is the way in: it turns whatever is wrong into
one `SettingError` that names the setting, the value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from hybridnn.settings_errors import refused, setting_error
from hybridnn.settings_types import (
    AtLeastZero,
    Count,
    Counts,
    Interval,
    Positive,
    Section,
    Seed,
    Text,
    Texts,
)
from hybridnn.training.settings_device import DeviceSettings
from hybridnn.training.settings_optimizer import OptimizerSettings, ScheduleSettings
from hybridnn.training.settings_parallel import ParallelSettings

__all__ = [
    "DataSettings",
    "DeviceSettings",
    "ModelSettings",
    "OptimizerSettings",
    "OutputSettings",
    "ParallelSettings",
    "ScheduleSettings",
    "Settings",
    "SyntheticSettings",
    "TrainingSettings",
    "settings_from",
]


class SyntheticSettings(Section):
    """``[data.synthetic]``: size and task of generated data."""

    task: Literal["regression", "classification"] = "regression"
    samples: Count = 10_000
    test_samples: Count = 2_000
    inputs: Count = 16
    outputs: Count = 2
    noise: AtLeastZero = 0.1
    seed: Seed = 0


class DataSettings(Section):
    """``[data]``: a named data set or a file of the user's, and how it reaches the ranks.

    Attributes
    ----------
    name : str or None
        A name of the catalogue or ``"synthetic"``; ``"digits"`` unless `file` is given, then None.
    file : str or None
        A ``.npz`` or ``.csv`` file.
    targets : tuple of str
        The target columns of a ``.csv`` file.
    inputs : tuple of str
        The input columns of a ``.csv`` file, in order; without any, all that are no targets. A run keeps their names
        in its ``config.toml``.
    features : str
        ``"paper"`` takes the columns that the papers used instead of all.
    rows : int or None
        Take only the first `rows` samples where the data set allows it.
    standardize : bool
        Shift and scale by the statistics of the training samples.
    test_fraction : float
        Part of the samples kept for testing where the data has no test part of its own.
    distribution : str
        How a minibatch reaches the ranks.
    """

    name: Text | None = None
    file: Text | None = None
    targets: Texts = ()
    inputs: Texts = ()
    features: Literal["all", "paper"] = "all"
    rows: Count | None = None
    standardize: bool = True
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    distribution: Literal["local", "scatter", "scatter-broadcast"] = "local"
    synthetic: SyntheticSettings = SyntheticSettings()

    def foreign_keys(self) -> frozenset[str]:
        """``[data.synthetic]`` for data that is not generated, catalogue keys for a file and the reverse."""
        other = {"features", "rows"} if self.file is not None else {"targets", "inputs"}
        return frozenset(other if self.name == "synthetic" else {*other, "synthetic"})

    @model_validator(mode="before")
    @classmethod
    def _digits_unless_a_file_is_given(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("name") is None and given.get("file") is None:
            return {**given, "name": "digits"}
        return given

    @model_validator(mode="after")
    def _one_source(self) -> DataSettings:
        if self.name is not None and self.file is not None:
            raise refused("file", self.file, f"give either data.name (now {self.name!r}) or data.file, not both")
        self.require_no_foreign_key(f"file = {self.file!r}" if self.file is not None else f"name = {self.name!r}")
        return self


class ModelSettings(Section):
    """``[model]``: the multi-layer perceptron; its first and last sizes come from the data."""

    hidden: Counts = (256, 256)
    activation: Literal["relu", "identity", "tanh", "sigmoid", "selu"] = "relu"
    residual: bool = False
    loss: Literal["auto", "mse", "cross_entropy"] = "auto"
    initializer: Literal["auto", "he", "glorot", "lecun"] = "auto"
    init_from: Text | None = None


class TrainingSettings(Section):
    """``[training]``: how long, in what portions, in which precision, and how often it is saved.

    Attributes
    ----------
    evaluate_every : int
        Epochs between two evaluations.
    check_collectives : bool
        Before every collective, compare what the ranks are about to do.
    checkpoint_every : int, str or None
        Steps between two checkpoints, or seconds, as ``"90 s"``; an asynchronous pipeline method writes them at the
        next end of an epoch.
    keep : int
        Checkpoints that are kept, the newest ones.
    checkpoint_async : bool
        Copy the arrays and write them beside the training.
    keep_best : bool
        Write the weights of every evaluated epoch that is better than those before.
    """

    epochs: Count = 10
    batch_size: Count = 100
    shuffle: bool = True
    seed: Seed = 0
    dtype: Literal["float32", "float64"] = "float32"
    clip_norm: Positive | None = None
    evaluate_every: Count = 1
    check_collectives: bool = False
    checkpoint_every: Interval | None = None
    keep: Count = 3
    checkpoint_async: bool = True
    keep_best: bool = True


class OutputSettings(Section):
    """``[output]``: what a run leaves behind.

    Attributes
    ----------
    folder : str or None
        The run folder; None makes a new one below ``runs/``.
    log_every : int
        Steps between two step records.
    trace : bool
        Write what every rank did when.
    stall_seconds : float
        End the job where a rank finishes nothing for so long, and say who did not arrive; 0 waits for ever.
    """

    folder: Text | None = None
    log_every: Count = 10
    trace: bool = False
    stall_seconds: AtLeastZero = 60.0


class Settings(Section):
    """All settings of a run, one attribute per section."""

    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    parallel: ParallelSettings = ParallelSettings()
    device: DeviceSettings = DeviceSettings()
    output: OutputSettings = OutputSettings()

    @model_validator(mode="after")
    def _warmup_ends_before_training(self) -> Settings:
        if self.schedule.warmup_epochs >= self.training.epochs:
            limit = f"must be less than training.epochs = {self.training.epochs}"
            raise refused("schedule.warmup_epochs", self.schedule.warmup_epochs, limit)
        return self


def settings_from(values: Mapping[str, Any]) -> Settings:
    """Check plain values, as read from a settings file, and fill in the defaults.

    Parameters
    ----------
    values : mapping
        ``{section: {key: value}}``; what is absent gets its default.

    Raises
    ------
    SettingError
        One line that names the first wrong setting, its value and what is allowed.
    """
    try:
        return Settings.model_validate(dict(values))
    except ValidationError as error:
        raise setting_error(error, _known_names(Settings)) from None


def _known_names(section: type[BaseModel], prefix: str = "") -> tuple[str, ...]:
    names: list[str] = []
    for key, info in section.model_fields.items():
        names.append(prefix + key)
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            names.extend(_known_names(info.annotation, f"{prefix}{key}."))
    return tuple(names)
