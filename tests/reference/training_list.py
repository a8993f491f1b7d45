"""All trainings that must equal the serial reference or the replay of their method, whatever their layout.

`all_cases` needs no pytest: ``random.sample(all_cases(), 100)`` are cases for `run_training_case`.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice, product

from reference.cases import OPTIMIZERS, Case
from reference.pipeline_cases import (
    ADAM,
    COSINE,
    DEEP,
    DELAYED_CASES,
    FEW,
    MOMENTUM,
    ODD,
    SINGLE,
    TRAININGS,
    UNEVEN,
    PipelineCase,
    exact_cases,
    few_of_each,
    short_training,
)
from reference.pipelines import predicts
from reference.sweeps import DISTRIBUTIONS, SPLITS, grid_shapes, layouts, sizes_for, trainings
from reference.training_cases import Grid, TrainingCase

Cases = Iterator[TrainingCase]

SHARED_REPLICA, PRIVATE_REPLICA = "SharedReplica", "PrivateReplica"


def methods(stages: int) -> dict[str, PipelineCase]:
    """Every method, in all its forms."""
    return {**DELAYED_CASES, **exact_cases(stages)}


def shapes(*numbers: int) -> Iterator[tuple[int, int, Grid]]:
    """Number of ranks, model ranks and grid of every grid without a pipeline."""
    for ranks in numbers:
        for _, model in grid_shapes(ranks):
            yield ranks, model, Grid(model=model)


def on_grids() -> Cases:
    """Splits, distributions, overlap and residual layers on every grid; every optimizer and task on every grid."""
    for ranks, model, grid in shapes(1, 2, 3, 4, 5, 6, 7, 8):
        shape = (ranks // model, model)
        few = ranks in (1, 5, 7)
        for case in islice(layouts(shape), 0, None, 5 if few else 1):
            yield TrainingCase(ranks, grid, case)
        for case in islice(trainings(shape), 0, None, 3 if few else 1):
            yield TrainingCase(ranks, grid, case)


def in_pieces() -> Cases:
    """Gradients in many buckets, and messages in pieces. The networks are far smaller than a bucket is otherwise."""
    for ranks, model, grid in shapes(2, 4):
        for number, case in enumerate(trainings((ranks // model, model))):
            yield TrainingCase(ranks, grid, replace(case, shared_replicas=False), bucket_bytes=(1, 700)[number % 2])
        for split, distribution, overlap in product(SPLITS, DISTRIBUTIONS, (True, False)):
            how = {"model_split": split, "distribution": distribution, "overlap": overlap, "shared_replicas": False}
            yield TrainingCase(ranks, replace(grid, message_limit=200), Case((5, 13, 7, 11, 6), **how))
    for model in (1, 2):
        grid, case = Grid(pipeline=2, model=model, message_limit=200), replace(ODD, shared_replicas=False)
        for it in (PipelineCase("spectrain", case), PipelineCase("gpipe", case, microbatches=3)):
            yield TrainingCase(4, grid, it)


def narrow_layers() -> Cases:
    """Layers of widths 1, 2 and 3, of which some model ranks have no rows."""
    for optimizer, split in product(("momentum", "adam"), SPLITS):
        for (ranks, _, grid), shared, overlap in product(shapes(2, 3, 4), (False, "auto"), (False, True)):
            how = {"model_split": split, "shared_replicas": shared, "overlap": overlap}
            case = Case((5, 13, 2, 3, 1), False, optimizer=optimizer, clip_norm=0.1 if overlap else None, **how)
            yield TrainingCase(ranks, grid, case)
        for ranks, sizes in product((2, 3, 4), ((5, 3, 3, 3, 2), (5, 1, 1, 1, 2))):
            case = Case(sizes, residual=True, optimizer=optimizer, model_split=split)
            yield TrainingCase(ranks, Grid(model=ranks), case)


def every_gradient() -> Cases:
    """Gradients of every step, for uneven minibatches; and with many layers, which alternate between buffers."""
    for (ranks, _, grid), classification in product(shapes(1, 2, 3, 4), (True, False)):
        for samples, batch_size in ((10, 10), (11, 5), (7, 3), (3, 8), (1, 1)):
            case = Case((5, 13, 7, 11, 4), classification, samples=samples, batch_size=batch_size, epochs=1)
            yield TrainingCase(ranks, grid, case, every_gradient=True)
    for (ranks, _, grid), split, overlap in product(shapes(2, 4), SPLITS, (True, False)):
        for distribution, residual in zip(DISTRIBUTIONS, (True, False, True), strict=True):
            how = {"model_split": split, "distribution": distribution, "overlap": overlap, "residual": residual}
            case = Case((7, 7, 9, 9, 9, 12, 12, 12, 12, 5), epochs=2, samples=23, **how)
            yield TrainingCase(ranks, grid, case, every_gradient=True)


def in_float32() -> Cases:
    for (ranks, model, grid), split, distribution in product(shapes(1, 2, 4), SPLITS, DISTRIBUTIONS):
        for classification in (True, False):
            sizes, how = sizes_for(model, split, False, classification), {"optimizer": "adam", "clip_norm": 0.5}
            case = Case(sizes, classification, model_split=split, distribution=distribution, **how)
            yield TrainingCase(ranks, grid, case, "float32", 1e-3)
    for stages in (2, 3):
        for it in methods(stages).values():
            yield TrainingCase(stages, Grid(pipeline=stages), replace(it, case=ADAM), "float32", 1e-4)


def uneven(it: PipelineCase, stages: int) -> tuple[int, ...]:
    """Layers of each part. A chunk of no layers is refused, so two on four ranks leave but one partition of eight."""
    return (1,) * (2 * stages - 1) + (9 - 2 * stages,) if it.chunks == 2 else UNEVEN[stages]


def pipelines() -> Cases:
    """Pipelines of one rank per stage."""
    for it in exact_cases(1).values():
        yield TrainingCase(1, Grid(), it)
        for training in TRAININGS.values():
            yield TrainingCase(1, Grid(), replace(it, case=training, microbatches=it.microbatches and 1))
    for optimizer, it in product(OPTIMIZERS, DELAYED_CASES.values()):
        if it.method not in ("spectrain", "lwp", "pipemare") or predicts(OPTIMIZERS[optimizer][1]):
            yield TrainingCase(3, Grid(pipeline=3), replace(it, case=replace(MOMENTUM, optimizer=optimizer)))
    for it in DELAYED_CASES.values():  # a stage clips its own norm
        yield TrainingCase(3, Grid(pipeline=3), replace(it, case=replace(MOMENTUM, clip_norm=0.05)))
    for stages in (2, 3, 4):
        grid = Grid(pipeline=stages)
        # Every method trains every training, on layers split evenly or not: what it has evenly, the next has not.
        for turn, it in enumerate(methods(stages).values()):
            for number, training in enumerate(TRAININGS.values()):
                partition = uneven(it, stages) if (number + turn) % 2 else "uniform"
                yield TrainingCase(stages, grid, replace(it, case=training, partition=partition))
            for training, partition in ((MOMENTUM, "uniform"), (FEW, uneven(it, stages))):
                sending = replace(it, case=training, partition=partition, blocking_sends=True)
                yield TrainingCase(stages, grid, sending)
        for it in DELAYED_CASES.values():  # repeat a part of their schedule
            yield TrainingCase(stages, grid, replace(it, case=replace(MOMENTUM, batch_size=2, samples=89)))
        few = product(("gpipe", "1f1b", "zb-h1"), ((5, ADAM), (3, FEW), (20, MOMENTUM)))
        for method, (microbatches, training) in few:  # minibatches of fewer samples
            yield TrainingCase(stages, grid, PipelineCase(method, training, microbatches))
        yield TrainingCase(stages, grid, PipelineCase("interleaved", ADAM, 2 * stages, chunks=2))
        yield TrainingCase(stages, grid, PipelineCase("1f1b", microbatches=3, partition="profile"))
        for it in exact_cases(stages).values():
            yield TrainingCase(stages, grid, replace(it, case=replace(MOMENTUM, clip_norm=0.05)))
        one_sample = replace(MOMENTUM, batch_size=1, samples=6)
        for it in (*DELAYED_CASES.values(), PipelineCase("1f1b"), PipelineCase("gpipe", microbatches=2)):
            yield TrainingCase(stages, grid, replace(it, case=one_sample))


def deep_pipelines() -> Cases:
    """Two to eight uneven stages in two epochs of twice as many minibatches, with one drain or two."""
    for stages, (method, optimizer) in product(range(2, 9), DEEP_TRAININGS):
        sizes = tuple(DEEP[layer % len(DEEP)] for layer in range(stages + 4))
        case = Case(sizes, optimizer=optimizer, samples=6 * stages + 1, batch_size=3, epochs=2)
        partition = (2, *(1,) * (stages - 2), 3)
        it = PipelineCase(method, case, partition=partition, drain_every=1 + stages % 2)
        yield TrainingCase(stages, Grid(pipeline=stages), it)


def deep_exact_pipelines() -> Cases:
    """Two to six stages of uneven layers with every exact method; optimizers, losses and clipping in turn."""
    for stages, (number, it) in product(range(2, 7), enumerate(exact_cases(6).values())):
        widths, chunks = tuple(DEEP[layer % len(DEEP)] for layer in range(2 * stages + 4)), it.chunks
        optimizer = list(OPTIMIZERS)[(number + 5 * stages) % len(OPTIMIZERS)]
        clip_norm = 0.05 if (number + stages) % 2 else None
        case = Case(widths, stages % 2 == 0, optimizer=optimizer, samples=31, epochs=1, clip_norm=clip_norm)
        layers = (2, *(1,) * (chunks * stages - 2), len(widths) - 1 - chunks * stages)
        microbatches = it.microbatches and (2 * stages if it.microbatches in (6, 7, 12) else it.microbatches)
        again = replace(it, case=case, partition=layers, microbatches=microbatches)
        yield TrainingCase(stages, Grid(pipeline=stages), again)


DEEP_TRAININGS = (
    *product(DELAYED_CASES, ("momentum", "adam")),
    ("pipemare", "pipemare"),
    ("pipemare", "pipemare-adam"),
    ("vanilla", "pipemare"),
    ("pipedream", "nadam"),
    ("pipedream", "nesterov"),
    ("lwp", "spike"),
)
"""All asynchronous methods with momentum and Adam, and with the update rules that make up for delays."""


WIDTHS: dict[int, tuple[tuple[tuple[int, int], ...], ...]] = {
    3: (((1, 1), (2, 1)), ((2, 1), (1, 1)), ((1, 2), (1, 1)), ((1, 1), (1, 2))),
    4: (((2, 1), (1, 2)), ((3, 1), (1, 1)), ((1, 1), (1, 2), (1, 1))),
    5: (((2, 1), (1, 1), (1, 2)), ((2, 1), (3, 1)), ((1, 3), (1, 2))),
}
"""Batch and model ranks of every stage, by number of ranks."""


def pipelines_of_wide_stages() -> Cases:
    """Pipelines whose stages have several ranks."""
    for ranks in range(2, 9):
        for stages in (stages for stages in range(2, ranks + 1) if ranks % stages == 0):
            for (batch, model), it in product(grid_shapes(ranks // stages), methods(stages).values()):
                if ranks > 4 and (stages, batch, model) != (2, 2, 2):
                    it = replace(it, case=short_training(it.method, stages))
                yield TrainingCase(ranks, Grid(stages, model), it)
    for model in (1, 2):
        grid = Grid(2, model)
        for it in few_of_each(2):
            yield TrainingCase(4, grid, it)
        for it, training in product(DELAYED_CASES.values(), (ODD, ADAM, FEW)):
            yield TrainingCase(4, grid, replace(it, case=training))
        for split, overlap in product(SPLITS, (True, False)):
            case = replace(MOMENTUM, overlap=overlap, model_split=split, shared_replicas=False)
            for it in (PipelineCase("pipedream", case), PipelineCase("gpipe", case, microbatches=3)):
                yield TrainingCase(4, grid, it)
    clipped = replace(MOMENTUM, clip_norm=0.05)
    for grid in (Grid(2, 1), Grid(2, 2), Grid(stages=((2, 1), (1, 2)))):
        yield TrainingCase(4, grid, PipelineCase("1f1b", clipped, microbatches=3))
    narrow = Case((5, 8, 2, 1), classification=False, samples=50, batch_size=12, epochs=2)
    for it in (it for it in methods(2).values() if it.chunks == 1):
        for widths in (((1, 1), (1, 3)), ((1, 2), (1, 3))):  # of more ranks than their layers have outputs
            yield TrainingCase(sum(model for _, model in widths), Grid(stages=widths), replace(it, case=narrow))
    for it in few_of_each(2):
        yield TrainingCase(8, Grid(2, 2), it)
    for ranks, layouts_of_ranks in WIDTHS.items():
        for place, widths in enumerate(layouts_of_ranks):
            grid = Grid(stages=widths)
            for number, it in enumerate(few_of_each(len(widths))):
                if ranks == 4 or (number + place) % 2 == 0:
                    yield TrainingCase(ranks, grid, it)
            for it in (DELAYED_CASES["fr"], DELAYED_CASES["pipedream"], PipelineCase("1f1b", microbatches=3)):
                yield TrainingCase(ranks, grid, replace(it, case=ODD, blocking_sends=True))


THREE = replace(MOMENTUM, epochs=3)
"""Four minibatches per epoch, the last of 7 samples."""


def full_pipelines() -> Cases:
    """Pipelines that drain after several epochs; also epochs of two minibatches and of one: fewer than stages."""
    for turn, it in enumerate(replace(it, drain_every=3) for it in DELAYED_CASES.values()):
        trainings = (THREE, ADAM, COSINE, replace(FEW, epochs=5), replace(SINGLE, epochs=7))
        for number, case in enumerate(trainings):
            stages = 2 + (turn + number) % 3
            yield TrainingCase(stages, Grid(pipeline=stages), replace(it, case=case))
        yield TrainingCase(4, Grid(pipeline=4), replace(it, case=THREE, drain_every=2))
        yield TrainingCase(4, Grid(pipeline=4), replace(it, case=replace(SINGLE, epochs=7), drain_every=7))
        many = replace(THREE, batch_size=2, samples=41)
        yield TrainingCase(3, Grid(pipeline=3), replace(it, case=many))
        yield TrainingCase(3, Grid(pipeline=3), replace(it, case=THREE, blocking_sends=True))
        for shared_replicas in (True, False):
            yield TrainingCase(4, Grid(pipeline=2), replace(it, case=replace(THREE, shared_replicas=shared_replicas)))


SHARED = (
    Case(optimizer="adam", clip_norm=0.3),
    Case(classification=False, optimizer="nesterov", samples=31),
    Case(optimizer="plain", samples=5, batch_size=3),
)
"""With clipping, a last minibatch of one sample, and minibatches of fewer samples than there may be ranks."""

NODES: dict[int, tuple[tuple[tuple[int, ...], int], ...]] = {
    3: (((0, 0, 1), 1),),
    4: (((0, 0, 1, 1), 1), ((0, 0, 0, 1), 1), ((0, 0, 0, 0), 2)),
    6: (((0, 0, 0, 0, 1, 1), 2),),
}
"""Node of every rank, and model ranks."""


def replicas() -> Cases:
    """Replicas that the ranks of a node share, and replicas of their own."""
    for case, ranks in product(SHARED, (2, 3, 4)):
        for shared, kind in ((True, SHARED_REPLICA), (False, PRIVATE_REPLICA)):
            yield TrainingCase(ranks, Grid(), replace(case, shared_replicas=shared), tolerance=1e-12, replica=kind)
    for ranks, layouts_of_ranks in NODES.items():
        for (nodes, model), case in product(layouts_of_ranks, SHARED):
            yield TrainingCase(ranks, Grid(model=model, nodes=nodes), replace(case, shared_replicas=True))
    # The three ranks of the first stage are on two nodes, and the fourth one has a replica of its own.
    two_nodes = Grid(stages=((3, 1), (1, 1)), nodes=(0, 0, 1, 1))
    for number, it in enumerate(methods(2).values()):
        training = (MOMENTUM, ADAM, FEW, COSINE)[number % 4] if it.chunks == 1 else MOMENTUM
        it = replace(it, case=replace(training, shared_replicas=True))
        yield TrainingCase(4, Grid(pipeline=2), it, replica=SHARED_REPLICA)
        yield TrainingCase(4, two_nodes, it)


LARGE = Case(sizes=(16, 256, 256, 3), epochs=2)
"""70,915 parameters; minibatches of 10, the last one of 7."""

WIDE = (
    replace(LARGE, optimizer="plain", samples=31, schedule="cosine"),  # a last minibatch of one sample
    replace(LARGE, sizes=(5, 190, 190, 190, 4), residual=True, schedule="step"),
    replace(LARGE, classification=False, optimizer="dampened-alone", batch_size=3, samples=8, schedule="warmup-linear"),
    # Wide layers of a multiple of 16, whose activations are stored sample by sample.
    Case((4, 512, 512, 2), False, "selu", batch_size=128, samples=179, epochs=1),
)


def wide_layers() -> Cases:
    """Layers whose gradients are larger than a block of an update."""
    for ranks, case in product((1, 2), WIDE):
        yield TrainingCase(ranks, Grid(), case, tolerance=1e-12)


@lru_cache(maxsize=1)
def all_cases() -> tuple[TrainingCase, ...]:
    """Every case once."""
    families = (
        on_grids,
        in_pieces,
        narrow_layers,
        every_gradient,
        in_float32,
        pipelines,
        pipelines_of_wide_stages,
        full_pipelines,
        deep_pipelines,
        deep_exact_pipelines,
        replicas,
        wide_layers,
    )
    return tuple(dict.fromkeys(case for family in families for case in family()))
