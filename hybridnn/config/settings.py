"""Settings of a run: names, defaults and allowed values, one frozen pydantic model per section of the settings file.

`settings_from` checks plain values: it turns any error into one `SettingError` that names the setting, the value and
what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ValidationError, create_model, model_validator

import hybridnn.data
from hybridnn.data import Dataset, DatasetInfo, SyntheticSpec, TableEncoding, TableOptions, Task, split_indices
from hybridnn.data.table_file import Categories, Missing, checked_csv
from hybridnn.errors import SettingError
from hybridnn.nn.learning_rates import SCHEDULES, Constant, LearningRateSchedule
from hybridnn.nn.mlp import MLP, Activation, Initializer, Loss, resolve_loss
from hybridnn.nn.optimizers import SGD, Optimizer, installed_optimizers, optimizers
from hybridnn.parallel.grid import StageShapes, resolve_axes, resolve_stages
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.methods import METHODS, too_few_stages
from hybridnn.training.config import OPTIONS, PIPELINE_OPTIONS, SETTING_NAMES, DeviceOptions, TrainConfig
from hybridnn.training.records import MONITORS
from hybridnn.utils.checks import BelowOne, Count, OneOf, Seed, description, refused, type_hints
from hybridnn.utils.files import FileError, LargeIntegerError, parse_toml, read_toml
from hybridnn.utils.plugins import package_note
from hybridnn.utils.settings_models import (
    Counts,
    FieldsOf,
    FilePath,
    Interval,
    Section,
    Text,
    Texts,
    is_model,
    list_as_tuple,
    nearest_key,
    setting_error,
)
from hybridnn.utils.text import shown_path

TABLE_OPTIONS = tuple(option.name for option in fields(TableOptions))
TABLE_KEYS = frozenset({"targets", "inputs", *TABLE_OPTIONS})
OF_TABLES = {name: description(kind) for name, kind in type_hints(TableOptions).items()}
"""Descriptions of the options of tables."""

SectionType = TypeVar("SectionType", bound=type[Section])


def with_options(name: str) -> Callable[[SectionType], SectionType]:
    """Class decorator: add the options of `TrainConfig` in a section of settings files as fields."""
    hints = type_hints(TrainConfig)
    keys = [key for key, item in OPTIONS.items() if item.metadata["section"] == name]

    def add(section: SectionType) -> SectionType:
        fields: dict[str, Any] = {key: (hints[key], OPTIONS[key].default) for key in keys}
        made = create_model(section.__name__, __base__=section, __doc__=section.__doc__, **fields)
        made.__module__ = section.__module__
        return cast("SectionType", made)

    return add


class StageSettings(Section):
    """One stage of ``parallel.stages``: its batch and model ranks."""

    batch: Count = 1
    model: Count = 1


@with_options("parallel")
class ParallelSettings(Section):
    """``[parallel]``: the process grid and the pipeline; without `batch` all remaining ranks are batch ranks.

    A method that is set without `pipeline` sets the number of stages: see `with_stages`.
    """

    pipeline: Annotated[Count, "Pipeline stages; with a method alone: all that batch and model leave."] = 1
    batch: Annotated[Count | None, "Ranks that share the samples; none: all that pipeline and model leave."] = None
    model: Annotated[Count, "Ranks that every layer is split over."] = 1
    stages: Annotated[
        tuple[StageSettings, ...],
        BeforeValidator(list_as_tuple),
        "Ranks of every stage, as `[{batch = 2}, {model = 2}]`, in place of pipeline, batch and model.",
    ] = ()
    auto: Annotated[bool, "The fastest exact layout that the machine file predicts. What is set is kept."] = False

    def foreign_keys(self) -> frozenset[str]:
        """Keys that `stages` excludes, or that have no effect on one stage."""
        if self.stages:
            return frozenset({"pipeline", "batch", "model"})
        return frozenset({"stages"}) | (PIPELINE_OPTIONS if self.pipeline == 1 else frozenset())

    @model_validator(mode="after")
    def _keys_agree(self) -> ParallelSettings:
        if self.stages and (given := sorted({"pipeline", "batch", "model"} & self.model_fields_set)):
            value: Any = getattr(self, given[0])
            raise refused(given[0], value, "does not belong to stages, which says how many ranks each stage has")
        return self


def with_stages(parallel: ParallelSettings, ranks: int) -> ParallelSettings:
    """Set the number of stages if a method is set without it: all ranks that the other axes leave.

    `SettingError` if one stage is left, and the method is asynchronous.
    """
    given = parallel.model_fields_set
    if "method" not in given or "pipeline" in given or parallel.stages or parallel.auto:
        return parallel
    stages = max(1, ranks // ((parallel.batch or 1) * parallel.model))
    if stages == 1 and not METHODS[parallel.method].exact:
        raise too_few_stages(parallel.method)
    return parallel.model_copy(update={"pipeline": stages})


def stage_shapes(parallel: ParallelSettings, ranks: int) -> StageShapes:
    """Batch and model ranks of every stage on `ranks` ranks; `SettingError` or `GridError` if they do not fit."""
    parallel = with_stages(parallel, ranks)
    if parallel.stages:
        return resolve_stages(ranks, [(stage.batch, stage.model) for stage in parallel.stages])
    pipeline, batch, model = resolve_axes(ranks, parallel.pipeline, parallel.batch, parallel.model)
    return ((batch, model),) * pipeline


def keys_of_layout(layout: Layout) -> dict[str, Any]:
    """Keys and values of ``[parallel]`` for a layout whose stages have one shape."""
    batch, model = layout.stages[0]
    keys: dict[str, Any] = {
        "pipeline": len(layout.stages),
        "batch": batch,
        "model": model,
        "model_split": layout.model_split,
    }
    if model > 1 or (batch > 1 and not layout.shared_replicas):
        keys["overlap"] = layout.overlap  # without effect elsewhere
    if len(layout.stages) == 1:
        return keys
    return keys | {
        "method": layout.method,
        "microbatches": layout.microbatches,
        "chunks": layout.chunks,
        "partition": list(layout.layers),
        "order": list(layout.order) or None,
    }


def _csv(given: Any) -> Any:
    """The keys of ``[data.csv]``, which pandas checks."""
    try:
        return None if given is None else checked_csv(given)
    except SettingError as error:
        raise refused(error.setting.removeprefix("data.csv").lstrip("."), error.value, error.allowed) from None


@with_options("data")
class DataSettings(Section):
    """``[data]``: a named data set or a file, and its distribution to the ranks."""

    name: Annotated[Text | None, "Data set that `hybridnn data list` shows, or `synthetic`."] = None
    file: Annotated[FilePath | None, "A .csv, .parquet or .npz file, in place of a data set."] = None
    targets: Annotated[Texts, "Target columns, required for a table."] = ()
    inputs: Annotated[Texts, "Input columns of a table; none: all others."] = ()
    csv: Annotated[dict[str, Any] | None, BeforeValidator(_csv), OF_TABLES["csv"]] = None
    text_columns: Annotated[Texts, OF_TABLES["text_columns"]] = ()
    drop_columns: Annotated[Texts, OF_TABLES["drop_columns"]] = ()
    missing: Annotated[Missing, OF_TABLES["missing"]] = TableOptions.missing
    missing_targets: Annotated[Literal["error", "drop"], OF_TABLES["missing_targets"]] = TableOptions.missing_targets
    categories: Annotated[Categories, OF_TABLES["categories"]] = TableOptions.categories
    rows: Annotated[Count | None, "Only the first training samples; none: all, 10,000 of synthetic."] = None
    standardize: Annotated[bool, "Shift and scale by the statistics of the training samples."] = True
    test_fraction: Annotated[BelowOne, "Test samples, where the data have no test split; 0 trains on all."] = 0.2
    split_seed: Annotated[Seed | None, "Seed of test and validation samples, in place of training.seed."] = None
    validation_fraction: Annotated[
        BelowOne, "Training samples on which epochs are evaluated, in place of the test samples."
    ] = 0.0
    synthetic: Annotated[SyntheticSpec, FieldsOf(SyntheticSpec)] = SyntheticSpec()

    def foreign_keys(self) -> frozenset[str]:
        """``[data.synthetic]`` for other data, keys of the catalogue for a file, keys of files for the catalogue."""
        other = {"rows"} if self.file is not None else TABLE_KEYS
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
        if self.name == "synthetic" and self.synthetic.test_samples == 0:
            raise refused("synthetic.test_samples", 0, "must be at least 1")
        return self

    def load(self, task: Task | None = None, seed: int = 0, encoding: TableEncoding | None = None) -> Dataset:
        """Load the data; generated data are generated when used.

        The `task` of a user's file stands in place of what its targets say: whole numbers are labels otherwise. `seed`
        chooses the test samples, which take no part in the means that replace missing values; `encoding` is as for
        `load_file`.
        """
        if self.file is not None:
            return hybridnn.data.load_file(
                self.file,
                self.targets,
                inputs=self.inputs,
                task=task,
                options=self.table_options,
                encoding=encoding,
                training=partial(self._training_indices, seed=seed),
                warns=False,  # they are shown as the header of a run is
            )
        return hybridnn.data.load_dataset(**self._in_catalogue())

    def _training_indices(self, samples: int, seed: int) -> NDArray[np.int64]:
        """Indices of the training samples among all samples of a table."""
        train = split_indices(samples, self.test_fraction, seed)[0]
        return train[split_indices(len(train), self.validation_fraction, seed, "validation")[0]]

    @property
    def table_options(self) -> TableOptions:
        """How a table is read."""
        return TableOptions(**{name: getattr(self, name) for name in TABLE_OPTIONS} | {"csv": self.csv or {}})

    def describe(self, task: Task | None = None) -> DatasetInfo | Dataset:
        """Describe the data; only a user's file is loaded for that."""
        return self.load(task) if self.file is not None else hybridnn.data.describe_dataset(**self._in_catalogue())

    def _in_catalogue(self) -> dict[str, Any]:
        synthetic = self.synthetic if self.name == "synthetic" else None
        return {"name": self.name, "rows": self.rows, "synthetic": synthetic}


class ModelSettings(Section):
    """``[model]``: the multi-layer perceptron; its numbers of inputs and outputs follow from the data."""

    hidden: Annotated[Counts, "Widths of the hidden layers."] = (256, 256)
    activation: Annotated[Activation, "Function of the hidden layers."] = "relu"
    residual: Annotated[bool, "Hidden layers of equal width compute h + f(h)."] = False
    loss: Annotated[Loss, "The loss; auto: `cross_entropy` for labels, `mse` for numbers."] = "auto"
    initializer: Annotated[
        Initializer, "Initial weights; auto: `he` for relu, `lecun` for selu, `glorot` for the others."
    ] = "auto"

    @property
    def task(self) -> Task | None:
        """The task that the loss implies for a user's file, whose whole numbers are labels otherwise; None for none."""
        tasks: dict[str, Task] = {"mse": "regression", "cross_entropy": "classification"}
        return tasks.get(self.loss)

    def make(self, features: int, outputs: int, task: str) -> MLP:
        """The network for data of these shapes; `SettingError` if its loss does not fit the task."""
        model = MLP(
            [features, *self.hidden, outputs],
            self.activation,
            residual=self.residual,
            loss=self.loss,
            initializer=self.initializer,
        )
        resolve_loss(model, task)
        return model


@with_options("training")
class TrainingSettings(Section):
    """``[training]``: duration, minibatches, precision, evaluation and checkpoints."""

    epochs: Annotated[Count, "Passes over the training samples."] = 10
    checkpoint_every: Annotated[
        Interval | None,
        "Steps between two checkpoints, or seconds. An asynchronous method writes them when the pipeline drains next.",
    ] = None
    keep: Annotated[Count, "Newest checkpoints that are kept, fewer on a small disk."] = 3
    patience: Annotated[
        Count | None,
        "Evaluated epochs without a better one on the validation samples, after which the training ends. The weights "
        "are then those of the best epoch.",
    ] = None
    monitor: Annotated[str, OneOf(("auto", *MONITORS)), "Value that makes an epoch better; auto: accuracy or R²."] = (
        "auto"
    )


@with_options("output")
class OutputSettings(Section):
    """``[output]``: run folder, by default a new one in ``runs/``, logging, trace, stalls."""

    folder: Annotated[FilePath | None, "Run folder; none: a new one in runs/."] = None
    trace: Annotated[bool, "Write trace.json, the instructions of all ranks."] = False


class Settings(Section):
    """All settings of a run, one attribute per section."""

    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    optimizer: Annotated[Optimizer, FieldsOf(*optimizers(), others=installed_optimizers), "Update rule."] = SGD()
    schedule: Annotated[LearningRateSchedule, FieldsOf(*SCHEDULES), "Learning rate by epoch."] = Constant()
    parallel: ParallelSettings = ParallelSettings()
    device: Annotated[DeviceOptions, FieldsOf(DeviceOptions)] = DeviceOptions()
    output: OutputSettings = OutputSettings()

    @model_validator(mode="after")
    def _choice_has_a_validation_split(self) -> Settings:
        for name, unset in (("patience", None), ("monitor", "auto")):
            value = getattr(self.training, name)
            if value != unset and not self.data.validation_fraction:
                raise refused(f"training.{name}", value, "needs data.validation_fraction above 0")
        return self

    @model_validator(mode="after")
    def _warmup_ends_before_training(self) -> Settings:
        warmup = getattr(self.schedule, "warmup_epochs", 0.0)
        if warmup >= self.training.epochs:
            limit = f"must be less than training.epochs = {self.training.epochs}"
            raise refused("schedule.warmup_epochs", warmup, limit)
        return self

    @property
    def split_seed(self) -> int:
        """The seed by which test and validation samples are chosen."""
        return self.training.seed if self.data.split_seed is None else self.data.split_seed

    def train_config(self, model: MLP) -> TrainConfig:
        """The configuration of a training of `model`."""
        options = {key: getattr(getattr(self, name.partition(".")[0]), key) for key, name in SETTING_NAMES.items()}
        return TrainConfig(model, self.optimizer, self.schedule, **options)


def settings_from(values: Mapping[str, Any]) -> Settings:
    """Make settings from the values of a settings file; `SettingError` for the first wrong one."""
    try:
        return Settings.model_validate(dict(values))
    except ValidationError as error:
        raise setting_error(error, known_names(Settings)) from None


def known_names(section: type[BaseModel], prefix: str = "") -> tuple[str, ...]:
    """Dotted names of the sections and keys below a section."""
    names: list[str] = []
    for key, info in section.model_fields.items():
        names.append(prefix + key)
        for item in info.metadata:
            if isinstance(item, FieldsOf):
                names.extend(f"{prefix}{key}.{name}" for name in item.keys)
        if is_model(info.annotation):
            names.extend(known_names(info.annotation, f"{prefix}{key}."))
    return tuple(names)


# -- settings file -----------------------------------------------------------------------------------------------------

OVERRIDE_FORM = "must have the form section.key=value, for example training.epochs=20"
SHORT_FLOAT = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""Numbers such as ``.01`` and ``1.``, which TOML does not allow."""
REPLACED_BY = {"data.file": "data.name", "data.name": "data.file"}
"""Settings of a file that the override of another one replaces, unless they are overridden too."""


def load_settings(path: Path | None, overrides: Sequence[str] = (), *, ignored: Sequence[str] = ()) -> Settings:
    """Read the settings of a run from a TOML file, or the defaults.

    Overrides, ``section.key=value``, are applied in order. The value is read as TOML, or as a number such as ``.01``;
    anything else is text, so that ``optimizer.name=adam`` needs no quotes. A data set replaces a data file, and the
    reverse. Keys of the file that are `ignored` are named as ``section.key``.

    Raises `SettingError` if the file cannot be read or is not TOML, or any setting is unknown or not allowed.
    """
    values = {} if path is None else _read(path)
    given = {text.partition("=")[0].strip() for text in overrides}
    replaced = [name for name, by in REPLACED_BY.items() if by in given and name not in given]
    for section, key in (name.split(".") for name in (*ignored, *replaced)):
        if isinstance(table := values.get(section), dict):
            table.pop(key, None)
    for text in overrides:
        _apply(values, text)
    try:
        return settings_from(values)
    except SettingError as error:
        if path is None or error.setting in given:
            raise
        raise error.in_file(shown_path(path)) from None


def to_toml(settings: Settings) -> str:
    """Settings as TOML, without keys that have no effect; `load_settings` reads equal settings back.

    Comments name the packages of a method and of an optimizer that are not hybridnn's own.
    """
    import tomli_w

    foreign = {name: set(section.foreign_keys()) for name, section in settings if isinstance(section, Section)}
    values = settings.model_dump(exclude=foreign, exclude_none=True)
    if settings.device.name == "cpu":  # the other options are those of a GPU
        values["device"] = {"name": "cpu"}
    return _package_notes(settings) + tomli_w.dumps(values)


def _package_notes(settings: Settings) -> str:
    others = {}
    if settings.parallel.method not in METHODS.own:
        others["parallel.method"] = settings.parallel.method
    if type(settings.optimizer) not in optimizers():
        others["optimizer.name"] = settings.optimizer.name
    return "".join(package_note(setting, name) for setting, name in others.items())


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except FileError as error:
        raise SettingError("settings file", str(path), error.reason) from error


def _apply(values: dict[str, Any], text: str) -> None:
    name, equals, value = text.partition("=")
    *sections, key = name.strip().split(".")
    if not equals or not sections or not all((*sections, key)):
        known = [known for known in known_names(Settings) if "." in known]
        near = f"{key}.name" if f"{key}.name" in known else nearest_key(key, known)
        hint = f"; did you mean {near}?" if near and not sections else ""
        raise SettingError("--set", text, OVERRIDE_FORM + hint)
    table = values
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise SettingError("--set", text, f"{section} is a value, not a section; {OVERRIDE_FORM}")
    try:
        table[key] = _value(value.strip() or value)
    except LargeIntegerError as error:
        raise SettingError(name.strip(), value.strip(), f"has {error}") from None


def _value(text: str) -> Any:
    try:
        return parse_toml(f"value = {text}")["value"]
    except LargeIntegerError:
        raise
    except ValueError:
        return float(text) if SHORT_FLOAT.fullmatch(text) else text
