"""`hybridnn schedule`: what every stage of a pipeline does, when, and with which weights."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from hybridnn.cli.pictures import PictureFormat, choose_format, write_file, write_picture, write_text


class WeightGrad(str, Enum):
    """How an exact method takes the weight gradients of a minibatch's microbatches."""

    per_microbatch = "per-microbatch"
    merged = "merged"


def schedule(
    method: Annotated[
        str | None, typer.Argument(help="A pipeline method; without one, they are listed.", metavar="METHOD")
    ] = None,
    stages: Annotated[int, typer.Option("--stages", min=1, help="Ranks along the pipeline.")] = 4,
    minibatches: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Minibatches until the pipeline is empty; by default twice the stages, and 1 if they are cut.",
            show_default=False,
        ),
    ] = None,
    microbatches: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Parts that each minibatch is cut into; by default twice the stages, if the method cuts them.",
            show_default=False,
        ),
    ] = None,
    chunks: Annotated[
        int | None,
        typer.Option(min=1, help="Parts of the layers per stage; by default 2 for interleaved.", show_default=False),
    ] = None,
    vertical_sync: Annotated[
        bool, typer.Option("--vertical-sync", help="pipedream: every stage uses the version of the first stage.")
    ] = False,
    weight_grad: Annotated[
        WeightGrad, typer.Option(help="One weight gradient per microbatch, or one product over all of them.")
    ] = WeightGrad.per_microbatch,
    forward: Annotated[float, typer.Option(min=0.0, help="Duration of a stage's forward pass.")] = 1.0,
    backward: Annotated[float, typer.Option(min=0.0, help="Duration of its whole backward pass.")] = 2.0,
    weight: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="The part of it that computes the gradients of the weights; by default half.",
            show_default=False,
        ),
    ] = None,
    message: Annotated[float, typer.Option(min=0.0, help="Duration of a message between two stages.")] = 0.0,
    versions: Annotated[
        bool, typer.Option("--versions", help="Print the weight versions of every minibatch, for any method.")
    ] = False,
    output_format: Annotated[
        PictureFormat | None,
        typer.Option("--format", help="By default what the file's name says, or text. JSON counts from 0."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="A file for the result.", metavar="FILE")] = None,
) -> None:
    """Draw what every stage of a pipeline does, with which weights, and prove that it cannot deadlock."""
    from hybridnn.cli.schedule_view import print_methods, print_report, schedule_facts
    from hybridnn.pipeline.checks.lint import lint
    from hybridnn.pipeline.checks.simulate import Durations, simulate
    from hybridnn.pipeline.drawing.drawing import draw_timeline
    from hybridnn.pipeline.schedules.methods import METHODS, make_schedule
    from hybridnn.utils.text import to_json

    if method is None:
        print_methods()
        return
    picture = choose_format(output_format, out)
    known = METHODS.get(method)  # an unknown one is refused by `make_schedule`
    is_cut = known is not None and known.cuts_minibatches
    made = make_schedule(
        method,
        stages=stages,
        minibatches=minibatches or (1 if is_cut else 2 * stages),
        microbatches=microbatches or (2 * stages if is_cut else 1),
        chunks=chunks or (2 if known is not None and known.chunked else 1),
        weight_grad=weight_grad.value,
        vertical_sync=vertical_sync,
    )
    lint(made)
    durations = Durations(forward, backward, backward / 2 if weight is None else weight, message)
    timeline = simulate(made, durations)
    if picture is PictureFormat.text:
        write_text(lambda console: print_report(console, timeline, durations, all_versions=versions), out)
    elif picture is PictureFormat.json:
        write_file(to_json(schedule_facts(timeline, durations), indent=2) + "\n", out)
    else:
        write_picture(draw_timeline(timeline), picture, out)
