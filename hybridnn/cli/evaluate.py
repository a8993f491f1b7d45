"""`hybridnn evaluate`: how good the weights of a run are."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from hybridnn.cli.in_process import InProcess, on_ranks, require_one_way
from hybridnn.cli.output import Format
from hybridnn.cli.start_ranks import Ranks, start_ranks
from hybridnn.cli.trained_options import BatchRanks, Best, Checkpoint, ModelRanks, Run, Stages


class PartName(str, Enum):
    """Parts of a data set."""

    test = "test"
    train = "train"


def evaluate(
    run: Run,
    data: Annotated[
        str | None,
        typer.Option(
            help="A .csv file that has the input columns of the run, in any order, a .npz file or the name of a data "
            "set; without, the data of the run.",
            metavar="FILE|NAME",
            show_default=False,
        ),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            help="Target columns of a .csv file; without, those of the run.", metavar="NAME,...", show_default=False
        ),
    ] = None,
    part: Annotated[
        PartName | None,
        typer.Option(
            help="The part to evaluate on; without, the test part, or all samples of --data that has none.",
            show_default=False,
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    best: Best = False,
    pipeline: Stages = None,
    batch: BatchRanks = None,
    model: ModelRanks = None,
    output_format: Annotated[Format, typer.Option("--format", help="How to print the result.")] = Format.text,
    ranks: Ranks = None,
    in_process: InProcess = None,
) -> None:
    """Evaluate the weights of a run, on its own data or others; several ranks as for train."""
    require_one_way(ranks, in_process)
    start_ranks(ranks)
    from hybridnn.cli.evaluate_view import print_evaluation
    from hybridnn.cli.trained_options import make_grid
    from hybridnn.runs.inference.evaluation import EvaluationSamples, evaluate_run
    from hybridnn.runs.inference.trained_run import open_run

    columns = tuple(name.strip() for name in targets.split(",")) if targets else ()
    samples = EvaluationSamples(data, columns, None if part is None else part.value)

    def evaluate_rank() -> None:
        grid = make_grid(pipeline, batch, model)
        trained = open_run(run, checkpoint, grid.world, best=best)
        result = evaluate_run(trained, grid, samples)
        if grid.rank == 0:
            print_evaluation(trained, result, as_json=output_format is Format.json)

    on_ranks(in_process, evaluate_rank)
