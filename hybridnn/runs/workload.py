"""Workload and layout of a run for the cost models, as the trainer would resolve them, and the predicted step."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from hybridnn.comm.agreement import agree
from hybridnn.config.build import describe_data, make_model, make_optimizer, make_train_config
from hybridnn.config.settings import OptimizerSettings, Settings, with_stages
from hybridnn.cost.machine.file import find_machine, read_machine
from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.planning.balance import balanced_layers
from hybridnn.cost.prediction.predict import predict
from hybridnn.cost.prediction.workload import GradientRounding, Layout, Workload
from hybridnn.datasets import Dataset, DatasetInfo, count_tests
from hybridnn.errors import SettingError
from hybridnn.kernels.compressed_formats import COMPRESSED_FORMATS
from hybridnn.nn.mlp import MLP
from hybridnn.parallel.layer_split import split_layers
from hybridnn.parallel.placement import resolve_axes, resolve_stages
from hybridnn.training.pipelining import PipelinePlan, overlaps, plan_pipeline
from hybridnn.training.records import PredictedStep

if TYPE_CHECKING:
    from hybridnn.training.trainer import Trainer


def workload_from_settings(settings: Settings) -> Workload:
    """The workload of `settings`; of the data only a user's file is read, for its shape.

    Raises
    ------
    HybridnnError
        As the trainer would: the data do not exist, or an option does not fit them.
    """
    data = describe_data(settings.data)
    model = make_model(settings.model, data.features, data.outputs, data.task)
    return workload_of_run(settings, model, _train_samples(data, settings.data.test_fraction), data.task)


def workload_of_run(settings: Settings, model: MLP, train_samples: int, task: str) -> Workload:
    """The workload of `settings` on data of known shape."""
    return Workload(
        model,
        train_samples,
        settings.training.batch_size,
        settings.training.dtype,
        _optimizer_name(settings.optimizer),
        classification=task == "classification",
        clips=settings.training.clip_norm is not None,
        distribution=settings.data.distribution,
        rereads_gradient=not make_optimizer(settings.optimizer).reads_gradient_once,
    )


def layout_from_settings(settings: Settings, ranks: int, model: MLP, machine: Machine | None = None) -> Layout:
    """The layout in which `ranks` ranks would train.

    Parameters
    ----------
    machine : Machine, optional
        Required by ``parallel.partition = "profile"``: its times stand in for the measured times of the layers.
        Without it all ranks are taken to be on one node.

    Raises
    ------
    SettingError, GridError
        As the trainer would.
    """
    parallel = with_stages(settings.parallel, ranks)
    if parallel.stages:
        stages = resolve_stages(ranks, [(stage.batch, stage.model) for stage in parallel.stages])
    else:
        pipeline, batch, model_ranks = resolve_axes(ranks, parallel.pipeline, parallel.batch, parallel.model)
        stages = ((batch, model_ranks),) * pipeline
    plan = plan_pipeline(make_train_config(settings, model), len(stages))
    layers = plan.layers
    if parallel.partition == "profile" and len(stages) > 1:
        if machine is None:
            raise SettingError("parallel.partition", "profile", "needs a machine file where no layers are timed")
        # Only the size of the minibatch matters here.
        workload = workload_of_run(settings, model, settings.training.batch_size, "")
        layers = balanced_layers(workload, machine, stages, chunks=plan.chunks, microbatches=plan.microbatches)
    node_ranks = ranks if machine is None else machine.node_ranks(ranks)
    layout = layout_of_plan(
        plan,
        stages,
        layers,
        split=parallel.model_split,
        overlap=overlaps(parallel.overlap, spans_nodes=node_ranks < ranks),
        sharing_ranks=None if parallel.shared_replicas is False else node_ranks,
        wire=gradient_rounding(parallel.wire_dtype, node_ranks),
    )
    for stage, (_, model_ranks) in enumerate(stages):
        for chunk in range(plan.chunks):
            split_layers(layout.layers_of(model, stage, chunk), layout.split, model_ranks, 0)  # refuses empty shards
    return layout


def layout_of_plan(
    plan: PipelinePlan,
    stages: tuple[tuple[int, int], ...],
    layers: tuple[int, ...],
    *,
    split: str,
    overlap: bool,
    sharing_ranks: int | None = None,
    wire: GradientRounding | None = None,
) -> Layout:
    """The layout of a resolved pipeline on `stages` of (batch, model) ranks with `layers` layers each.

    Parameters
    ----------
    sharing_ranks : int, optional
        Ranks per node if batch ranks of a node share a replica.
    wire : GradientRounding, optional
        How gradients are rounded between nodes.
    """
    return Layout(
        stages,
        layers,
        split,
        overlap,
        plan.method.name,
        plan.microbatches,
        plan.chunks,
        plan.vertical_sync,
        plan.merges,
        sharing_ranks,
        wire,
    )


def gradient_rounding(wire_dtype: str, node_ranks: int) -> GradientRounding | None:
    """Rounding of gradients by ``parallel.wire_dtype`` between nodes of `node_ranks` ranks; None without rounding."""
    return None if wire_dtype == "same" else GradientRounding(COMPRESSED_FORMATS[wire_dtype], node_ranks)


def predicted_step(settings: Settings, trainer: Trainer, train_samples: int, task: str) -> PredictedStep | None:
    """Prediction of a training step by the machine file in the working folder or the environment; collective.

    Returns
    -------
    PredictedStep or None
        None on ranks other than 0, without a machine file, and on a GPU, which machine files do not describe.

    Raises
    ------
    HybridnnError
        On every rank: the machine file cannot be used.
    """
    sharing_ranks, node_ranks = trainer.sharing_ranks(), trainer.node_ranks()

    def predict_on_first_rank() -> PredictedStep | None:
        path = find_machine() if trainer.grid.rank == 0 and trainer.device.kind == "cpu" else None
        if path is None:
            return None
        machine = read_machine(path)
        layout = layout_of_plan(
            trainer.plan,
            trainer.grid.stages,
            trainer.plan.layers,
            split=settings.parallel.model_split,
            overlap=trainer.overlap,
            sharing_ranks=sharing_ranks,
            wire=gradient_rounding(settings.parallel.wire_dtype, node_ranks),
        )
        predicted = predict(workload_of_run(settings, trainer.model, train_samples, task), layout, machine)
        return PredictedStep(
            machine.name,
            predicted.seconds_per_step,
            predicted.seconds_per_epoch,
            predicted.bytes_per_step,
            asdict(predicted.breakdown),
            predicted.instructions,
        )

    return agree(trainer.grid.world, predict_on_first_rank)


def _train_samples(data: Dataset | DatasetInfo, test_fraction: float) -> int:
    """Training samples, without those that are set aside for a data set without test samples."""
    if isinstance(data, Dataset):
        samples, tests = data.train.samples, 0 if data.test is None else data.test.samples
    else:
        samples, tests = data.train_samples, data.test_samples
    return samples if tests else samples - count_tests(samples, test_fraction)


def _optimizer_name(settings: OptimizerSettings) -> str:
    if settings.name != "sgd":
        return "adam"
    return "momentum" if settings.momentum else "sgd"
