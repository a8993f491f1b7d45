"""`hybridnn study`: run many trainings along a few axes, as processes or Slurm jobs, and report them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hybridnn.cli.options import Force, Key, OutputFormat, command_group, count, option, study_names
from hybridnn.cli.output import (
    make_console,
    new_table,
    print_settings,
    print_table,
    require_new_file,
    write_file,
    write_json,
)
from hybridnn.cli.ranks import first_rank_alone, launch_rank
from hybridnn.errors import EnvironmentProblem, SettingError
from hybridnn.utils.text import counted, format_numbers

if TYPE_CHECKING:
    from hybridnn.study.cells import Cell
    from hybridnn.study.results import StudyResults
    from hybridnn.study.runner import StudyRun
    from hybridnn.study.submit import Submission


app = command_group("Run and report a study: many runs along a few axes.")

StudyName = Annotated[
    str,
    typer.Argument(help="A study file, or the name of a ready study.", metavar="FILE", autocompletion=study_names),
]
OutFolder = Annotated[Path | None, option("Folder of the study; runs/studies/NAME by default.", "FOLDER", "--out")]
Reduced = Annotated[bool, typer.Option("--reduced", help="Run the short form that the file describes.")]


@app.command("list")
def list_studies(output_format: OutputFormat = "text") -> None:
    """List the ready studies, which `run` takes by name."""
    from hybridnn.study.study_file import ready_studies

    with first_rank_alone():
        studies = [_study_facts(path) for path in ready_studies().values()]
    if not studies:
        raise EnvironmentProblem("no studies are installed; pip install hybridnn-papers adds those of the papers")
    if output_format == "json":
        write_json(studies)
        return
    for study in studies:
        lines = [study["description"], study["paper"], *map(_form_text, study["forms"]), study["file"]]
        print("\n  ".join([study["name"], *filter(None, lines)]))


def _study_facts(path: Path) -> dict[str, Any]:
    """A ready study: its name, paper and file, and the duration and state of its full and reduced form."""
    from hybridnn.study.runner import default_folder
    from hybridnn.study.study_file import load_study
    from hybridnn.study.study_folder import StudyFolder

    study = load_study(path)
    forms = [study, load_study(path, reduced=True)] if study.keys.reduced else [study]
    states = [StudyFolder(default_folder(form)).progress() for form in forms]
    return {
        **study.keys.model_dump(include={"name", "description", "paper"}),
        "forms": [
            {"reduced": form.reduced, "minutes": form.keys.minutes, "state": state}
            for form, state in zip(forms, states, strict=True)
        ],
        "file": str(path),
    }


def _form_text(form: Mapping[str, Any]) -> str:
    """The duration and state of a form of a study."""
    name = "reduced" if form["reduced"] else "full"
    minutes = "" if form["minutes"] is None else f", about {form['minutes']:g} minutes"
    return f"{name}{minutes}: {form['state']}"


@app.command("keys")
def list_keys(key: Key = None, output_format: OutputFormat = "text") -> None:
    """List the keys and axes of a study file, with what each allows and its default."""
    from hybridnn.config.reference import Setting, keys_of
    from hybridnn.study.axes import AXES
    from hybridnn.study.study_file import StudyFile

    axes = [Setting(f"axes.{axis.name}", axis.label, "", axis.description) for axis in AXES.values()]
    with first_rank_alone():
        print_settings([*keys_of(StudyFile), *axes], key, "key", output_format)


@app.command("run")
def run(
    file: StudyName,
    launcher: Annotated[
        str | None,
        option(
            "Starts a program on {ranks} ranks; in Slurm jobs also {nodes}. By default the launcher of -n.", "COMMAND"
        ),
    ] = None,
    out: OutFolder = None,
    reduced: Reduced = False,
    only: Annotated[
        str | None,
        option("Run only cells whose id contains this, where * and ? are wildcards (default: all).", "PATTERN"),
    ] = None,
    cell: Annotated[
        int | None, option("Run only the cell of this number, from 0 as --dry-run lists them (default: all).", "N")
    ] = None,
    limit: Annotated[
        float | None, option("End a cell after so many seconds (default: no limit).", "SECONDS", least=0.1)
    ] = None,
    jobs: Annotated[int, count("Run N cells at once, where the study does not compare times.", "--jobs")] = 1,
    accept_disturbed: Annotated[
        bool,
        typer.Option("--accept-disturbed", help="Do not repeat cells that are disturbed; the report marks them."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the cells with their predicted times, and run nothing.")
    ] = False,
    commands: Annotated[
        bool, typer.Option("--commands", help="Print the command of every cell, and run nothing.")
    ] = False,
) -> None:
    """Run the cells of a study that are not finished; call it again to continue."""
    if launch_rank() is not None:
        raise EnvironmentProblem("study run starts the launcher itself: call it without mpirun or srun")
    from hybridnn.study.study_file import load_study

    study = load_study(file, reduced=reduced)

    from hybridnn.cli.study_view import StudyProgress
    from hybridnn.comm.launcher import in_job
    from hybridnn.study.cells import require_own_processor
    from hybridnn.study.runner import default_folder, plan_study, run_study
    from hybridnn.study.study_folder import FAILURES

    planned = plan_study(study, out or default_folder(study), launcher, only, cell)
    if dry_run or commands:
        _print_plan(planned, commands=commands)
        return
    if launcher is None:  # which may place the ranks on other nodes
        require_own_processor(study)
    on_this_node = launcher is None and not study.keys.in_process and not in_job(os.environ)
    with closing(StudyProgress(planned, on_this_node=on_this_node)) as view:
        outcomes = run_study(planned, view, limit=limit, jobs=jobs, accept_disturbed=accept_disturbed)
        view.summarize(outcomes)
    if any(outcome.status in FAILURES for outcome in outcomes):
        raise typer.Exit(1)


@app.command("new")
def new(
    settings: Annotated[Path, typer.Argument(help="The settings file of the training.", metavar="SETTINGS.toml")],
    ranks: Annotated[str, option("Numbers of ranks to compare.", "N,N,...")] = "1,2,4",
    out: Annotated[Path | None, option("The study file; SETTINGS-layouts.toml by default.", "FILE", "--out")] = None,
    force: Force = False,
) -> None:
    """Write the file of a study that finds the fastest layout of a training, to edit and run."""
    from hybridnn.config.settings import load_settings
    from hybridnn.study.study_file import new_study

    load_settings(settings)
    path = out or Path(f"{settings.stem}-layouts.toml")
    require_new_file("--out", path, replace=force)
    write_file(new_study(path.stem, settings, ranks), path)
    print(f"edit it, then: {shlex.join(['hybridnn', 'study', 'run', str(path)])}")


@app.command("submit")
def submit(
    file: StudyName,
    out: OutFolder = None,
    reduced: Reduced = False,
    partition: Annotated[str | None, option("Partition of the jobs (default: Slurm decides).", "NAME")] = None,
    time: Annotated[
        str | None,
        option("Time limit of each cell, as sbatch reads it (default: Slurm decides).", "TIME"),
    ] = None,
    more: Annotated[
        list[str] | None, option("Another option of sbatch; may be given many times.", "OPTION", "--sbatch")
    ] = None,
    ranks_per_node: Annotated[
        int | None, count("Ranks of a cell on one node; as many as it has cores for by default.")
    ] = None,
    share_nodes: Annotated[
        bool, typer.Option("--share-nodes", help="Let jobs share nodes in a study that compares times, too.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script and commands, submit nothing.")] = False,
) -> None:
    """Submit the missing cells of a study as Slurm job arrays, and its report for when they have ended."""
    from hybridnn.study.runner import default_folder
    from hybridnn.study.study_file import load_study
    from hybridnn.study.submit import SlurmOptions, plan_submission
    from hybridnn.study.submit import submit as submit_all

    with first_rank_alone():
        study = load_study(file, reduced=reduced)
        options = SlurmOptions(partition, time, tuple(more or ()), ranks_per_node, share_nodes)
        submission = plan_submission(study, file, out or default_folder(study), options)
        if dry_run or not submission.arrays:
            _print_submission(submission)
        else:
            _print_submitted(submission, *submit_all(submission))
        if submission.arrays and submission.is_timed and share_nodes:
            print("warning: --share-nodes: other jobs on the nodes of the cells may disturb their times")


@app.command("report")
def report(
    folders: Annotated[
        list[Path], typer.Argument(help="The folder of a study; several are compared.", metavar="FOLDER...")
    ],
    out: Annotated[
        Path | None, option("Folder of the report; by default FOLDER/report, of several FOLDER/comparison.", "FOLDER")
    ] = None,
    pictures: Annotated[Literal["svg", "png", "pdf"], typer.Option(help="Format of the plots.")] = "svg",
    columns: Annotated[
        int, option("Width of the plots in columns of a page, 1 or 2: 8.4 or 17.5 cm.", "N", least=1, most=2)
    ] = 1,
    output_format: OutputFormat = "text",
) -> None:
    """Write the report of a study's finished cells: tables and plots; exit code 1 where cells failed."""
    from hybridnn.drawing.figures import COLUMN, TWO_COLUMNS
    from hybridnn.study.report import report_facts, write_report
    from hybridnn.study.results import read_results

    with first_rank_alone():
        results = read_results(*folders)
        place = out or folders[0] / ("report" if len(folders) == 1 else "comparison")
        files = write_report(results, place, pictures, COLUMN if columns == 1 else TWO_COLUMNS)
        if output_format == "json":
            write_json(report_facts(results) | {"files": [str(path) for path in files]})
        else:
            _print_report(results, files)
        if results.failures:
            raise typer.Exit(1)


def _print_plan(run: StudyRun, *, commands: bool) -> None:
    """Print a table of the chosen cells with states and prices, or their commands, and what was left out."""
    from hybridnn.study.answer import price_warnings
    from hybridnn.study.cells import CellPrice, price_cells

    numbers = {cell.id: number for number, cell in enumerate(run.plan.cells)}
    missing = [cell for cell in run.chosen if not run.folder.has_ended(cell.id)]
    prices = price_cells(run.study, missing)
    groups: dict[tuple[str, str], list[Cell]] = {}
    remarks: dict[str, list[str]] = {}
    for cell in run.chosen:
        command, problem = _command_of(run, cell)
        if commands:
            print(command or f"# {cell.id} {problem}")
        price = prices.cells.get(cell.id) if prices is not None else None
        values = str({label: value for label, value in cell.values.items() if label != "repeat"})
        groups.setdefault((values, run.folder.state(cell.id).status), []).append(cell)
        for remark in filter(None, [problem, f"no prediction: {price}" * isinstance(price, str)]):
            remarks.setdefault(remark, []).append(str(numbers[cell.id]))
    if commands:
        return
    rows = []
    for (_, status), cells in groups.items():  # repeats in one state have one row, with the sums of their costs
        known = [price for cell in cells if prices and isinstance(price := prices.cells.get(cell.id), CellPrice)]
        costs = f"{sum(price.seconds for price in known):.4g}", f"{sum(price.core_hours for price in known):.3g}"
        name = f"{cells[0].id} and {counted(len(cells) - 1, 'repeat')}" if len(cells) > 1 else cells[0].id
        row = (format_numbers(numbers[cell.id] for cell in cells), name, status)
        rows.append((*row, *(costs if known else ("", ""))))
    titles = ("cell", "state", "seconds of\ntraining", "core-\nhours")
    shown = len(rows[0]) if any(row[-1] for row in rows) else 3
    table = [row[:shown] for row in rows]
    print_table(make_console(), new_table(("",), titles[: shown - 1], table, show_edge=False))
    for remark, concerned in remarks.items():
        print(f"{', '.join(concerned)}: {remark}")
    for line in run.plan.left_out:
        print(line)
    if prices is None:
        print("no machine file, and so no prediction of the time: `machine` in the study file names one")
    elif missing:
        print(prices.total_text)
        for warning in price_warnings(prices.machine, missing):
            print(f"warning: {warning}")
    print(f"{counted(len(run.chosen), 'cell')} in {run.folder.path}")


def _command_of(run: StudyRun, cell: Cell) -> tuple[str, str]:
    """The command of a cell, or why the launcher has none."""
    try:
        return shlex.join(run.command(cell)), ""
    except SettingError as error:
        return "", f"cannot be started here: {error}"


def _print_submission(submission: Submission) -> None:
    """Print the batch script and the commands that would submit it."""
    if not submission.arrays:
        state = "finished or queued" if submission.queued else "finished"
        print(f"all {len(submission.plan.cells)} cells are {state}: nothing to submit")
        _print_queued(submission)
        return
    print(submission.script)
    commands = [submission.array_command(array) for array in submission.arrays]
    for command in [*commands, submission.report_command(["JOB"] * len(commands))]:
        print(f"$ {shlex.join(command)}")


def _print_queued(submission: Submission) -> None:
    """Print the number of queued cells of each earlier submission."""
    for job in dict.fromkeys(submission.queued.values()):
        count = sum(queued == job for queued in submission.queued.values())
        print(f"job {job}: {counted(count, 'cell')} of an earlier submission")


def _print_submitted(submission: Submission, jobs: Sequence[str], report: str) -> None:
    """Print the number and purpose of each job."""
    _print_queued(submission)
    for job, array in zip(jobs, submission.arrays, strict=True):
        cells = counted(len(array.cells), "cell")
        print(f"job {job}: {cells} on {counted(array.ranks, 'rank')}")
    print(f"job {report}: the report, when they have ended")
    print(f"script and output in {submission.job_folder}")


def _print_report(results: StudyResults, files: Sequence[Path]) -> None:
    """Print fastest layouts, the table of points, warnings, unfinished cells with their reasons, and the files."""
    from hybridnn.study.answer import answers_of, conditions_text, warnings_of
    from hybridnn.study.report import THREADS, point_rows
    from hybridnn.study.results import mark_note

    if results.findings.summary:
        print(results.findings.summary)
    for text in answers_of(results):
        print(text)
    rows = point_rows(results)
    threads = {row[THREADS] for row in rows}
    if len(threads) == 1:  # a line in place of a column
        rows = [{title: text for title, text in row.items() if title != THREADS} for row in rows]
    titles = [title.replace(" ", "\n") for title in rows[0]]
    print_table(make_console(), new_table((), titles, (tuple(row.values()) for row in rows), show_edge=False))
    if len(threads) == 1:
        print(f"BLAS {THREADS}: {threads.pop()}")
    print(f"{conditions_text(results)} {mark_note(results.points)}".rstrip())
    for lines in results.findings.lines:
        print("\n    ".join(lines))
    for warning in warnings_of(results):
        print(f"warning: {warning}")
    for cell in results.cells:
        if cell.run.diverged is not None:
            print(f"diverged: {cell.id}: {cell.run.diverged.reason}")
    if results.unfinished:
        counts = results.unfinished_counts
        print(f"{len(results.unfinished)} of {len(results.manifest.cells)} cells are not finished: {counts}")
        for status, text in results.unfinished_texts:
            print(f"  {status:<11}  {text}")
    for path in files:
        print(path)
