"""Options of a training, without the data, the ranks and the device: the only list of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import Parameter, Signature, signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.errors import SettingError
from hybridnn.nn.learning_rates import Constant, LearningRateSchedule
from hybridnn.nn.mlp import MISSING, MLP
from hybridnn.nn.optimizers import SGD, Optimizer
from hybridnn.parallel.dense import MODEL_SPLITS
from hybridnn.pipeline.layout import PARTITIONS
from hybridnn.pipeline.schedules.methods import METHODS, WEIGHT_GRADIENTS, find_method
from hybridnn.utils.checks import (
    AtLeastZero,
    AutoOrBool,
    Checked,
    Count,
    OneOf,
    Positive,
    Seed,
    as_spelled,
    described,
    instance_of,
    must_be_one_of,
    require_fields,
    require_type,
    type_hints,
    with_advice,
)

if TYPE_CHECKING:
    from typing_extensions import Self

Init = TypeVar("Init", bound=Callable[..., None])

DTYPES = ("float32", "float64")
DEVICES = ("auto", "cpu", "gpu")
DISTRIBUTIONS = ("local", "scatter", "scatter-broadcast")
TRANSPORTS = ("auto", "staging", "mpi", "nccl")

ADVICE: Mapping[str, str] = MappingProxyType(
    {
        **MISSING,
        **dict.fromkeys(("loss", "activation", "residual", "initializer"), "give it to MLP"),
        **dict.fromkeys(("lr", "learning_rate"), "give it to the optimizer, as in Adam(lr=0.01)"),
        **dict.fromkeys(("momentum", "weight_decay"), "give it to the optimizer, as in SGD(momentum=0.5)"),
        **dict.fromkeys(("epochs", "validation", "callbacks", "progress"), "give it to fit"),
        "validation_data": "give fit validation=(x, y)",
        "metrics": "epochs have the validation loss, and accuracy or R²",
    }
)
"""What to write in place of arguments of `Trainer` and `TrainConfig` that are none."""


@with_advice({})
@described
@dataclass(frozen=True)
class DeviceOptions:
    """Settings of the device, ``[device]`` of a settings file."""

    name: Annotated[str, OneOf(DEVICES), "Device; auto: a GPU if every rank has one, else the CPU."] = "auto"
    transport: Annotated[
        str,
        OneOf(TRANSPORTS),
        "How arrays of GPUs travel between ranks; auto: NCCL if every rank has its own GPU, else staging. `staging`: "
        "through pinned host memory; `mpi`: by device-aware MPI.",
    ] = "auto"
    tf32: Annotated[bool, "Round factors of float32 products to TF32 on a GPU: faster and less precise."] = False
    graphs: Annotated[
        AutoOrBool,
        "Replay steps as CUDA graphs. Requires samples in GPU memory, and either a single rank or batch ranks that are "
        "connected by NCCL; otherwise the kernels of a step are launched one by one. With auto that is also done if "
        "CUDA refuses the graph of a single rank, which is an error with true.",
    ] = "auto"

    def __post_init__(self) -> None:
        require_fields("device", self)


def option(section: str, default: Any, *, of_pipelines: bool = False) -> Any:
    """Declare an option of `TrainConfig`, with its section of a settings file; empty: it is no key of one.

    `of_pipelines` is for options without effect on a single stage.
    """
    return field(default=default, metadata={"section": section, "of_pipelines": of_pipelines})


def _dtype_name(dtype: Any) -> str | None:
    name = as_spelled(getattr(dtype, "__name__", str(dtype)), DTYPES)
    return str(name) if name in DTYPES else None


def _method_name(name: Any) -> str:
    return find_method(name).name


def _method_names() -> str:
    return must_be_one_of(METHODS).removeprefix("must be ")


def _partition(value: Any) -> Any:
    if isinstance(value, str):
        name = as_spelled(value, PARTITIONS)
        return name if name in PARTITIONS else None
    return _of_type(value, tuple[Count, ...])


def _order(value: Any) -> Any:
    return _of_type(value, tuple[str, ...] if isinstance(value, Sequence) else Count)


def _of_type(value: Any, kind: Any) -> Any:
    try:
        return require_type("", value, kind) or None
    except SettingError:
        return None


def _schedule(value: Any) -> Any:
    return None if isinstance(value, type) or not callable(getattr(value, "multiplier", None)) else value


@with_advice(ADVICE)
@described
@dataclass(frozen=True)
class TrainConfig:
    """All options of a training, the same on every rank; the keyword arguments of `Trainer`.

    A settings file has them in the sections that they name, and the command line and the comparison between ranks are
    derived from this class. On a single stage all exact pipeline methods are the same training, without effect of the
    other options of pipelines, and asynchronous methods are refused.
    """

    model: Annotated[MLP, instance_of(MLP, "an MLP, for example MLP([3, 4, 1])")]
    optimizer: Annotated[Optimizer, instance_of(Optimizer, "an optimizer, for example SGD(lr=0.1)")] = field(
        default_factory=SGD
    )
    schedule: Annotated[
        LearningRateSchedule, Checked(_schedule, "a learning-rate schedule, for example Cosine() or LambdaLR(function)")
    ] = field(default_factory=Constant)
    batch_size: Annotated[Count, "Samples of a minibatch, over all ranks."] = option("training", 100)
    shuffle: Annotated[bool, "Draw a new order of the samples every epoch."] = option("training", True)
    seed: Annotated[Seed, "Seed of the initial weights, the order and the splits of the samples."] = option(
        "training", 0
    )
    dtype: Annotated[DTypeLike, Checked(_dtype_name, "'float32' or 'float64'"), "Element type of all arrays."] = option(
        "training", "float32"
    )
    clip_norm: Annotated[
        Positive | None,
        "Scale gradients with a larger global norm down to this norm. With an asynchronous method it is the norm of a "
        "stage.",
    ] = option("training", None)
    class_weight: Annotated[
        Annotated[str, OneOf(("balanced",))] | None,
        "`balanced`: all classes count alike in the training loss; on the CPU. The loss of every sample is multiplied "
        "by samples / (classes * samples of its class). Evaluations count every sample once.",
    ] = option("training", None)
    evaluate_every: Annotated[Count, "Epochs between two evaluations. The last epoch is always evaluated."] = option(
        "training", 1
    )
    evaluate_every_steps: Annotated[
        Seed,
        "Steps between two evaluations within epochs; 0: none. Each gives an `EvaluationRecord`, and does not count as "
        "training time. With an asynchronous method each rank keeps a copy of its weights for each, until the "
        "pipeline has drained.",
    ] = option("training", 0)
    drain_every: Annotated[
        Count,
        "Epochs after which the pipeline of an asynchronous method drains. It drains after epochs whose number is a "
        "multiple, and after the last epoch of `fit`. Records, evaluations and callbacks of the epochs between follow "
        "then, each with the weights after its epoch.",
    ] = option("training", 1)
    distribution: Annotated[
        str,
        OneOf(DISTRIBUTIONS),
        "Distribution of the minibatches. Unless it is `local`, only rank 0 needs data; the other ranks may pass None.",
    ] = option("data", "local")
    log_every: Annotated[Count, "Steps between two `StepRecord`."] = option("output", 10)
    stall_seconds: Annotated[
        AtLeastZero,
        "Deadline of the stall watchdog; 0: none. If a rank waits and nothing completes on any rank for this time, "
        "the job ends with a message that names the missing rank and its line of the script. Longer work of a single "
        "rank is announced with `Trainer.busy`.",
    ] = option("output", 60.0)
    model_split: Annotated[str, OneOf(MODEL_SPLITS), "Split of the layers over the model axis."] = option(
        "parallel", "columns"
    )
    overlap: Annotated[
        AutoOrBool, "Overlap communication with the backward pass; auto: between nodes and on GPUs, where it can pay."
    ] = option("parallel", "auto")
    shared_replicas: Annotated[
        AutoOrBool,
        "Share one copy of the weights between the batch ranks of a node; auto: if it has several. Each rank updates a "
        "slice of them and of the optimizer state. The trained weights are the same.",
    ] = option("parallel", "auto")
    method: Annotated[str, Checked(_method_name, _method_names), "Pipeline method. `hybridnn schedule` lists them."] = (
        option("parallel", "1f1b", of_pipelines=True)
    )
    microbatches: Annotated[
        Count | None,
        "Microbatches per minibatch; none: the predicted best. These are from 2 to eight per stage, if the method uses "
        "microbatches.",
    ] = option("parallel", None, of_pipelines=True)
    chunks: Annotated[Count | None, "Chunks per stage; none: the fewest of the method, 1 or 2."] = option(
        "parallel", None, of_pipelines=True
    )
    partition: Annotated[
        str | Sequence[int],
        Checked(_partition, "'balanced', 'uniform', 'profile' or a list of layer counts, for example [4, 4, 3]"),
        "Layers of each stage: `balanced` by predicted times, `uniform` numbers, `profile` by measured times, or a "
        "list. With chunks, these are the layers of each chunk of each stage, in the order of the layers. Predicted "
        "times are in `hybridnn train` those of the machine file, if there is one.",
    ] = option("parallel", "balanced", of_pipelines=True)
    order: Annotated[
        Annotated[int | Sequence[str], Checked(_order, "a number, or a list of words such as 'FFBWBW'")] | None,
        "Order of the passes with `searched`; none: the fastest that is found. A number: with so many microbatches in "
        "flight on a stage at most. A list: a word for each stage, of F forward, B input gradient, W weight gradient.",
    ] = option("parallel", None, of_pipelines=True)
    barriers: Annotated[
        bool,
        "Barrier before each forward and each backward pass of `ddg` and `fr`. A step then takes the time of Kang "
        "2019, Table 1; the trained weights are the same.",
    ] = option("parallel", False, of_pipelines=True)
    weight_grad: Annotated[
        str,
        OneOf(("auto", *WEIGHT_GRADIENTS)),
        "Weight gradients as one product over all microbatches, or one product per microbatch; auto: one, unless the "
        "method schedules weight gradients itself.",
    ] = option("", "auto", of_pipelines=True)

    def items(self) -> dict[str, Any]:
        """The attributes by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def checked(self) -> Self:
        """A copy with the values as they are used, `dtype` as one of NumPy; `SettingError` for the first wrong one."""
        kinds, used = type_hints(TrainConfig), self.items()
        for item in fields(self):
            if (value := used[item.name]) is not item.default:
                used[item.name] = require_type(SETTING_NAMES.get(item.name, item.name), value, kinds[item.name])
        return replace(self, **used | {"dtype": np.dtype(used["dtype"])})


OPTIONS = {item.name: item for item in fields(TrainConfig) if "section" in item.metadata}
"""The fields of `TrainConfig` that a settings file may have as keys, by name."""
PIPELINE_OPTIONS = frozenset(name for name, item in OPTIONS.items() if item.metadata["of_pipelines"])
"""Those without effect on a single stage."""
SETTING_NAMES = {name: f"{section}.{name}" for name, item in OPTIONS.items() if (section := item.metadata["section"])}
"""Names of the options in a settings file."""


class TrainOptions(TypedDict, total=False):
    """Types of the options for type checkers, which read literal source; a test compares them with `TrainConfig`."""

    schedule: LearningRateSchedule
    batch_size: int
    shuffle: bool
    seed: int
    dtype: DTypeLike
    clip_norm: float | None
    class_weight: str | None
    evaluate_every: int
    evaluate_every_steps: int
    drain_every: int
    distribution: str
    log_every: int
    stall_seconds: float
    model_split: str
    overlap: bool | str
    shared_replicas: bool | str
    method: str
    microbatches: int | None
    chunks: int | None
    partition: str | Sequence[int]
    order: int | Sequence[str] | None
    barriers: bool
    weight_grad: str


def show_options(init: Init) -> Init:
    """Decorator of an ``__init__`` with ``**options``: its signature names them, with their defaults."""
    *named, _ = signature(init).parameters.values()
    defaults = {"schedule": Constant()} | {name: item.default for name, item in OPTIONS.items()}
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind.__forward_arg__)
        for name, kind in TrainOptions.__annotations__.items()
    ]
    init.__signature__ = Signature([*named, *options])  # type: ignore[attr-defined]
    return init
