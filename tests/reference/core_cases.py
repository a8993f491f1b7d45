"""A few trainings that together use every split, pipeline method, optimizer, rate, loss and setting."""

from dataclasses import replace
from typing import Any

from reference.cases import OPTIMIZERS, Case
from reference.pipeline_cases import ADAM, COSINE, FEW, MOMENTUM, ODD, PipelineCase
from reference.training_cases import Grid, TrainingCase
from reference.training_list import WIDE

SIZES = (5, 13, 7, 11, 4)
RESIDUAL = (6, 6, 6, 9, 9, 3)
SHARED = replace(MOMENTUM, shared_replicas=True)
CLIPPED = replace(MOMENTUM, clip_norm=0.05)

STAGES = ((2, 1), (1, 2))
"""Batch and model ranks of two stages."""


def grid_case(ranks: int, model: int, sizes: tuple[int, ...] = SIZES, **settings: Any) -> TrainingCase:
    """A training on a grid of batch and model ranks, with every gradient."""
    return TrainingCase(ranks, Grid(model=model), Case(sizes, **settings), every_gradient=True)


GRIDS = {
    "one rank": grid_case(1, 1, optimizer="dampened", activation="sigmoid", schedule="step", classification=False),
    "batch, shared": grid_case(2, 1, optimizer="adam", clip_norm=0.3, samples=31),
    "batch, own replicas in buckets": replace(
        grid_case(3, 1, optimizer="rmsprop", activation="relu", distribution="scatter", shared_replicas=False),
        bucket_bytes=700,
    ),
    "batch of fewer samples than ranks": grid_case(4, 1, optimizer="decay", samples=5, batch_size=3, overlap=False),
    "two nodes": TrainingCase(4, Grid(nodes=(0, 0, 0, 1)), Case(optimizer="adam", clip_norm=0.3, shared_replicas=True)),
    "columns": grid_case(2, 2, optimizer="adamw", activation="selu", schedule="cosine"),
    "alternating": grid_case(
        3, 3, RESIDUAL, residual=True, optimizer="nesterov", model_split="alternating", clip_norm=0.1
    ),
    "2 x 2, columns": grid_case(
        4, 2, RESIDUAL, residual=True, optimizer="adamw", schedule="warmup-linear", distribution="scatter-broadcast"
    ),
    "2 x 2, alternating": grid_case(
        4, 2, optimizer="plain", model_split="alternating", distribution="scatter", overlap=False, samples=31
    ),
    "more ranks than outputs": grid_case(4, 4, (5, 13, 2, 3, 1), classification=False, activation="identity"),
    # Of so many outputs and so few samples that the gradient of its inputs is a transposed product.
    "a tall layer": grid_case(2, 2, (5, 9, 640, 4), model_split="alternating"),
    "messages in pieces": TrainingCase(2, Grid(model=2, message_limit=200), Case(SIZES, shared_replicas=False)),
    "wide layers": TrainingCase(1, Grid(), WIDE[2]),
    "float32": TrainingCase(4, Grid(model=2), Case(SIZES, optimizer="adam", clip_norm=0.5), "float32", 1e-3),
}

PIPELINES = {
    "sequential": TrainingCase(2, Grid(2), PipelineCase("sequential", ADAM)),
    "gpipe": TrainingCase(2, Grid(2), PipelineCase("gpipe", CLIPPED, 3, weight_grad="per-microbatch")),
    "gpipe, merged, 2 x 2": TrainingCase(4, Grid(2, 2), PipelineCase("gpipe", ODD, 4, weight_grad="merged")),
    "accumulation": TrainingCase(2, Grid(2), PipelineCase("gpipe", FEW, 3, weight_grad="per-microbatch")),
    "1f1b": TrainingCase(3, Grid(3), PipelineCase("1f1b", COSINE, 4, partition=(1, 2, 5))),
    "1f1b of wide stages": TrainingCase(4, Grid(stages=STAGES), PipelineCase("1f1b", CLIPPED, 3)),
    "1f1b, divided by measured times": TrainingCase(
        2, Grid(2), PipelineCase("1f1b", microbatches=3, partition="profile")
    ),
    "1f1b, more ranks than outputs": TrainingCase(
        4, Grid(stages=((1, 1), (1, 3))), PipelineCase("1f1b", Case((5, 8, 2, 1), classification=False))
    ),
    "interleaved": TrainingCase(2, Grid(2), PipelineCase("interleaved", CLIPPED, 4, chunks=2)),
    "eager-1f1b": TrainingCase(3, Grid(3), PipelineCase("eager-1f1b", COSINE, 5)),
    "looped-bfs": TrainingCase(2, Grid(2), PipelineCase("looped-bfs", CLIPPED, 3, chunks=2, partition=(1, 3, 2, 2))),
    "zb-h2": TrainingCase(3, Grid(3), PipelineCase("zb-h2", ADAM, 7)),
    "interleaved-zb": TrainingCase(2, Grid(2), PipelineCase("interleaved-zb", CLIPPED, 4, chunks=3)),
    "zb-v": TrainingCase(4, Grid(2, 2), PipelineCase("zb-v", COSINE, 5, chunks=2, partition=(3, 1, 2, 2))),
    "zb-v, clipped": TrainingCase(2, Grid(2), PipelineCase("zb-v", CLIPPED, 4, chunks=2, blocking_sends=True)),
    "dualpipe-v": TrainingCase(3, Grid(3), PipelineCase("dualpipe-v", FEW, 6, chunks=2)),
    "v-half": TrainingCase(4, Grid(stages=STAGES), PipelineCase("v-half", ADAM, 5, chunks=2)),
    "v-min": TrainingCase(4, Grid(4), PipelineCase("v-min", MOMENTUM, 8, chunks=2)),
    "hanayo": TrainingCase(2, Grid(2), PipelineCase("hanayo", COSINE, 4, chunks=4)),
    "hanayo, merged": TrainingCase(4, Grid(2), PipelineCase("hanayo", SHARED, 3, chunks=2, weight_grad="merged")),
    "zb-h1": TrainingCase(3, Grid(3), PipelineCase("zb-h1", replace(CLIPPED, optimizer="nesterov"), 4)),
    "zb-h1, alternating": TrainingCase(
        4, Grid(2, 2), PipelineCase("zb-h1", replace(MOMENTUM, model_split="alternating"), 3)
    ),
    "gpipe, alternating": TrainingCase(
        4, Grid(2, 2), PipelineCase("gpipe", replace(MOMENTUM, model_split="alternating"), 3, weight_grad="merged")
    ),
    "zb-h1, fewer samples than microbatches": TrainingCase(2, Grid(2), PipelineCase("zb-h1", ADAM, 5)),
    "searched": TrainingCase(3, Grid(3), PipelineCase("searched", CLIPPED, 5, partition=(1, 2, 5))),
    "ddg": TrainingCase(3, Grid(3), PipelineCase("ddg", replace(FEW, samples=17))),
    "fr": TrainingCase(4, Grid(2, 2), PipelineCase("fr", COSINE)),
    "ddg, barriers": TrainingCase(3, Grid(3), PipelineCase("ddg", MOMENTUM, barriers=True)),
    "fr, barriers": TrainingCase(4, Grid(2, 2), PipelineCase("fr", ADAM, barriers=True)),
    "fr, blocking sends": TrainingCase(4, Grid(4), PipelineCase("fr", FEW, blocking_sends=True)),
    "pipedream": TrainingCase(3, Grid(3), PipelineCase("pipedream", COSINE, partition=(1, 2, 5))),
    "pipedream, a long epoch": TrainingCase(
        3, Grid(3), PipelineCase("pipedream", replace(MOMENTUM, batch_size=2, samples=61, epochs=1))
    ),
    "pipedream, float32": TrainingCase(2, Grid(2), PipelineCase("pipedream", ADAM), "float32", 1e-4),
    "pipedream, shared": TrainingCase(4, Grid(2), PipelineCase("pipedream", replace(ADAM, shared_replicas=True))),
    "vertical sync": TrainingCase(3, Grid(3), PipelineCase("pipedream-vsync", ADAM)),
    "pipedream-2bw": TrainingCase(3, Grid(3), PipelineCase("pipedream-2bw", MOMENTUM)),
    "vanilla": TrainingCase(3, Grid(3), PipelineCase("vanilla", replace(MOMENTUM, optimizer="rmsprop"))),
    "spectrain": TrainingCase(3, Grid(3), PipelineCase("spectrain", COSINE)),
    "spectrain, momentum": TrainingCase(4, Grid(stages=STAGES), PipelineCase("spectrain", MOMENTUM)),
    "lwp, spike compensation": TrainingCase(3, Grid(3), PipelineCase("lwp", replace(MOMENTUM, optimizer="spike"))),
    "spike compensation, shared": TrainingCase(4, Grid(2), PipelineCase("vanilla", replace(SHARED, optimizer="spike"))),
    "pipemare": TrainingCase(
        3, Grid(3), PipelineCase("pipemare", replace(MOMENTUM, optimizer="pipemare"), partition=(1, 2, 5))
    ),
    "pipemare, milestone": TrainingCase(
        3, Grid(3), PipelineCase("pipemare", replace(MOMENTUM, schedule="step"), drain_every=2)
    ),
    "clipped stages": TrainingCase(4, Grid(2), PipelineCase("pipedream", replace(MOMENTUM, clip_norm=0.05))),
    "pipemare, adam": TrainingCase(
        4, Grid(stages=STAGES), PipelineCase("pipemare", replace(ADAM, optimizer="pipemare-adam"), drain_every=2)
    ),
    "asynchronous nesterov": TrainingCase(3, Grid(3), PipelineCase("pipedream", replace(COSINE, optimizer="nadam"))),
    "one drain, shared": TrainingCase(4, Grid(2), PipelineCase("fr", SHARED, drain_every=2)),
    "two epochs and one": TrainingCase(
        3, Grid(3), PipelineCase("pipedream", replace(MOMENTUM, epochs=3), drain_every=2)
    ),
    "drains of an exact method": TrainingCase(2, Grid(2), PipelineCase("1f1b", MOMENTUM, 3, drain_every=2)),
}

USED = {it.case.optimizer for it in (*GRIDS.values(), *PIPELINES.values())}
OTHERS = {name: grid_case(2, 1, optimizer=name) for name in sorted(OPTIMIZERS.keys() - USED)}
"""Optimizers that have no case above."""

CORE_CASES = {**GRIDS, **PIPELINES, **OTHERS}
