"""Workload and layout of a run for the cost models, as the trainer would resolve them; the automatic layout.

The cost models are imported where they are used: every rank of every run loads this module.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from hybridnn.comm.agreement import agree, value_of_first
from hybridnn.comm.mpi import running_ranks
from hybridnn.config.settings import DataSettings, ParallelSettings, Settings, keys_of_layout, stage_shapes, with_stages
from hybridnn.cost import find_machine
from hybridnn.data import Dataset, DatasetInfo, count_split
from hybridnn.errors import SettingError
from hybridnn.nn.mlp import MLP
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.runs.records import PredictedStep
from hybridnn.training.layout_choice import resolve_layout

if TYPE_CHECKING:
    from hybridnn.cost.machine import Machine
    from hybridnn.cost.prediction import Workload
    from hybridnn.training.trainer import Trainer


def workload_from_settings(settings: Settings) -> Workload:
    """The workload of `settings`; of the data only a user's file is read, for its shape.

    Raises `HybridnnError` as the trainer would: the data do not exist, or an option does not fit them.
    """
    data = settings.data.describe(settings.model.task)
    model = settings.model.make(data.features, data.outputs, data.task)
    return workload_of_run(settings, model, _train_samples(data, settings.data), data.task)


def workload_of_run(settings: Settings, model: MLP, train_samples: int, task: str) -> Workload:
    """The workload of `settings` on data of known shape."""
    from hybridnn.cost.prediction import Workload

    return Workload(
        model,
        train_samples,
        settings.training.batch_size,
        settings.training.dtype,
        settings.optimizer,
        classification=task == "classification",
        distribution=settings.data.distribution,
    )


def _train_samples(data: Dataset | DatasetInfo, settings: DataSettings) -> int:
    """Training samples, without those that are set aside for the test and the validation split."""
    if isinstance(data, Dataset):
        samples, tests = data.train.samples, 0 if data.test is None else data.test.samples
    else:
        samples, tests = data.train_samples, data.test_samples
    if not tests:
        samples -= count_split(samples, settings.test_fraction)
    return samples - count_split(samples, settings.validation_fraction, "validation")


def layout_from_settings(settings: Settings, ranks: int, model: MLP, machine: Machine | None = None) -> Layout:
    """The layout in which `ranks` ranks would train; `SettingError` or `GridError` as the trainer would raise.

    The `machine` chooses the microbatches and the layers of the stages. ``parallel.partition = "profile"`` requires it,
    and its times stand in for the measured times of the layers. Without it all ranks are taken to be on one node.
    """
    stages = stage_shapes(settings.parallel, ranks)
    node_ranks = ranks if machine is None else machine.node_ranks(ranks)
    layout = resolve_layout(settings.train_config(model), stages, node_ranks)
    if len(stages) == 1:
        return layout
    partition = settings.parallel.partition
    if machine is None:
        if partition == "profile":
            raise SettingError("parallel.partition", partition, "needs a machine file where no layers are timed")
        return layout
    from hybridnn.cost.order_search import searched
    from hybridnn.cost.plan import divided
    from hybridnn.cost.prediction.stage_costs import StageCosts

    # Only the size of the minibatch matters here.
    workload = workload_of_run(settings, model, settings.training.batch_size, "")
    cuts, balances = settings.parallel.microbatches is None, partition in ("balanced", "profile")
    if not _searches(settings.parallel):
        return divided(workload, layout, machine, cuts=cuts and not layout.order, balances=balances)
    layout = divided(workload, replace(layout, order=()), machine, cuts=cuts, balances=balances)
    order = settings.parallel.order
    return searched(layout, lambda it: StageCosts(workload, it, machine).stage_times(), order)


def _searches(parallel: ParallelSettings) -> bool:
    return METHODS[parallel.method].ordered and not isinstance(parallel.order, tuple)


UNKNOWN_WIDTH = 1 << 20


def require_fitting_layout(settings: Settings, ranks: int) -> None:
    """Raise what a training on `ranks` ranks would raise about its layout, as far as no data file is read for that."""
    if settings.parallel.auto:
        return
    # A file decides the widths of the first and the last layer: wide ones can be split among any ranks.
    features, outputs, task = UNKNOWN_WIDTH, UNKNOWN_WIDTH, settings.model.task or "classification"
    if settings.data.file is None:
        data = settings.data.describe(settings.model.task)
        features, outputs, task = data.features, data.outputs, data.task
    model = settings.model.make(features, outputs, task)
    if settings.parallel.partition == "profile":  # the layers of the stages are timed in the run; all else is checked
        parallel = settings.parallel.model_copy(update={"partition": ParallelSettings().partition})
        settings = settings.model_copy(update={"parallel": parallel})
    layout_from_settings(settings, ranks, model)


def with_divided_pipeline(settings: Settings, model: MLP, grid: ProcessGrid, device: str) -> Settings:
    """Choose the default microbatches and partition by the machine file that rank 0 finds; collective.

    The trainer chooses by typical costs where there is no file, and on a GPU.
    """
    parallel = settings.parallel
    chosen = parallel.partition != "balanced" and parallel.microbatches is not None and not _searches(parallel)
    if grid.pipeline == 1 or chosen:
        return settings

    def divided() -> tuple[int, tuple[int, ...], tuple[str, ...]] | None:
        machine = _machine_of_job(grid, device)
        if machine is None:
            return None
        layout = layout_from_settings(settings, grid.size, model, machine)
        return layout.microbatches, layout.layers, layout.order

    found = value_of_first(grid.world, divided)
    if found is None:
        return settings
    update: dict[str, Any] = {"microbatches": found[0], "order": found[2] or None}
    if parallel.partition == "balanced":  # the trainer times the layers of ``profile``
        update["partition"] = tuple(found[1])
    return settings.model_copy(update={"parallel": parallel.model_copy(update=update)})


def _machine_of_job(grid: ProcessGrid, device: str) -> Machine | None:
    """The machine file in the working folder or the environment; None without one, and on a GPU, which it lacks."""
    path = find_machine() if device == "cpu" else None
    if path is None:
        return None
    from hybridnn.cost.machine_file import read_machine

    return read_machine(path).placed(grid.size, grid.nodes)


def predicted_step(settings: Settings, trainer: Trainer, train_samples: int, task: str) -> PredictedStep | None:
    """Prediction of a training step by the machine file in the working folder or the environment; collective.

    None on ranks other than 0, without a machine file, and on a GPU, which machine files do not describe. Raises
    `HybridnnError` on every rank: the machine file cannot be used.
    """

    def predict_on_first_rank() -> PredictedStep | None:
        machine = _machine_of_job(trainer.grid, trainer.device.kind) if trainer.grid.rank == 0 else None
        if machine is None:
            return None
        from hybridnn.cost.plan import layout_advice
        from hybridnn.cost.prediction.predict import predict

        workload = workload_of_run(settings, trainer.model, train_samples, task)
        predicted = predict(workload, trainer.layout, machine)
        return PredictedStep(
            machine.name,
            predicted.seconds_per_step,
            predicted.seconds_per_epoch,
            predicted.bytes_per_step,
            asdict(predicted.breakdown),
            predicted.instructions,
            machine.processor,
            machine.calibrated_ranks,
            machine.doubt,
            layout_advice(predicted, workload, machine),
        )

    return agree(trainer.grid.world, predict_on_first_rank)


# -- parallel.auto ---------------------------------------------------------------------------------------------------

CONSTRAINTS = {"pipeline", "batch", "model", "model_split", "overlap", "method", "microbatches", "chunks"}
"""Keys of ``[parallel]`` that constrain the automatic layout if they are set."""

UNSUPPORTED = ("stages", "partition")
"""Keys of ``[parallel]`` that must not be set."""


def choose_parallel_settings(settings: Settings) -> Settings:
    """Choose the layout with ``parallel.auto``, and the number of stages of a method that is set alone; collective.

    With ``parallel.auto`` rank 0 chooses the fastest exact layout for the ranks of the job by the machine file. Keys of
    ``[parallel]`` that are set constrain the choice, except `UNSUPPORTED`, which are refused. The result, the same on
    every rank, has ``auto = false``.

    Raises `HybridnnError` on every rank: there is no machine file, no layout meets the constraints or fits the memory,
    or a method has one stage only.
    """
    if not settings.parallel.auto:
        return settings.model_copy(update={"parallel": with_stages(settings.parallel, running_ranks())})
    world = ProcessGrid(stall_seconds=settings.output.stall_seconds).world
    chosen = value_of_first(world, lambda: _choose(settings, world.size))
    return settings.model_copy(update={"parallel": ParallelSettings.model_validate(chosen)})


def fixed_constraints(settings: Settings) -> dict[str, Any]:
    """Values of ``[parallel]`` that follow from other settings.

    Both ends of a pipeline read data, so rank 0 cannot distribute it.
    """
    return {} if settings.data.distribution == "local" else {"pipeline": 1}


def _choose(settings: Settings, ranks: int) -> dict[str, Any]:
    """The keys of ``[parallel]`` for the fastest exact layout."""
    from hybridnn.cost.machine_file import require_machine
    from hybridnn.cost.plan import best_exact, with_searched

    parallel, wanted = settings.parallel, fixed_constraints(settings)
    for key in UNSUPPORTED:
        if (value := getattr(parallel, key)) != ParallelSettings.model_fields[key].default:
            shown = list(value) if isinstance(value, tuple) else value
            raise SettingError(f"parallel.{key}", shown, "does not go with parallel.auto, which chooses without it")
    given = parallel.model_dump(include=CONSTRAINTS & parallel.model_fields_set)
    if "method" in given and not METHODS[parallel.method].exact:
        exact = ", ".join(name for name, method in METHODS.items() if method.exact)
        raise SettingError(
            "parallel.method", parallel.method, f"parallel.auto chooses among the exact methods: {exact}"
        )
    wanted |= {key: value for key, value in given.items() if value not in (None, "auto")}
    kept = parallel.model_dump(include={"shared_replicas"} & parallel.model_fields_set)
    if parallel.shared_replicas is False:
        wanted |= kept
    machine = require_machine()
    if machine.doubt:
        print(f"Warning: {machine.doubt}", file=sys.stderr, flush=True)
    workload = workload_from_settings(settings)
    best = with_searched(best_exact(workload, machine, ranks, wanted), workload, machine, wanted)
    return keys_of_layout(best.layout) | kept
