"""The ``[parallel]`` section: the process grid, and the pipeline."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainValidator, model_validator

from hybridnn.errors import SettingError
from hybridnn.pipeline.partition.stage_partition import PARTITIONS
from hybridnn.pipeline.schedules.methods import find_method, too_few_stages
from hybridnn.settings_errors import refused
from hybridnn.settings_types import Count, Section, list_as_tuple

__all__ = ["ParallelSettings", "StageSettings", "with_stages"]

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
    """``[parallel]``: the process grid and the pipeline; without `batch` all remaining ranks go to the batch axis.

    Attributes
    ----------
    stages : tuple of StageSettings
        Batch and model ranks of every stage, where stages differ in width; then without `pipeline`, `batch` and
        `model`.
    method, microbatches, chunks, partition, vertical_sync, weight_grad
        As for `Pipelining`; the last five mean nothing in a pipeline of one stage. A method that is set without
        `pipeline` makes all ranks that `batch` and `model` leave stages: see `with_stages`.
    overlap : bool or "auto"
        As for `Trainer`.
    shared_replicas : bool or "auto"
        Whether the batch ranks of a node keep one copy of the weights and of the optimizer's state. ``"auto"``: where a
        node holds several of them, unless the job is to outlive lost ranks.
    wire_dtype : str
        As for `Trainer`.
    auto : bool
        Take the fastest exact layout that the machine file predicts; keys that are set are kept.
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
        """Keys that say in another way what `stages` says, or nothing about a grid of one stage."""
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
    """Settle the number of stages where a method is set and the number is not: all ranks that the other axes leave.

    Parameters
    ----------
    parallel : ParallelSettings
    ranks : int
        Of the job.

    Returns
    -------
    ParallelSettings
        The same where it needs no settling.

    Raises
    ------
    SettingError
        If one stage is left, and the method is not ``sequential``, which is what one stage does.
    """
    given = parallel.model_fields_set
    if "method" not in given or "pipeline" in given or parallel.stages or parallel.auto:
        return parallel
    stages = max(1, ranks // ((parallel.batch or 1) * parallel.model))
    if stages == 1 and parallel.method != "sequential":
        raise too_few_stages(parallel.method)
    return parallel.model_copy(update={"pipeline": stages})
