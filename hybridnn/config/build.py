"""Objects built from the sections of the settings: data, network, optimizer, learning rates and pipeline."""

from __future__ import annotations

from hybridnn.config.settings import (
    DataSettings,
    DeviceSettings,
    ModelSettings,
    OptimizerSettings,
    ParallelSettings,
    ScheduleSettings,
    Settings,
)
from hybridnn.datasets import Dataset, DatasetInfo, SyntheticSpec, describe_dataset, load_dataset, load_file
from hybridnn.nn.learning_rates import Constant, Cosine, LearningRateSchedule, Step, WarmupLinear
from hybridnn.nn.losses import resolve_loss
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD, Adam, AdamW, Optimizer
from hybridnn.training.config import Pipelining, TrainConfig
from hybridnn.training.device import DeviceOptions


def load_data(settings: DataSettings) -> Dataset:
    """Load the data of ``[data]``; generated data are generated when used."""
    if settings.file is not None:
        return load_file(settings.file, settings.targets, inputs=settings.inputs)
    name, spec = _named(settings)
    return load_dataset(name, variant=settings.features, rows=settings.rows, synthetic=spec)


def describe_data(settings: DataSettings) -> DatasetInfo | Dataset:
    """Describe the data of ``[data]``; only a user's file is loaded for that."""
    if settings.file is not None:
        return load_file(settings.file, settings.targets, inputs=settings.inputs)
    name, spec = _named(settings)
    return describe_dataset(name, variant=settings.features, rows=settings.rows, synthetic=spec)


def _named(settings: DataSettings) -> tuple[str, SyntheticSpec | None]:
    assert settings.name is not None, "the settings fill in a name where there is no file"
    return settings.name, SyntheticSpec(**settings.synthetic.model_dump()) if settings.name == "synthetic" else None


def make_model(settings: ModelSettings, features: int, outputs: int, task: str) -> MLP:
    """Make the network of ``[model]`` for data of `features` features and `outputs` outputs.

    Raises
    ------
    SettingError
        If its loss does not fit the task.
    """
    model = MLP(
        [features, *settings.hidden, outputs],
        settings.activation,
        residual=settings.residual,
        loss=settings.loss,
        initializer=settings.initializer,
    )
    resolve_loss(model, task)
    return model


def make_train_config(settings: Settings, model: MLP) -> TrainConfig:
    """Make the configuration of a training from the settings of a run and its network."""
    training, parallel = settings.training, settings.parallel
    return TrainConfig(
        model,
        make_optimizer(settings.optimizer),
        make_schedule(settings.schedule),
        batch_size=training.batch_size,
        seed=training.seed,
        dtype=training.dtype,
        shuffle=training.shuffle,
        clip_norm=training.clip_norm,
        model_split=parallel.model_split,
        overlap=parallel.overlap,
        shared_replicas=parallel.shared_replicas,
        wire_dtype=parallel.wire_dtype,
        distribution=settings.data.distribution,
        log_every=settings.output.log_every,
        evaluate_every=training.evaluate_every,
        pipelining=make_pipelining(parallel),
    )


def make_pipelining(settings: ParallelSettings) -> Pipelining:
    """Make the pipeline of ``[parallel]``."""
    return Pipelining(
        settings.method,
        settings.microbatches,
        settings.chunks,
        settings.partition,
        settings.vertical_sync,
        settings.weight_grad,
    )


def make_device_options(settings: DeviceSettings) -> DeviceOptions:
    """Make the device options of ``[device]``."""
    return DeviceOptions(settings.name, settings.transport, settings.tf32, settings.graphs)


def make_optimizer(settings: OptimizerSettings) -> Optimizer:
    """Make the optimizer of ``[optimizer]``."""
    if settings.name == "sgd":
        return SGD(settings.lr, settings.momentum, settings.dampening, settings.nesterov, settings.weight_decay)
    kind = Adam if settings.name == "adam" else AdamW
    return kind(settings.lr, settings.betas, settings.eps, settings.weight_decay)


def make_schedule(settings: ScheduleSettings) -> LearningRateSchedule:
    """Make the learning-rate schedule of ``[schedule]``."""
    match settings.name:
        case "step":
            return Step(settings.milestones, settings.factor)
        case "warmup-linear":
            return WarmupLinear(settings.warmup_epochs, settings.final_factor)
        case "cosine":
            return Cosine(settings.warmup_epochs, settings.final_factor)
        case _:
            return Constant()
