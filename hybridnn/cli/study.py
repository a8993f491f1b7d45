"""`hybridnn study`: run many trainings along a few axes, as processes or Slurm jobs, and report them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hybridnn.cli.options import Format, OutputFormat
from hybridnn.cli.output import write_json
from hybridnn.cli.ranks import first_rank_alone, launch_rank
from hybridnn.errors import EnvironmentProblem

app = typer.Typer(help="Run and report a study: many runs along a few axes.")

StudyName = Annotated[str, typer.Argument(help="A study file, or the name of a ready study.", metavar="FILE")]
OutFolder = Annotated[
    Path | None,
    typer.Option("--out", help="Folder of the study; runs/studies/NAME by default.", metavar="FOLDER"),
]
Reduced = Annotated[bool, typer.Option("--reduced", help="Run the short form that the file describes.")]


def _slurm_option(name: str, meaning: str, metavar: str) -> Any:
    return typer.Option(name, help=meaning, metavar=metavar)


@app.callback(invoke_without_command=True)
def _study(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list")
def list_studies(output_format: OutputFormat = Format.text) -> None:
    """List the ready studies, which `run` takes by name."""
    from hybridnn.cli.study_view import print_studies
    from hybridnn.study.study_file import load_study, ready_studies

    with first_rank_alone():
        studies = {path: load_study(path) for path in ready_studies().values()}
    if output_format is Format.json:
        write_json([{"name": s.name, "description": s.description, "file": str(path)} for path, s in studies.items()])
    else:
        print_studies(studies)


@app.command("run")
def run(
    file: StudyName,
    launcher: Annotated[
        str | None,
        typer.Option(
            "--launcher",
            help="Starts a program on {ranks} ranks; in Slurm jobs also {nodes}. By default the launcher of -n.",
            metavar="COMMAND",
        ),
    ] = None,
    out: OutFolder = None,
    reduced: Reduced = False,
    only: Annotated[
        str | None,
        typer.Option("--only", help="Only cells whose id contains this; * and ? are wildcards.", metavar="PATTERN"),
    ] = None,
    cell: Annotated[
        int | None,
        typer.Option("--cell", help="Only the cell of this number, from 0 (see --dry-run).", metavar="N"),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            "--limit", min=0.1, help="End a cell after so many seconds; without, no limit.", metavar="SECONDS"
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells and commands, and run nothing.")] = False,
) -> None:
    """Run the cells of a study that are not finished; call it again to continue."""
    if launch_rank() is not None:
        raise EnvironmentProblem("study run starts the launcher itself: call it without mpirun or srun")
    from hybridnn.study.study_file import load_study

    study = load_study(file, reduced=reduced)

    from hybridnn.cli.study_view import StudyProgress, print_plan
    from hybridnn.study.runner import default_folder, plan_study, run_study
    from hybridnn.study.study_folder import FAILURES

    planned = plan_study(study, out or default_folder(study), launcher, only, cell)
    if dry_run:
        print_plan(planned)
        return
    with StudyProgress(planned) as view:
        outcomes = run_study(planned, view, limit=limit)
        view.summarize(outcomes)
    if any(outcome.status in FAILURES for outcome in outcomes):
        raise typer.Exit(1)


@app.command("submit")
def submit(
    file: StudyName,
    out: OutFolder = None,
    reduced: Reduced = False,
    partition: Annotated[str | None, _slurm_option("--partition", "Partition of the jobs.", "NAME")] = None,
    time: Annotated[str | None, _slurm_option("--time", "Limit of each cell, as sbatch reads it.", "TIME")] = None,
    account: Annotated[str | None, _slurm_option("--account", "Account of the jobs.", "NAME")] = None,
    more: Annotated[
        list[str] | None,
        typer.Option("--sbatch", help="Another option of sbatch; may be given many times.", metavar="OPTION"),
    ] = None,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(
            "--ranks-per-node",
            min=1,
            help="Ranks of a cell on one node; as many as it has cores for by default.",
            metavar="N",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script and commands, submit nothing.")] = False,
) -> None:
    """Submit the missing cells of a study as Slurm job arrays, and its report for when they have ended."""
    from hybridnn.cli.study_view import print_submission, print_submitted
    from hybridnn.study.runner import default_folder
    from hybridnn.study.study_file import load_study
    from hybridnn.study.submit import SlurmOptions, plan_submission
    from hybridnn.study.submit import submit as submit_all

    with first_rank_alone():
        study = load_study(file, reduced=reduced)
        options = SlurmOptions(partition, time, account, tuple(more or ()), ranks_per_node)
        submission = plan_submission(study, file, out or default_folder(study), options)
        if dry_run or not submission.arrays:
            print_submission(submission)
        else:
            print_submitted(submission, *submit_all(submission))


@app.command("report")
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a study.", metavar="FOLDER")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the report; FOLDER/report by default.", metavar="FOLDER"),
    ] = None,
    output_format: OutputFormat = Format.text,
) -> None:
    """Write the tables, plots and page of a study's finished cells; exit code 1 where cells failed."""
    from hybridnn.cli.study_view import print_report, report_facts
    from hybridnn.study.report_files import write_report
    from hybridnn.study.results import read_results

    with first_rank_alone():
        results = read_results(folder)
        files = write_report(results, out or folder / "report")
        if output_format is Format.json:
            write_json(report_facts(results, files))
        else:
            print_report(results, files)
        if results.failures:
            raise typer.Exit(1)
