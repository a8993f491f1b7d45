"""What the settings of a run mean for the cost models: the workload, and the layout that the trainer would settle."""

from __future__ import annotations

from dataclasses import dataclass

from hybridnn.config.build import describe_data, make_model, make_optimizer, make_pipelining
from hybridnn.config.settings import DataSettings, OptimizerSettings, Settings, with_stages
from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.planning.balance import balanced_layers
from hybridnn.cost.prediction.workload import GradientRounding, Layout, Workload
from hybridnn.datasets import Dataset, count_tests
from hybridnn.errors import SettingError
from hybridnn.kernels.sixteen_bits import COMPRESSED_FORMATS
from hybridnn.nn.mlp import MLP
from hybridnn.parallel.layer_split import split_layers
from hybridnn.parallel.placement import resolve_axes, resolve_stages
from hybridnn.training.pipelining import PipelinePlan, overlaps, plan_pipeline


@dataclass(frozen=True)
class _Shape:
    features: int
    outputs: int
    samples: int
    task: str


def workload_from_settings(settings: Settings) -> Workload:
    """The training run of `settings`, with the shape of its data; only a file of the user's is read for that.

    Raises
    ------
    HybridnnError
        As the trainer would: the data do not exist, or an option does not fit them.
    """
    shape = _training_shape(settings.data)
    model = make_model(settings.model, shape.features, shape.outputs, shape.task)
    return workload_of_run(settings, model, shape.samples, shape.task)


def workload_of_run(settings: Settings, model: MLP, train_samples: int, task: str) -> Workload:
    """The training run of `settings` where the data are known already."""
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
    """The layout in which so many ranks would train.

    Parameters
    ----------
    settings : Settings
    ranks : int
    model : MLP
    machine : Machine, optional
        Needed with ``parallel.partition = "profile"``: layers are dealt out by its times, not by measured ones.
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
    plan = plan_pipeline(
        make_pipelining(parallel),
        model,
        len(stages),
        batch_size=settings.training.batch_size,
        optimizer=make_optimizer(settings.optimizer),
        clip_norm=settings.training.clip_norm,
        distribution=settings.data.distribution,
    )
    layers = plan.layers
    if parallel.partition == "profile" and len(stages) > 1:
        if machine is None:
            raise SettingError("parallel.partition", "profile", "needs a machine file where no layers are timed")
        # Of the data nothing but the minibatch counts here.
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
    """The layout of a settled pipeline on stages of so many batch and model ranks.

    `sharing_ranks` are the ranks of a node where those of a batch group share a replica there, `wire` is how gradients
    are rounded between nodes: see `Layout`.
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
    """What ``parallel.wire_dtype`` means on nodes of so many ranks."""
    return None if wire_dtype == "same" else GradientRounding(COMPRESSED_FORMATS[wire_dtype], node_ranks)


def _training_shape(settings: DataSettings) -> _Shape:
    found = describe_data(settings)
    if isinstance(found, Dataset):
        samples, tests = found.train.samples, 0 if found.test is None else found.test.samples
    else:
        samples, tests = found.train_samples, found.test_samples
    if not tests:
        samples -= count_tests(samples, settings.test_fraction)
    return _Shape(found.features, found.outputs, samples, found.task)


def _optimizer_name(settings: OptimizerSettings) -> str:
    if settings.name != "sgd":
        return "adam"
    return "momentum" if settings.momentum else "sgd"
