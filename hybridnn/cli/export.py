"""`hybridnn export`: the weights of a run in one file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridnn.cli.ranks import first_rank_alone
from hybridnn.cli.trained_options import Best, Checkpoint, Force, Run


def export(
    run: Run,
    out: Annotated[Path, typer.Argument(help="The file to write.", metavar="WEIGHTS.npz", show_default=False)],
    fold_standardization: Annotated[
        bool,
        typer.Option(
            "--fold-standardization",
            help="Put the standardization into the first and the last layer, so that the network takes and gives "
            "numbers in their original units.",
        ),
    ] = False,
    checkpoint: Checkpoint = None,
    best: Best = False,
    force: Force = False,
) -> None:
    """Write the weights of a run, and what its inputs were standardized with, as plain arrays."""
    from hybridnn.cli.trained_options import require_new_file, warn_of_damage, weights_words
    from hybridnn.runs.inference.export import export_arrays
    from hybridnn.runs.inference.trained_run import open_run
    from hybridnn.utils.files import npz_bytes, write_atomically

    with first_rank_alone():
        require_new_file("WEIGHTS.npz", out, [".npz"], replace=force)
        trained = open_run(run, checkpoint, best=best)
        write_atomically(out, npz_bytes(export_arrays(trained, fold_standardization=fold_standardization)))
        warn_of_damage(trained.source)
        print(f"{out}: the weights of {weights_words(trained.source)}")
