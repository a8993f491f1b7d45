"""Settings of a run: names, defaults and allowed values, one frozen pydantic model per section of the settings file.

`settings_from` checks plain values: it turns any error into one `SettingError` that names the setting, the value and
what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, ValidationError, model_validator

from hybridnn.errors import SettingError
from hybridnn.pipeline.partition.stage_partition import PARTITIONS
from hybridnn.pipeline.schedules.methods import find_method, too_few_stages
from hybridnn.utils.settings_models import (
    AtLeastZero,
    BelowOne,
    Betas,
    Count,
    Counts,
    Fraction,
    Interval,
    Positive,
    Section,
    Seed,
    Text,
    Texts,
    list_as_tuple,
    refused,
    setting_error,
)

GPU_KEYS = frozenset({"transport", "tf32", "graphs"})


class DeviceSettings(Section):
    """``[device]``: CPU or GPU; the other keys apply to a GPU only.

    Attributes
    ----------
    name : str
        ``"auto"``: a GPU if every rank finds one, else the CPU.
    transport : str
        How arrays of GPUs travel between ranks: through pinned host memory (``"staging"``), by device-aware MPI
        (``"mpi"``), or by NCCL. ``"auto"``: NCCL if every rank has its own GPU, else staging.
    tf32 : bool
        Round the factors of float32 matrix products to TF32: faster, less precise.
    graphs : bool
        Replay steps as CUDA graphs, with one rank or with batch ranks that NCCL connects.
    """

    name: Literal["auto", "cpu", "gpu"] = "auto"
    transport: Literal["auto", "staging", "mpi", "nccl"] = "auto"
    tf32: bool = False
    graphs: bool = False

    def foreign_keys(self) -> frozenset[str]:
        """Keys of a GPU, on the CPU."""
        return GPU_KEYS if self.name == "cpu" else frozenset()


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
    """``[optimizer]``: the update rule; every value has the meaning that it has in PyTorch.

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
    """``[schedule]``: factor on the learning rate by epoch.

    Attributes
    ----------
    milestones : tuple of int
        Epochs after which ``step`` multiplies the rate by `factor`, increasing.
    factor : float
        For ``step``.
    warmup_epochs : float
        Epochs in which ``warmup-linear`` and ``cosine`` raise the rate from zero; above 0 for ``warmup-linear``.
    final_factor : float
        Factor at the end of ``warmup-linear`` and ``cosine``.
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


PIPELINE_KEYS = frozenset({"method", "microbatches", "chunks", "partition", "vertical_sync", "weight_grad"})


class StageSettings(Section):
    """One stage of ``parallel.stages``: its batch and model ranks."""

    batch: Count = 1
    model: Count = 1


def _method(value: str) -> str:
    try:
        return find_method(value).name
    except SettingError as error:
        raise refused("", value, error.allowed) from None


def _auto_or_bool(value: object) -> object:
    if isinstance(value, bool) or value == "auto":
        return value
    raise refused("", value, "must be 'auto', true or false")


AutoOrBool = Annotated[bool | Literal["auto"], PlainValidator(_auto_or_bool)]


def _partition(value: object) -> object:
    counts = list(value) if isinstance(value, list | tuple) else []
    if value in PARTITIONS or (counts and all(type(count) is int and count > 0 for count in counts)):
        return tuple(counts) or value
    raise refused("", value, f"must be {', '.join(PARTITIONS)} or a list of layer counts, for example [4, 4, 3]")


class ParallelSettings(Section):
    """``[parallel]``: the process grid and the pipeline; without `batch` all remaining ranks are batch ranks.

    Attributes
    ----------
    stages : tuple of StageSettings
        Batch and model ranks of every stage, for stages of different width; excludes `pipeline`, `batch` and `model`.
    method, microbatches, chunks, partition, vertical_sync, weight_grad
        As for `Pipelining`; the last five have no effect on one stage. A method that is set without `pipeline` sets the
        number of stages: see `with_stages`.
    overlap : bool or "auto"
        As for `Trainer`.
    shared_replicas : bool or "auto"
        Whether the batch ranks of a node share one copy of the weights and of the optimizer's state. ``"auto"``: if a
        node has several of them, unless the job is to survive lost ranks.
    wire_dtype : str
        As for `Trainer`.
    auto : bool
        Choose the fastest exact layout by the machine file; keys that are set constrain the choice.
    """

    pipeline: Count = 1
    batch: Count | None = None
    model: Count = 1
    stages: Annotated[tuple[StageSettings, ...], BeforeValidator(list_as_tuple)] = ()
    model_split: Literal["columns", "alternating"] = "columns"
    overlap: AutoOrBool = "auto"
    shared_replicas: AutoOrBool = "auto"
    wire_dtype: Literal["same", "bfloat16", "float16"] = "same"
    method: Annotated[str, PlainValidator(_method)] = "1f1b"
    microbatches: Count | None = None
    chunks: Count | None = None
    partition: Annotated[str | tuple[int, ...], PlainValidator(_partition)] = "uniform"
    vertical_sync: bool = False
    weight_grad: Literal["auto", "merged", "per-microbatch"] = "auto"
    auto: bool = False

    def foreign_keys(self) -> frozenset[str]:
        """Keys that `stages` excludes, or that have no effect on one stage."""
        if self.stages:
            return frozenset({"pipeline", "batch", "model"})
        return frozenset({"stages"}) | (PIPELINE_KEYS if self.pipeline == 1 else frozenset())

    @model_validator(mode="after")
    def _keys_agree(self) -> ParallelSettings:
        if self.stages and (given := sorted({"pipeline", "batch", "model"} & self.model_fields_set)):
            value: Any = getattr(self, given[0])
            raise refused(given[0], value, "does not belong to stages, which says how many ranks each stage has")
        return self


def with_stages(parallel: ParallelSettings, ranks: int) -> ParallelSettings:
    """Set the number of stages if a method is set without it: all ranks that the other axes leave.

    Raises
    ------
    SettingError
        If one stage is left, and the method is not ``sequential``.
    """
    given = parallel.model_fields_set
    if "method" not in given or "pipeline" in given or parallel.stages or parallel.auto:
        return parallel
    stages = max(1, ranks // ((parallel.batch or 1) * parallel.model))
    if stages == 1 and parallel.method != "sequential":
        raise too_few_stages(parallel.method)
    return parallel.model_copy(update={"pipeline": stages})


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
    """``[data]``: a named data set or a file, and its distribution to the ranks.

    Attributes
    ----------
    name : str or None
        A name of the catalogue, or ``"synthetic"``; ``"digits"`` by default, None if `file` is given.
    file : str or None
        A ``.npz`` or ``.csv`` file.
    targets : tuple of str
        Target columns of a ``.csv`` file.
    inputs : tuple of str
        Input columns of a ``.csv`` file, in order; by default all that are no targets. A run writes their names to its
        ``config.toml``.
    features : str
        ``"paper"`` takes the columns that the papers used instead of all.
    rows : int or None
        Take only the first `rows` samples, if the data set allows it.
    standardize : bool
        Shift and scale by the statistics of the training samples.
    test_fraction : float
        Share of the samples for the test split of data that have none.
    distribution : str
        How the samples of a minibatch reach the ranks.
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
        """``[data.synthetic]`` for other data, keys of the catalogue for a file, keys of files for the catalogue."""
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
    """``[model]``: the multi-layer perceptron; its numbers of inputs and outputs follow from the data."""

    hidden: Counts = (256, 256)
    activation: Literal["relu", "identity", "tanh", "sigmoid", "selu"] = "relu"
    residual: bool = False
    loss: Literal["auto", "mse", "cross_entropy"] = "auto"
    initializer: Literal["auto", "he", "glorot", "lecun"] = "auto"
    init_from: Text | None = None


class TrainingSettings(Section):
    """``[training]``: duration, minibatches, precision, evaluation and checkpoints.

    Attributes
    ----------
    evaluate_every : int
        Epochs between two evaluations.
    check_collectives : bool
        Before every collective, compare the calls of all ranks.
    checkpoint_every : int, str or None
        Steps between two checkpoints, or seconds, as ``"90 s"``; with an asynchronous pipeline method they are written
        at the next end of an epoch.
    keep : int
        Number of checkpoints to keep, the newest ones.
    checkpoint_async : bool
        Copy the arrays and write them in the background.
    keep_best : bool
        Write the weights of every evaluated epoch that is better than all before.
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
    """``[output]``: run folder, logging, trace, stalls.

    Attributes
    ----------
    folder : str or None
        Run folder; None creates a new one in ``runs/``.
    log_every : int
        Steps between two step records.
    trace : bool
        Write a trace of all ranks.
    stall_seconds : float
        End the job, and name the rank that did not arrive, if nothing completes for so long; 0: never.
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
    """Make settings from plain values, as read from a settings file.

    Parameters
    ----------
    values : mapping
        ``{section: {key: value}}``; defaults for what is absent.

    Raises
    ------
    SettingError
        Names the first wrong setting, its value and what is allowed.
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
