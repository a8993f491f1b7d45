"""`hybridnn study`: run many trainings along a few axes, as processes or Slurm jobs, and report them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridnn.cli.options import Format, OutputFormat, count, option
from hybridnn.cli.output import write_json
from hybridnn.cli.ranks import first_rank_alone, launch_rank
from hybridnn.errors import EnvironmentProblem

app = typer.Typer(help="Run and report a study: many runs along a few axes.")

StudyName = Annotated[str, typer.Argument(help="A study file, or the name of a ready study.", metavar="FILE")]
OutFolder = Annotated[Path | None, option("Folder of the study; runs/studies/NAME by default.", "FOLDER", "--out")]
Reduced = Annotated[bool, typer.Option("--reduced", help="Run the short form that the file describes.")]


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
        option(
            "Starts a program on {ranks} ranks; in Slurm jobs also {nodes}. By default the launcher of -n.", "COMMAND"
        ),
    ] = None,
    out: OutFolder = None,
    reduced: Reduced = False,
    only: Annotated[str | None, option("Only cells whose id contains this; * and ? are wildcards.", "PATTERN")] = None,
    cell: Annotated[int | None, option("Only the cell of this number, from 0 (see --dry-run).", "N")] = None,
    limit: Annotated[
        float | None, option("End a cell after so many seconds; without, no limit.", "SECONDS", least=0.1)
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
    partition: Annotated[str | None, option("Partition of the jobs.", "NAME")] = None,
    time: Annotated[str | None, option("Limit of each cell, as sbatch reads it.", "TIME")] = None,
    account: Annotated[str | None, option("Account of the jobs.", "NAME")] = None,
    more: Annotated[
        list[str] | None, option("Another option of sbatch; may be given many times.", "OPTION", "--sbatch")
    ] = None,
    ranks_per_node: Annotated[
        int | None, count("Ranks of a cell on one node; as many as it has cores for by default.")
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
    out: Annotated[Path | None, option("Folder of the report; FOLDER/report by default.", "FOLDER")] = None,
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
