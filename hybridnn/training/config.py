"""Configuration of a training: model, optimizer and settings, without the data, the ranks and the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.nn.learning_rates import Constant, LearningRateSchedule
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD, Optimizer
from hybridnn.parallel.dense import MODEL_SPLITS
from hybridnn.parallel.distribution import DISTRIBUTIONS
from hybridnn.pipeline.schedules.methods import WEIGHT_GRADIENTS
from hybridnn.utils.checks import AutoOrBool, Count, OneOf, Positive, Seed, require_choice, require_fields

if TYPE_CHECKING:
    from typing_extensions import Self

DTYPES = ("float32", "float64")
WeightGradients = Annotated[str, OneOf(("auto", *WEIGHT_GRADIENTS))]
ModelSplit = Annotated[str, OneOf(MODEL_SPLITS)]
Distribution = Annotated[str, OneOf(DISTRIBUTIONS)]
DEVICES = ("auto", "cpu", "gpu")
TRANSPORTS = ("auto", "staging", "mpi", "nccl")


@dataclass(frozen=True)
class DeviceOptions:
    """Settings of the device, ``[device]`` of a settings file.

    Attributes
    ----------
    name : {"auto", "cpu", "gpu"}
        ``"auto"``: a GPU if every rank has one, else the CPU.
    transport : {"auto", "staging", "mpi", "nccl"}
        How arrays of GPUs travel between ranks: through pinned host memory, by device-aware MPI, or by NCCL.
        ``"auto"``: NCCL if every rank has its own GPU, else staging. Ignored on the CPU.
    tf32 : bool
        Round the factors of float32 matrix products to TF32 on a GPU, which is faster and less precise.
    graphs : {"auto"} or bool
        Replay steps as CUDA graphs. Requires samples in GPU memory, and either a single rank or batch ranks that are
        connected by NCCL; otherwise the kernels of a step are launched one by one. With ``"auto"`` that is also done
        if CUDA refuses the graph of a single rank, which is an error with true.
    """

    name: Annotated[str, OneOf(DEVICES)] = "auto"
    transport: Annotated[str, OneOf(TRANSPORTS)] = "auto"
    tf32: bool = False
    graphs: AutoOrBool = "auto"

    def __post_init__(self) -> None:
        require_fields("device", self)


@dataclass(frozen=True)
class Pipelining:
    """Settings of a pipeline.

    With a single stage, all exact methods are equivalent, the other settings have no effect, and asynchronous methods
    are refused.

    Attributes
    ----------
    method : str
        One of ``hybridnn.pipeline.schedules.methods.METHODS``.
    microbatches : int or None
        Microbatches per minibatch; None: four per stage, if the method uses microbatches and there are enough samples.
    chunks : int or None
        Chunks per stage; None: 2 for ``interleaved``, else 1.
    partition : "uniform", "profile", or sequence of int
        Number of layers of each stage (of each chunk of each stage, in the order of the layers).
    vertical_sync : bool
        ``pipedream``: every stage reads the weight version that the first stage read.
    weight_grad : {"auto", "merged", "per-microbatch"}
        Weight gradients as one product over all microbatches, or one product per microbatch; ``auto`` merges unless the
        method schedules weight gradients itself.
    synchronous_sends : bool
        Use synchronous sends (``MPI_Ssend``); for tests.
    """

    method: str = "1f1b"
    microbatches: Count | None = None
    chunks: Count | None = None
    partition: str | Sequence[int] = "uniform"
    vertical_sync: bool = False
    weight_grad: WeightGradients = "auto"
    synchronous_sends: bool = False


@dataclass(frozen=True)
class TrainConfig:
    """Model, optimizer and settings of a training; the attributes are the parameters of `Trainer`."""

    model: MLP
    optimizer: Optimizer = field(default_factory=SGD)
    schedule: LearningRateSchedule = field(default_factory=Constant)
    batch_size: Count = 100
    seed: Seed = 0
    dtype: DTypeLike = "float32"
    shuffle: bool = True
    clip_norm: Positive | None = None
    model_split: ModelSplit = "columns"
    overlap: AutoOrBool = "auto"
    shared_replicas: AutoOrBool = "auto"
    distribution: Distribution = "local"
    log_every: Count = 10
    evaluate_every: Count = 1
    evaluate_every_steps: Seed = 0
    drain_every: Count = 1
    weight_error: Seed = 0
    pipelining: Pipelining = field(default_factory=Pipelining)

    def items(self) -> dict[str, object]:
        """The attributes by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def checked(self) -> Self:
        """A validated copy, with `batch_size` as an int and `dtype` as a NumPy dtype.

        Raises
        ------
        SettingError
            For the first setting that is not allowed.
        """
        require_choice("training.dtype", getattr(self.dtype, "__name__", str(self.dtype)), DTYPES)
        evaluation = "evaluate_every", "evaluate_every_steps", "drain_every", "weight_error"
        require_fields("training", self, ("batch_size", "seed", "clip_norm", *evaluation))
        require_fields("output", self, ("log_every",))
        require_fields("data", self, ("distribution",))
        require_fields("parallel", self, ("model_split", "overlap", "shared_replicas"))
        require_fields("parallel", self.pipelining, ("microbatches", "chunks", "vertical_sync", "weight_grad"))
        return replace(self, batch_size=int(self.batch_size), dtype=np.dtype(self.dtype))
