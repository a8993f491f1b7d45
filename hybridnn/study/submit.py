"""A study as Slurm jobs: an array over the cells that are missing, and a report when they have ended."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import count
from pathlib import Path

from hybridnn.errors import EnvironmentProblem, SettingError
from hybridnn.small_files import TOML_BYTES, FileError, read_text
from hybridnn.study.cells import CellPlan, make_cells
from hybridnn.study.study_file import Study, ready_studies
from hybridnn.study.study_folder import StudyFolder
from hybridnn.whole_files import write_whole

__all__ = ["CellArray", "SlurmOptions", "Submission", "array_indices", "filled_in", "plan_submission", "submit"]

SCRIPT = "study_array.sbatch"
SECONDS_FOR_SBATCH = 120


@dataclass(frozen=True)
class SlurmOptions:
    """What sbatch is told beyond what follows from the study; None leaves it to the script and the site.

    Attributes
    ----------
    partition, time, account : str or None
        ``time`` limits each cell.
    more : tuple of str
        Further options of sbatch, ``--constraint=skylake``.
    """

    partition: str | None = None
    time: str | None = None
    account: str | None = None
    more: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """Return them as sbatch reads them."""
        named = {"partition": self.partition, "time": self.time, "account": self.account}
        return [f"--{name}={value}" for name, value in named.items() if value is not None] + list(self.more)


@dataclass(frozen=True)
class CellArray:
    """The missing cells of one number of ranks.

    Attributes
    ----------
    ranks : int
    cells : tuple of int
        Their numbers, which ``hybridnn study run --cell`` takes.
    """

    ranks: int
    cells: tuple[int, ...]


@dataclass(frozen=True)
class Submission:
    """What is to be submitted; nothing has been written yet.

    Attributes
    ----------
    study : Study
    plan : CellPlan
    folder : StudyFolder
    source : Path
        The file of the study.
    place : Path
        Folder of this submission, for its script, its copy of the study file and what its jobs print. The copy makes
        the numbers of the cells mean the same when a job starts, however the file has changed by then.
    script : str
        Text of the batch script.
    arrays : tuple of CellArray
        None if nothing is missing.
    options : SlurmOptions
    """

    study: Study
    plan: CellPlan
    folder: StudyFolder
    source: Path
    place: Path
    script: str
    arrays: tuple[CellArray, ...]
    options: SlurmOptions

    @property
    def script_path(self) -> Path:
        """Where the batch script belongs."""
        return self.place / SCRIPT

    def array_command(self, array: CellArray) -> list[str]:
        """Return the command that submits an array."""
        size = [f"--array={array_indices(array.cells)}", f"--ntasks={array.ranks}"]
        return self._sbatch(f"{self.study.name}-{array.ranks}", "%A_%a", [*size, *self.options.words()])

    def report_command(self, jobs: Sequence[str]) -> list[str]:
        """Return the command that submits the report, which waits for the arrays with the numbers `jobs`."""
        after = f"--dependency=afterany:{':'.join(jobs)}"
        return self._sbatch(f"{self.study.name}-report", "%j", [after, *self.options.words(), "--ntasks=1"])

    def _sbatch(self, name: str, number: str, words: Sequence[str]) -> list[str]:
        output = f"--output={self.place / f'%x-{number}.out'}"
        return ["sbatch", "--parsable", f"--job-name={name}", output, *words, str(self.script_path)]


def plan_submission(study: Study, source: str, folder: Path, options: SlurmOptions) -> Submission:
    """Settle what is to be submitted, and check everything that can be checked before.

    Parameters
    ----------
    study : Study
    source : str
        The file it came from, or the name of a ready study.
    folder : Path
        Of the study; need not exist.
    options : SlurmOptions

    Raises
    ------
    SettingError
        If no cell can run, or the folder holds something else.
    """
    plan, cells = make_cells(study), StudyFolder(folder)
    cells.check(study, plan)
    missing: dict[int, list[int]] = {}
    for number, cell in enumerate(plan.cells):
        if cells.status(cell.id) != "finished":
            missing.setdefault(cell.ranks, []).append(number)
    arrays = tuple(CellArray(ranks, tuple(numbers)) for ranks, numbers in sorted(missing.items()))
    place = next(place for n in count(1) if not (place := folder / "slurm" / str(n)).exists())
    values = {
        "python": sys.executable,
        "study": str(_study_copy(place)),
        "folder": str(folder),
        "options": "--reduced" if study.reduced else "",
    }
    script = filled_in((Path(str(files("hybridnn.hpc_jobs"))) / SCRIPT).read_text(encoding="utf-8"), values)
    path = ready_studies().get(source, Path(source))
    return Submission(study, plan, cells, path, place, script, arrays, options)


def submit(submission: Submission) -> tuple[list[str], str]:
    """Write the script and submit the arrays and the report.

    Returns
    -------
    list of str
        The numbers of the array jobs, in the order of ``submission.arrays``.
    str
        The number of the report's job.

    Raises
    ------
    EnvironmentProblem
        If there is no Slurm, it refuses a job, or the folder cannot be written.
    """
    if shutil.which("sbatch") is None:
        raise EnvironmentProblem("study submit needs Slurm: there is no program 'sbatch' (--dry-run shows the script)")
    submission.folder.begin(submission.study, submission.plan)
    write_whole(_study_copy(submission.place), _text_of(submission.source))
    write_whole(submission.script_path, submission.script)
    jobs: list[str] = []
    for array in submission.arrays:
        jobs.append(_submitted(submission.array_command(array), jobs))
    return jobs, _submitted(submission.report_command(jobs), jobs)


def array_indices(numbers: Sequence[int]) -> str:
    """Write rising numbers as sbatch reads them: ``0-3,7``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{first}-{last}" if first < last else str(first) for first, last in spans)


def filled_in(script: str, values: Mapping[str, str]) -> str:
    """Set the variables of a batch script's block to edit, ``name=value   # what it means``, keeping what they mean.

    Raises
    ------
    SettingError
        If the script does not have exactly one such line for each.
    """
    lines = script.split("\n")
    for name, value in values.items():
        found = [number for number, line in enumerate(lines) if line.startswith(f"{name}=")]
        if len(found) != 1:
            raise SettingError(SCRIPT, name, "must be set in exactly one line of the script")
        meaning = lines[found[0]].partition("#")[2]
        lines[found[0]] = f"{name}={shlex.quote(value)}" + f" #{meaning}" * bool(meaning)
    return "\n".join(lines)


def _study_copy(place: Path) -> Path:
    return place / "study.toml"


def _text_of(path: Path) -> str:
    try:
        return read_text(path, TOML_BYTES)
    except FileError as error:
        raise SettingError("study", str(path), error.reason) from error


def _submitted(command: Sequence[str], before: Sequence[str]) -> str:
    """Submit one job and return its number."""
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS_FOR_SBATCH, check=False
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem(f"sbatch gave no answer within {SECONDS_FOR_SBATCH} s{_already(before)}") from None
    if ended.returncode != 0:
        words = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        raise EnvironmentProblem(f"sbatch refused the job: {words}{_already(before)}")
    return ended.stdout.strip().partition(";")[0]  # behind the semicolon: the name of the cluster


def _already(jobs: Sequence[str]) -> str:
    return f"; already submitted: {', '.join(jobs)}" if jobs else ""
