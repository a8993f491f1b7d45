"""`hybridnn evaluate`, `predict` and `export`: the commands that use the weights of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hybridnn.cli.options import Best, Checkpoint, Force, InProcess, ModelRanks, OutputFormat, Ranks, RunFolder, option
from hybridnn.cli.output import make_console, new_grid, new_table, require_new_file, write_json
from hybridnn.cli.ranks import first_rank_alone, on_ranks, require_one_way, start_ranks
from hybridnn.errors import SettingError

if TYPE_CHECKING:
    from rich.table import Table

    from hybridnn.runs.inference import ClassReport, Evaluation
    from hybridnn.runs.trained_run import TrainedRun, WeightsSource


MOST_CLASSES = 30  # rows of the table by class


def evaluate(
    run: RunFolder,
    data: Annotated[
        str | None,
        option(
            "A table (.csv, .parquet) that has the input columns of the run, in any order, a .npz file or the name of "
            "a data set (default: the data of the run).",
            "FILE|NAME",
        ),
    ] = None,
    targets: Annotated[str | None, option("Target columns of a table (default: those of the run).", "NAME,...")] = None,
    part: Annotated[
        Literal["test", "validation", "train"] | None,
        typer.Option(help="Data split to evaluate on (default: test, or all samples of data without splits)."),
    ] = None,
    checkpoint: Checkpoint = None,
    best: Best = False,
    model: ModelRanks = None,
    output_format: OutputFormat = "text",
    ranks: Ranks = None,
    in_process: InProcess = None,
) -> None:
    """Evaluate the weights of a run, on its own data or others; several ranks as for train."""
    require_one_way(ranks, in_process)
    start_ranks(ranks)
    from hybridnn.parallel.grid import ProcessGrid
    from hybridnn.runs.inference import evaluate_run
    from hybridnn.runs.trained_run import open_run

    columns = _names(targets)

    def evaluate_rank() -> None:
        grid = ProcessGrid(model=model or 1, stall_seconds=0)
        trained = open_run(run, checkpoint, grid.world, best=best)
        result = evaluate_run(trained, grid, data, columns, part)
        if grid.rank == 0:
            _print_evaluation(trained, result, as_json=output_format == "json")

    on_ranks(in_process, evaluate_rank)


def predict(
    run: RunFolder,
    file: Annotated[
        Path,
        typer.Argument(
            help="Samples: a table (.csv, .parquet) that has the input columns of the run, in any order, or a .npz "
            "file with an array x.",
            metavar="FILE",
        ),
    ],
    out: Annotated[Path, option("A .csv or .npz file to write.", "FILE")] = Path("predictions.csv"),
    keep: Annotated[
        str | None,
        option(
            "Columns of the table to write before the predictions, separated by commas; by default the first column, "
            "if it identifies the rows.",
            "NAMES",
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    best: Best = False,
    model: ModelRanks = None,
    force: Force = False,
    ranks: Ranks = None,
    in_process: InProcess = None,
) -> None:
    """Write classes and their probabilities, or numbers in the units of the targets, for samples without targets."""
    require_one_way(ranks, in_process)
    start_ranks(ranks)
    from hybridnn.comm.agreement import agree
    from hybridnn.parallel.grid import ProcessGrid
    from hybridnn.runs.inference import predict_file
    from hybridnn.runs.trained_run import open_run
    from hybridnn.utils.files import write_atomically
    from hybridnn.utils.text import plural

    def predict_rank() -> None:
        grid = ProcessGrid(model=model or 1, stall_seconds=0)

        def check_file() -> None:
            if grid.rank == 0:
                _require_result("--out", out, [".csv", ".npz"], replace=force)

        agree(grid.world, check_file)
        trained = open_run(run, checkpoint, grid.world, best=best)
        found = predict_file(trained, grid, file, None if keep is None else _names(keep))

        def write() -> None:
            if found is not None:
                write_atomically(out, found.to_csv() if out.suffix == ".csv" else found.to_npz())

        agree(grid.world, write)
        if found is not None:
            _warn_of_damage(trained.source)
            _warn_of_columns(str(file), found.ignored)
            count = len(found.values)
            print(f"{out}: {count:,} {plural('prediction', count)} with the weights of {_weights_text(trained.source)}")

    on_ranks(in_process, predict_rank)


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(help="The file to write.", metavar="WEIGHTS.npz")],
    fold_standardization: Annotated[
        bool,
        typer.Option(
            "--fold-standardization",
            help="Put the standardization into the first and the last layer, so that inputs and outputs of the "
            "network have their original units.",
        ),
    ] = False,
    checkpoint: Checkpoint = None,
    best: Best = False,
    force: Force = False,
) -> None:
    """Write the weights of a run, and the means and scales of its standardization, as plain arrays."""
    from hybridnn.runs.trained_run import export_arrays, open_run
    from hybridnn.utils.files import npz_bytes, write_atomically

    with first_rank_alone():
        _require_result("WEIGHTS.npz", out, [".npz"], replace=force)
        trained = open_run(run, checkpoint, best=best)
        write_atomically(out, npz_bytes(export_arrays(trained, fold_standardization=fold_standardization)))
        _warn_of_damage(trained.source)
        print(f"{out}: the weights of {_weights_text(trained.source)}")


def _require_result(name: str, path: Path, suffixes: Sequence[str], *, replace: bool) -> None:
    """Raise `SettingError` for a suffix that is not allowed, or where the file cannot be created."""
    if path.suffix not in suffixes:
        raise SettingError(name, str(path), f"the name of the file must end in {' or '.join(suffixes)}")
    require_new_file(name, path, replace=replace)


def _print_evaluation(run: TrainedRun, result: Evaluation, *, as_json: bool) -> None:
    """Print the metrics, the weights and the data, as text or JSON; warnings go to the error stream."""
    from hybridnn.runs.inference import ClassReport
    from hybridnn.utils.text import figure_text, printable

    _warn_of_damage(run.source)
    _warn_of_columns(result.data, result.ignored)
    metrics = result.metrics
    if as_json:
        weights = {"path": str(run.source.path), "step": run.source.step, "damaged": list(run.source.damaged)}
        about = {"run": str(run.folder), "weights": weights, "data": result.data, "part": result.part}
        report = {} if result.report is None else result.report.to_dict()
        write_json({**about, **asdict(metrics), **report})
        return
    name, quality = ("R²", metrics.r2) if metrics.accuracy is None else ("accuracy", metrics.accuracy)
    rows = {
        "weights": _weights_text(run.source),
        "data": f"{result.data}, {'all' if result.part == 'all' else f'the {result.part} part'}",
        "samples": f"{metrics.samples:,}",
        "loss": figure_text(metrics.loss),
        name: "not a number" if quality is None else figure_text(quality),
    }
    if metrics.roc_auc is not None and metrics.average_precision is not None and isinstance(result.report, ClassReport):
        positive = printable(result.report.names[1], 40)
        rows["ROC-AUC"] = f"{figure_text(metrics.roc_auc)} for class {positive}"
        rows["average precision"] = f"{figure_text(metrics.average_precision)} for class {positive}"
    console = make_console()
    console.print(new_grid(rows.items()))
    if isinstance(result.report, ClassReport):
        console.print(_class_table(result.report))
    elif result.report is not None:
        targets = result.report.targets
        lines = [(item.target, f"{item.r2:.4g}", f"{item.rmse:.4g}", f"{item.mae:.4g}") for item in targets]
        console.print(new_table(("target",), ("R²", "RMSE", "MAE"), lines))


def _class_table(report: ClassReport) -> Table:
    """Precision, recall and F1 of every class, of the least recognized ones if there are many, and their means."""
    from hybridnn.utils.text import printable

    classes = range(len(report.confusion))
    scores, support = report.scores, report.support
    shown = sorted(sorted(classes, key=lambda k: scores[2, k])[:MOST_CLASSES])
    names = [printable(report.names[k], 40) for k in shown]
    numbers = [(*(f"{score[k]:.4f}" for score in scores), f"{support[k]:,}") for k in shown]
    rows = [(name, *values) for name, values in zip(names, numbers, strict=True)]
    if len(shown) < len(classes):
        rows.append((f"the {MOST_CLASSES} with the least F1 of {len(classes):,}", "", "", "", ""))
    rows += [(name, *(f"{value:.4f}" for value in values), "") for name, values in report.means().items()]
    return new_table(("class",), ("precision", "recall", "F1", "samples"), rows)


def _weights_text(source: WeightsSource) -> str:
    """File and step of the weights."""
    return str(source.path) if source.step is None else f"{source.path}, step {source.step:,}"


def _warn_of_columns(file: str, ignored: Sequence[str]) -> None:
    """Print the unused columns of a table on the error stream."""
    if ignored:
        from hybridnn.utils.text import column_list

        columns = column_list(ignored)
        print(f"Warning: {file}: columns that the run was not trained on are ignored: {columns}", file=sys.stderr)


def _warn_of_damage(source: WeightsSource) -> None:
    """Print the damaged newer checkpoints on the error stream."""
    for problem in source.damaged:
        print(f"Warning: {problem}", file=sys.stderr)


def _names(text: str | None) -> tuple[str, ...]:
    """The names of columns in a text that separates them by commas."""
    from hybridnn.data.table_file import as_names

    return as_names([name.strip() for name in (text or "").split(",") if name.strip()])
