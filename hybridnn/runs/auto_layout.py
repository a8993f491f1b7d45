"""``parallel.auto``: the fastest exact layout for the ranks of the job, as the machine file predicts it."""

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

KEPT = {
    "pipeline": "pipeline",
    "batch": "batch",
    "model": "model",
    "model_split": "split",
    "overlap": "overlap",
    "method": "method",
    "microbatches": "microbatches",
    "chunks": "chunks",
}
"""Keys that constrain the choice where they are set, and what a constraint calls them."""

REFUSED = ("stages", "partition", "vertical_sync", "weight_grad")
"""Keys that nothing is chosen for."""


def resolve_layout(settings: Settings) -> Settings:
    """Fill in the layout under ``parallel.auto``, and the stages of a method that is set without; collective.

    With ``parallel.auto`` rank 0 chooses and tells the others. Of the other keys of ``[parallel]``, those that are set
    to a size of the grid, a split, an overlap, shared replicas, what travels between nodes, a method, or numbers of
    microbatches and chunks are kept; others are refused.

    Returns
    -------
    Settings
        With ``auto = false``; the same on every rank.

    Raises
    ------
    HybridnnError
        On every rank: there is no machine file, no layout meets the keys that are set, none fits the memory, or a
        method is left with one stage.
    """
    if not settings.parallel.auto:
        return settings.model_copy(update={"parallel": with_stages(settings.parallel, running_ranks())})
    world = ProcessGrid().world
    chosen = agree(world, lambda: json.dumps(_choose(settings, world.size)) if world.rank == 0 else "")
    parallel = ParallelSettings.model_validate(json.loads(broadcast_text(world, chosen, 0)))
    return settings.model_copy(update={"parallel": parallel})


def fixed_constraints(settings: Settings) -> Constraints:
    """What settings ask of a layout that nothing is chosen for.

    Both ends of a pipeline read data, so that it cannot be distributed from one rank; and whether gradients are rounded
    between nodes is not a question of speed alone.
    """
    wire_dtype = settings.parallel.wire_dtype
    return Constraints(
        pipeline=1 if settings.data.distribution != "local" else None,
        wire_dtype=None if wire_dtype == "same" else wire_dtype,
    )


def _choose(settings: Settings, ranks: int) -> dict[str, Any]:
    """The keys of ``[parallel]`` for the fastest exact layout."""
    wanted = vars(fixed_constraints(settings)) | _wanted(settings.parallel)
    best = best_exact(workload_from_settings(settings), require_machine(), ranks, Constraints(**wanted))
    kept = {"shared_replicas"} & settings.parallel.model_fields_set
    return best.layout.parallel_settings() | settings.parallel.model_dump(include=kept)


def _wanted(parallel: ParallelSettings) -> dict[str, Any]:
    """Constraints by the keys that are set."""
    for key in REFUSED:
        default = ParallelSettings.model_fields[key].default
        if (value := getattr(parallel, key)) != default:
            shown = list(value) if isinstance(value, tuple) else value
            raise SettingError(f"parallel.{key}", shown, "does not go with parallel.auto, which chooses without it")
    method = METHODS[parallel.method]
    if "method" in parallel.model_fields_set and not method.exact:
        exact = ", ".join(name for name, other in METHODS.items() if other.exact)
        raise SettingError("parallel.method", method.name, f"parallel.auto chooses among the exact methods: {exact}")
    shared = {} if parallel.shared_replicas is not False else {"shared": False}
    given = {KEPT[key]: getattr(parallel, key) for key in KEPT if key in parallel.model_fields_set}
    return shared | {key: value for key, value in given.items() if value not in (None, "auto")}
