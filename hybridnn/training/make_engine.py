"""Making an engine, with its mistakes told alike on every rank."""

from __future__ import annotations

from numpy.typing import DTypeLike

from hybridnn.comm.agreement import agree
from hybridnn.errors import SettingError
from hybridnn.kernels.backend import Kernels
from hybridnn.kernels.numpy_backend import NUMPY
from hybridnn.kernels.sixteen_bits import COMPRESSED_FORMATS
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import Optimizer
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.training.cuda_graphs import Record
from hybridnn.training.engine import Engine
from hybridnn.training.pipelining import PipelinePlan
from hybridnn.training.replica_choice import settle_sharing


def make_engine(
    model: MLP,
    optimizer: Optimizer,
    grid: ProcessGrid,
    plan: PipelinePlan,
    *,
    batch_size: int,
    dtype: DTypeLike,
    model_split: str,
    overlap: bool,
    distribution: str,
    clip_norm: float | None,
    shared_replicas: bool | str,
    wire_dtype: str = "same",
    kernels: Kernels = NUMPY,
    record: Record | None = None,
    keeps_gradients: bool = False,
) -> Engine:
    """An `Engine`, made of its parameters; collective over the grid.

    Parameters
    ----------
    shared_replicas : bool or "auto"
        As for `settle_sharing`.
    wire_dtype : {"same", "bfloat16", "float16"}
        As for `Trainer`.

    Raises
    ------
    SettingError
        On every rank: its arrays do not fit the memory, `shared_replicas` is true and cannot be, or gradients are to be
        rounded between nodes in steps that are recorded.
    GridError
        As for `settle_sharing`.
    """
    # On one node it means nothing.
    if wire_dtype != "same" and record is not None and grid.spans_nodes:
        allowed = "the host rounds gradients, which a GPU's replayed steps leave out: 'same', or device.graphs = false"
        raise SettingError("parallel.wire_dtype", wire_dtype, allowed)
    sharing = settle_sharing(
        shared_replicas,
        model,
        optimizer,
        grid,
        plan,
        model_split=model_split,
        dtype=dtype,
        on_host=kernels.on_host,
    )

    def make() -> Engine:
        try:
            return Engine(
                model,
                optimizer,
                grid,
                plan,
                batch_size=batch_size,
                dtype=dtype,
                model_split=model_split,
                overlap=overlap,
                distribution=distribution,
                clip_norm=clip_norm,
                sharing=sharing,
                compression=COMPRESSED_FORMATS.get(wire_dtype),
                kernels=kernels,
                record=record,
                keeps_gradients=keeps_gradients,
            )
        except MemoryError as error:
            numbers = f"{model.parameters:,} parameters, their gradients and the optimizer's state"
            raise SettingError("model.sizes", model.sizes, f"{numbers} do not fit this rank's memory") from error

    return agree(grid.world, make)
