"""`hybridnn course start | check | debug | submit`: commands in the folder of an assignment."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridnn.cli.options import count, option
from hybridnn.cli.output import make_console
from hybridnn.errors import DataError
from hybridnn.utils.text import counted

if TYPE_CHECKING:
    from rich.console import Console

    from hybridnn_course.assignment import Task
    from hybridnn_course.outcome import CheckOutcome, TaskOutcome
    from hybridnn_course.work_folder import WorkFolder


def _task_names(incomplete: str) -> list[str]:
    """Tasks of the assignment in the current folder that begin so, for the completion of shells."""
    from hybridnn.errors import HybridnnError
    from hybridnn_course.work_folder import WorkFolder

    try:
        tasks = WorkFolder.open(Path()).assignment.tasks
    except HybridnnError:
        return []
    return [task.name for task in tasks if task.name.startswith(incomplete)]


TaskName = Annotated[str, typer.Argument(help="A task of the assignment.", metavar="TASK", autocompletion=_task_names)]
Folder = Annotated[Path | None, option("Folder of the assignment (default: the current one).", "FOLDER", "--folder")]
CaseNumber = Annotated[int | None, count("Number of a public case (default: the one with the most ranks).", "--case")]
CaseRanks = Annotated[int | None, count("Take a public case on N ranks (default: the one on most ranks).", "--ranks")]

WATCH_SECONDS = 0.5
MISSING = 0
PRINTED_LINES = 10
FAILED = 1  # exit code of a failed check


def start(
    source: Annotated[Path, typer.Argument(help="The zip file of an assignment.", metavar="ZIP")],
    folder: Annotated[
        Path | None, typer.Argument(help="A new folder (default: named after the assignment).", metavar="FOLDER")
    ] = None,
) -> None:
    """Make the folder of an assignment: the handout, and files with the functions to write."""
    from hybridnn_course.work_folder import open_handed_out, write_files

    manifest, files = open_handed_out(source)
    place = folder or Path(manifest.assignment)
    write_files(place, files)
    console = make_console()
    console.print(f"{place}: {', '.join(files)}", soft_wrap=True)
    console.print("Read handout.md, change into the folder, and write the functions; hybridnn course check runs them.")


def check(
    task: Annotated[
        str | None, typer.Argument(help="A task (default: all).", metavar="TASK", autocompletion=_task_names)
    ] = None,
    folder: Folder = None,
    watch: Annotated[bool, typer.Option("--watch", help="Check again after every change of a file.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only the points.")] = False,
) -> None:
    """Run your functions on the public cases, and say what is wrong. Exit code 0 if all checks pass, else 1."""
    from hybridnn_course.tools import folder_of

    work = folder_of(folder)
    if not work.assignment.tasks:
        raise DataError(f"{work.assignment.id} has no functions to check: a person grades it")
    tasks = work.assignment.tasks if task is None else (work.assignment.task(task),)
    checked = _changes(work)  # read before the check, so that a change during it is seen
    passed = _check(work, tasks, quiet)
    with contextlib.suppress(KeyboardInterrupt):
        while watch:
            checked = _await_change(work, checked)
            make_console().print(f"\n-- {time.strftime('%H:%M:%S')} --")
            passed = _check(work, tasks, quiet)
    raise typer.Exit(0 if passed else FAILED)


def _check(work: WorkFolder, tasks: Sequence[Task], quiet: bool) -> bool:
    from hybridnn_course.carrier import Worker
    from hybridnn_course.checks import check_task
    from hybridnn_course.submission import UngradableError, file_flags

    console = make_console()
    points = possible = 0.0
    is_refused = False
    _print_other_python(console, work)
    for name, text in work.sources().items():
        try:
            for flag in file_flags(work.assignment, name, text, work.manifest.modules, work.manifest.python):
                console.print(f"a person will look at {flag}", style="yellow", soft_wrap=True)
        except UngradableError as error:
            is_refused = True
            console.print(f"the grader refuses {error}", style="yellow", soft_wrap=True)
    with Worker(work.assignment, work.sources(), work.paths(), modules=work.manifest.modules) as worker:
        for task in tasks:
            outcome = check_task(worker, work.key(task))
            points, possible = points + outcome.points, possible + outcome.possible
            if not quiet:
                _print_task(console, outcome, worker.printed, work.manifest.feedback)
                worker.printed = ""
    hidden = sum(task.points.hidden for task in tasks)
    rest = f"; hidden cases are worth {hidden:g} more" if hidden else ""
    console.print(f"{points:.4g} of {possible:.4g} points{rest}", soft_wrap=True)
    return points >= possible - 1e-9 and not is_refused


def _print_other_python(console: Console, work: WorkFolder) -> None:
    """Say where this Python is newer than the one that grades, which may be unable to read the code."""
    wanted = work.manifest.python
    if wanted and sys.version_info[:2] > tuple(map(int, wanted.split("."))):
        own = f"{sys.version_info[0]}.{sys.version_info[1]}"
        text = f"this is Python {own}; your work is graded by {wanted}, so use no newer syntax"
        console.print(text, style="yellow", soft_wrap=True)


def _print_task(console: Console, outcome: TaskOutcome, printed: str, feedback: str) -> None:
    console.print(f"{outcome.name}: {outcome.points:.3g} of {outcome.possible:.3g} points", style="bold")
    shown: set[str] = set()
    messages: set[str] = set()
    for check in outcome.checks:
        if check.not_tried:
            continue
        _print_check(console, check, feedback, is_known=check.message in messages)
        messages.add(check.message)
        if check.hint and feedback == "hints" and check.hint not in shown:
            shown.add(check.hint)
            console.print(f"    hint: {check.hint}", style="yellow", soft_wrap=True)
    if left := sum(check.not_tried for check in outcome.checks):
        console.print(f"  - {counted(left, 'check')} not tried: what is above has to be right first", style="dim")
    if printed:
        console.print("    printed by your code:")
        lines = printed.splitlines()
        console.print("\n".join(lines[:PRINTED_LINES]), soft_wrap=True)
        if len(lines) > PRINTED_LINES:
            console.print("    …")
    console.print()


def _print_check(console: Console, check: CheckOutcome, feedback: str, *, is_known: bool) -> None:
    mark, style = ("✔", "green") if check.passed else ("✘", "red")
    kind = "" if check.kind == "public" else f"{check.kind}: "
    console.print(
        f"  {mark} {kind}{check.name}  ({check.points:.3g} of {check.possible:.3g})", style=style, soft_wrap=True
    )
    if check.message and feedback == "hints":
        for line in ["the same as above"] if is_known else check.message.splitlines():
            console.print(f"    {line}", soft_wrap=True)


def _await_change(work: WorkFolder, before: Sequence[int]) -> list[int]:
    """Wait until the files have changed since `before`; while an editor replaces one, it is missing."""
    while (now := _changes(work)) == before or MISSING in now:
        time.sleep(WATCH_SECONDS)
    return now


def _changes(work: WorkFolder) -> list[int]:
    """When each file has last been changed."""
    paths = [work.folder / name for name in work.paths()]
    return [path.stat().st_mtime_ns if path.exists() else MISSING for path in paths]


def debug(
    task: TaskName,
    folder: Folder = None,
    case: CaseNumber = None,
    ranks: CaseRanks = None,
    rank: Annotated[int, option("The rank that stops.", "R", "--rank", least=0)] = 0,
) -> None:
    """Run a public case under Python's debugger; its command `ranks` prints what every rank waits for."""
    from hybridnn_course.tools import choose_case, debug_case, folder_of

    work = folder_of(folder)
    chosen = work.assignment.task(task)
    debug_case(work, chosen, choose_case(work, chosen, case, ranks)[1], rank)


def submit(
    folder: Folder = None,
    out: Annotated[Path | None, option("The zip file (default: ASSIGNMENT-submission.zip).", "FILE", "--out")] = None,
) -> None:
    """Pack the files to hand in; what the grader would refuse is refused."""
    from hybridnn_course.submission import read_submission
    from hybridnn_course.tools import folder_of
    from hybridnn_course.work_folder import digest_of, unwritten

    work = folder_of(folder)
    archive, files = work.submission()
    flags = read_submission(work.assignment, archive, work.manifest.modules, work.manifest.python).flags
    path = out or work.folder / f"{work.assignment.id}-submission.zip"
    try:
        path.write_bytes(archive)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from None
    console = make_console()
    _print_other_python(console, work)
    for flag in flags:
        console.print(f"a person will look at {flag}", style="yellow", soft_wrap=True)
    for name in unwritten(work):
        console.print(f"not written: {name}", style="yellow")
    for name, content in files.items():
        console.print(f"  {name}  {len(content):,} bytes", soft_wrap=True)
    console.print(f"{path}  (digest {digest_of(archive)})", soft_wrap=True)
