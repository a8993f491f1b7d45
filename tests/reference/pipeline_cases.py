"""Pipeline cases: run by hybridnn in a pipeline and by the serial replay of its method, and compared."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import hybridnn
from hybridnn.comm.transport import Transport
from hybridnn.nn.kernels import Array
from reference import pipelines
from reference.cases import Case, changed, check_outcome, data, make_trainer, plan_of
from reference.cases import reference as exact_reference
from reference.pipelines import DELAYED, Pipeline
from reference.serial import Outcome

DEEP = (5, 7, 6, 9, 8, 5, 4, 6, 3)
"""Widths of eight layers: two chunks for each of four ranks."""
RESIDUAL = (6, 6, 6, 8, 8, 8, 8, 7, 4)

MOMENTUM = Case(DEEP, epochs=2)
"""Four minibatches per epoch, the last of 7 samples."""
ADAM = Case(DEEP, classification=False, optimizer="adam", samples=31, epochs=2)
"""The last minibatch has one sample."""
FEW = Case(RESIDUAL, activation="selu", residual=True, optimizer="nesterov", samples=5, batch_size=3, epochs=3)
"""Two minibatches: fewer than stages."""
SINGLE = Case(DEEP, classification=False, samples=9, batch_size=20, epochs=2)
"""One minibatch, smaller than the batch size."""
COSINE = Case(DEEP, activation="relu", optimizer="adamw", schedule="cosine", samples=24, batch_size=4, epochs=2, seed=1)
"""Six minibatches; the learning rate changes in every update."""
ODD = Case((5, 9, 7, 5, 9, 3), optimizer="momentum", samples=31, epochs=2)
"""Widths that two or three ranks do not divide; the last minibatch is one sample, so that batch ranks go without."""
TRAININGS = {"momentum": MOMENTUM, "adam": ADAM, "few": FEW, "single": SINGLE, "cosine": COSINE}

UNEVEN = {1: (8,), 2: (5, 3), 3: (1, 2, 5), 4: (3, 1, 1, 3)}
"""Layers of each stage, by number of stages."""


@dataclass(frozen=True)
class PipelineCase:
    """A training in a pipeline, with the options of its pipeline."""

    method: str
    case: Case = MOMENTUM
    microbatches: int | None = None
    chunks: int = 1
    partition: str | tuple[int, ...] = "uniform"
    weight_grad: str = "auto"
    blocking_sends: bool = False
    """Where it is sent, every message waits until its receive has begun: see `block_sends`."""
    drain_every: int = 1
    barriers: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of the trainer."""
        names = {field.name for field in fields(self)} - {"case", "blocking_sends"}
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in changed(self) if name not in ("method", "case")]
        return ", ".join([self.method, *words, str(self.case)])


def block_sends(transport: Transport) -> None:
    """Make sends block until they are received (``MPI_Ssend``), so that progress cannot depend on MPI's buffers."""

    def send(array: Array, peer: int, tag: int) -> list[Any]:
        requests = [transport._comm.Issend(piece, peer, tag) for piece in transport._pieces(array)]
        requests[0].Waitall(requests)
        return requests

    transport.send = send  # type: ignore[method-assign]


DELAYED_CASES = {method: PipelineCase(method) for method in DELAYED}
"""All asynchronous methods."""


def exact_cases(stages: int) -> dict[str, PipelineCase]:
    """All exact methods, with numbers of microbatches that do not divide the minibatch where the method allows this."""
    return {
        "sequential": PipelineCase("sequential"),
        "gpipe": PipelineCase("gpipe", microbatches=3, weight_grad="per-microbatch"),
        "gpipe-merged": PipelineCase("gpipe", microbatches=4, weight_grad="merged"),
        "1f1b": PipelineCase("1f1b", microbatches=4, weight_grad="per-microbatch"),
        "1f1b-merged": PipelineCase("1f1b", microbatches=3, weight_grad="merged"),
        "1f1b-auto": PipelineCase("1f1b"),
        "interleaved": PipelineCase("interleaved", microbatches=2 * stages, chunks=2, weight_grad="per-microbatch"),
        "interleaved-merged": PipelineCase("interleaved", microbatches=stages, chunks=2, weight_grad="merged"),
        "zb-h1": PipelineCase("zb-h1", microbatches=stages + 1),
        "searched": PipelineCase("searched", microbatches=stages + 1, weight_grad="per-microbatch"),
        "searched-auto": PipelineCase("searched"),
        "eager-1f1b": PipelineCase("eager-1f1b", microbatches=5),
        "looped-bfs": PipelineCase("looped-bfs", microbatches=3, chunks=2),
        "zb-h2": PipelineCase("zb-h2", microbatches=2 * stages + 1),
        "interleaved-zb": PipelineCase("interleaved-zb", microbatches=2 * stages, chunks=2),
        "zb-v": PipelineCase("zb-v", microbatches=2 * stages + 1, chunks=2),
        "dualpipe-v": PipelineCase("dualpipe-v", microbatches=2 * stages, chunks=2),
        "v-half": PipelineCase("v-half", microbatches=5, chunks=2),
        "v-min": PipelineCase("v-min", microbatches=4, chunks=2),
        "hanayo": PipelineCase("hanayo", microbatches=4, chunks=2),
    }


def few_of_each(stages: int) -> Iterator[PipelineCase]:
    """Every method once, every training with some of them."""
    trainings = (ODD, ADAM, FEW, COSINE, SINGLE, MOMENTUM)
    for number, it in enumerate([*DELAYED_CASES.values(), *exact_cases(stages).values()]):
        case = trainings[number % len(trainings)]
        # Two chunks a rank need as many layers.
        yield replace(it, case=MOMENTUM if 2 * stages > len(case.sizes) - 1 and it.chunks == 2 else case)


def short_training(method: str, stages: int) -> Case:
    """One epoch of few minibatches, the last of one sample; enough for each delay of asynchronous methods.

    Every stage has layers for two chunks, and one stage has an additional layer. Four ranks can split each layer.
    """
    sizes = tuple(DEEP[layer % 8] for layer in range(2 * stages + 2))
    minibatches = stages + 2 if method in DELAYED else 3
    return Case(sizes, samples=4 * minibatches - 3, batch_size=4, epochs=1)


@lru_cache(maxsize=256)
def _replay(case: Case, pipeline: Pipeline) -> Outcome:
    return pipelines.train(case.network, plan_of(case), pipeline, *data(case))


def expected_outcome(pipelined: PipelineCase, stages: int) -> Outcome:
    """Training by the replay or the serial reference, which do not depend on grid, order and messages."""
    if pipelined.method not in DELAYED:
        return exact_reference(pipelined.case)
    case = replace(pipelined.case, model_split="columns", overlap=True, shared_replicas="auto")
    uniform = pipelines.uniform(case.network.layers, stages)
    layers = uniform if isinstance(pipelined.partition, str) else pipelined.partition
    return _replay(case, Pipeline(pipelined.method, layers, pipelined.drain_every))


def pipelined_trainer(
    pipelined: PipelineCase, grid: hybridnn.ProcessGrid, dtype: str = "float64", **settings: Any
) -> hybridnn.Trainer:
    return make_trainer(pipelined.case, grid, dtype, **pipelined.settings, **settings)


def run_pipelined(
    pipelined: PipelineCase, grid: hybridnn.ProcessGrid, dtype: str = "float64", **settings: Any
) -> hybridnn.Trainer:
    """Train the case on `grid`."""
    trainer = pipelined_trainer(pipelined, grid, dtype, **settings)
    trainer.fit(*data(pipelined.case), epochs=pipelined.case.epochs, validation=data(pipelined.case, "test"))
    return trainer


def check_pipelined(pipelined: PipelineCase, grid: hybridnn.ProcessGrid, **settings: Any) -> hybridnn.Trainer:
    """Train on `grid` and compare weights, optimizer state, records, predictions and metrics with the replay."""
    trainer = run_pipelined(pipelined, grid, **settings)
    check_outcome(trainer, pipelined.case, expected_outcome(pipelined, grid.pipeline), f"{pipelined} on {grid!r}")
    return trainer
