"""Automatic layout, ``parallel.auto``: the fastest exact layout for the ranks of the job by the machine file."""

from __future__ import annotations

import json
from typing import Any

from hybridnn.comm.agreement import agree, broadcast_text
from hybridnn.comm.mpi import running_ranks
from hybridnn.config.settings import ParallelSettings, Settings, with_stages
from hybridnn.cost.machine.file import require_machine
from hybridnn.cost.planning.layouts import Constraints
from hybridnn.cost.planning.plan import best_exact
from hybridnn.errors import SettingError
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.runs.workload import workload_from_settings

CONSTRAINTS = {
    "pipeline": "pipeline",
    "batch": "batch",
    "model": "model",
    "model_split": "split",
    "overlap": "overlap",
    "method": "method",
    "microbatches": "microbatches",
    "chunks": "chunks",
}
"""Keys of ``[parallel]`` that constrain the choice if they are set, with the attributes of `Constraints`."""

UNSUPPORTED = ("stages", "partition", "vertical_sync", "weight_grad")
"""Keys of ``[parallel]`` that must not be set."""


def resolve_layout(settings: Settings) -> Settings:
    """Choose the layout with ``parallel.auto``, and the number of stages of a method that is set alone; collective.

    With ``parallel.auto`` rank 0 chooses. Keys of ``[parallel]`` that are set constrain the choice, except
    `UNSUPPORTED`, which are refused.

    Returns
    -------
    Settings
        With ``auto = false``; the same on every rank.

    Raises
    ------
    HybridnnError
        On every rank: there is no machine file, no layout meets the constraints or fits the memory, or a method has
        one stage only.
    """
    if not settings.parallel.auto:
        return settings.model_copy(update={"parallel": with_stages(settings.parallel, running_ranks())})
    world = ProcessGrid().world
    chosen = agree(world, lambda: json.dumps(_choose(settings, world.size)) if world.rank == 0 else "")
    parallel = ParallelSettings.model_validate(json.loads(broadcast_text(world, chosen, 0)))
    return settings.model_copy(update={"parallel": parallel})


def fixed_constraints(settings: Settings) -> Constraints:
    """Constraints that follow from other settings.

    Both ends of a pipeline read data, so rank 0 cannot distribute it; and rounded gradients change the training.
    """
    wire_dtype = settings.parallel.wire_dtype
    return Constraints(
        pipeline=1 if settings.data.distribution != "local" else None,
        wire_dtype=None if wire_dtype == "same" else wire_dtype,
    )


def _choose(settings: Settings, ranks: int) -> dict[str, Any]:
    """The keys of ``[parallel]`` for the fastest exact layout."""
    constraints = Constraints(**vars(fixed_constraints(settings)) | _given_constraints(settings.parallel))
    best = best_exact(workload_from_settings(settings), require_machine(), ranks, constraints)
    kept = {"shared_replicas"} & settings.parallel.model_fields_set
    return best.layout.parallel_settings() | settings.parallel.model_dump(include=kept)


def _given_constraints(parallel: ParallelSettings) -> dict[str, Any]:
    """Constraints by the keys of ``[parallel]`` that are set."""
    for key in UNSUPPORTED:
        default = ParallelSettings.model_fields[key].default
        if (value := getattr(parallel, key)) != default:
            shown = list(value) if isinstance(value, tuple) else value
            raise SettingError(f"parallel.{key}", shown, "does not go with parallel.auto, which chooses without it")
    method = METHODS[parallel.method]
    if "method" in parallel.model_fields_set and not method.exact:
        exact = ", ".join(name for name, other in METHODS.items() if other.exact)
        raise SettingError("parallel.method", method.name, f"parallel.auto chooses among the exact methods: {exact}")
    shared = {} if parallel.shared_replicas is not False else {"shared": False}
    given = {CONSTRAINTS[key]: getattr(parallel, key) for key in CONSTRAINTS if key in parallel.model_fields_set}
    return shared | {key: value for key, value in given.items() if value not in (None, "auto")}
