"""`hybridnn predict`: what the network of a run says of the samples of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridnn.cli.in_process import InProcess, on_ranks, require_one_way
from hybridnn.cli.start_ranks import Ranks, start_ranks
from hybridnn.cli.trained_options import BatchRanks, Best, Checkpoint, Force, ModelRanks, Run, Stages


def predict(
    run: Run,
    file: Annotated[
        Path,
        typer.Argument(
            help="Samples: a .csv file that has the input columns of the run, in any order, or a .npz file with an "
            "array x.",
            metavar="FILE",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="A .csv or .npz file to write.", metavar="FILE")] = Path(
        "predictions.csv"
    ),
    checkpoint: Checkpoint = None,
    best: Best = False,
    pipeline: Stages = None,
    batch: BatchRanks = None,
    model: ModelRanks = None,
    force: Force = False,
    ranks: Ranks = None,
    in_process: InProcess = None,
) -> None:
    """Write classes and their probabilities, or numbers in the units of the targets, for samples without targets."""
    require_one_way(ranks, in_process)
    start_ranks(ranks)
    from hybridnn.cli.trained_options import make_grid, require_new_file, warn_of_columns, warn_of_damage, weights_words
    from hybridnn.comm.agreement import agree
    from hybridnn.runs.inference.prediction import predict_file
    from hybridnn.runs.inference.trained_run import open_run
    from hybridnn.utils.files import write_atomically

    def predict_rank() -> None:
        grid = make_grid(pipeline, batch, model)
        suffixes = [".csv", ".npz"]
        agree(grid.world, lambda: require_new_file("--out", out, suffixes, replace=force) if grid.rank == 0 else None)
        trained = open_run(run, checkpoint, grid.world, best=best)
        found = predict_file(trained, grid, file)

        def write() -> None:
            if found is not None:
                write_atomically(out, found.to_csv() if out.suffix == ".csv" else found.to_npz())

        agree(grid.world, write)
        if found is not None:
            warn_of_damage(trained.source)
            warn_of_columns(str(file), found.ignored)
            print(f"{out}: {len(found.values):,} predictions with the weights of {weights_words(trained.source)}")

    on_ranks(in_process, predict_rank)
