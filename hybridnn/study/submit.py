"""A study as Slurm jobs: an array over the cells that are missing, and a report when they have ended.

What Slurm says of a cluster and of jobs, as far as it answers.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from hybridnn.datasets import dataset_info, is_fetched
from hybridnn.errors import DataError, EnvironmentProblem, SettingError
from hybridnn.study.cells import Cell, CellPlan, make_cells
from hybridnn.study.study_file import Study, ready_studies
from hybridnn.study.study_folder import StudyFolder
from hybridnn.utils.files import TOML_BYTES, FileError, read_json, read_text, write_atomically
from hybridnn.utils.text import to_json

SECONDS = 60
"""Limit of one question."""

MAX_ARRAY_SIZE = 1001
"""Slurm's own default: array indices stay below it."""

UNKNOWN_JOB = "Invalid job id"


@dataclass(frozen=True)
class Partition:
    """A partition of the cluster.

    Attributes
    ----------
    name : str
    cpus : int
        Of all its nodes.
    nodes : int
    cores_per_node : int
        Of the node that has fewest.
    """

    name: str
    cpus: int
    nodes: int
    cores_per_node: int


def find_partition(name: str | None) -> Partition | None:
    """Return a partition, or the default one; None where Slurm does not say.

    Of several names with commas between them, it is the one with most CPUs.
    """
    words = ["--noheader", "--format=%P|%C|%D|%c|%Z", *([] if name is None else [f"--partition={name}"])]
    answer = _answer("sinfo", words)
    if answer is None:
        return None
    found = [_partition(line) for line in answer.splitlines() if name is not None or "*|" in line]
    known = [partition for partition in found if partition is not None]
    return max(known, key=lambda partition: partition.cpus, default=None)


def array_limit() -> int:
    """Return the number below which array indices must stay."""
    for line in (_answer("scontrol", ["show", "config"]) or "").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "MaxArraySize" and value.strip().isdigit() and int(value) > 0:
            return int(value)
    return MAX_ARRAY_SIZE


def queued_tasks(jobs: Sequence[str]) -> set[str]:
    """Return the tasks of array jobs that wait or run, as ``"63_1"``.

    Raises
    ------
    EnvironmentProblem
        If Slurm gives no answer.
    """
    words = ["--noheader", "--array", "--format=%i", f"--jobs={','.join(jobs)}"]
    try:
        ended = _run("squeue", words)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = "no answer" if isinstance(error, subprocess.TimeoutExpired) else error.strerror
        raise EnvironmentProblem(_perhaps_queued(jobs, f"squeue: {reason}")) from error
    if ended.returncode != 0 and UNKNOWN_JOB in ended.stderr:  # all of them are long over
        return set()
    if ended.returncode != 0:
        reason = (ended.stderr.strip().splitlines() or [f"squeue: exit code {ended.returncode}"])[-1]
        raise EnvironmentProblem(_perhaps_queued(jobs, reason))
    return {task for line in ended.stdout.split() for task in _tasks(line)}


def _perhaps_queued(jobs: Iterable[str], reason: str) -> str:
    return f"cells may still be queued in the jobs {', '.join(jobs)} of this study: {reason}"


def _tasks(text: str) -> list[str]:
    """The tasks of ``63_1``, and of ``63_[2-4,7%5]``, as some versions write those that wait."""
    job, _, indices = text.partition("_")
    if not indices.startswith("["):
        return [text]
    tasks = []
    for span in indices.strip("[]").partition("%")[0].split(","):
        first, _, last = span.partition("-")
        tasks += [f"{job}_{index}" for index in range(int(first), int(last or first) + 1)]
    return tasks


def _partition(line: str) -> Partition | None:
    """Read name, CPUs (allocated/idle/other/total), nodes, CPUs per node, threads per core; None if it is not that."""
    try:
        name, cpus, nodes, per_node, threads = line.strip().split("|")
        cores = int(per_node.rstrip("+")) // int(threads.rstrip("+"))
        return Partition(name.rstrip("*"), int(cpus.split("/")[3]), int(nodes), max(1, cores))
    except (ValueError, IndexError, ZeroDivisionError):
        return None


def _answer(program: str, words: Sequence[str]) -> str | None:
    """What a program prints; None where it is not there or fails."""
    try:
        ended = _run(program, words)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout if ended.returncode == 0 else None


def _run(program: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    path = shutil.which(program)
    if path is None:
        raise FileNotFoundError(2, f"there is no program {program!r}")
    return subprocess.run(
        [path, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
    )


SCRIPT = "study_array.sbatch"
JOBS = "jobs.json"
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
    ranks_per_node : int or None
        None fills the nodes.
    """

    partition: str | None = None
    time: str | None = None
    account: str | None = None
    more: tuple[str, ...] = ()
    ranks_per_node: int | None = None

    def words(self) -> list[str]:
        """Return them as sbatch reads them."""
        named = {"partition": self.partition, "time": self.time, "account": self.account}
        return [f"--{name}={value}" for name, value in named.items() if value is not None] + list(self.more)


@dataclass(frozen=True)
class CellArray:
    """Missing cells of one number of ranks, as many as one job array can have.

    Attributes
    ----------
    ranks : int
    cells : tuple of int
        Their numbers, which ``hybridnn study run --cell`` takes.
    offset : int
        What is added to the index of an array's task to get the number of its cell.
    nodes, ranks_per_node : int or None
        The same placement for all of them; None leaves it to Slurm.
    """

    ranks: int
    cells: tuple[int, ...]
    offset: int = 0
    nodes: int | None = None
    ranks_per_node: int | None = None

    @property
    def indices(self) -> list[int]:
        """Array index of each cell."""
        return [number - self.offset for number in self.cells]

    def words(self) -> list[str]:
        """Return array and placement as sbatch reads them."""
        nodes = [] if self.nodes is None else [f"--nodes={self.nodes}"]
        per_node = [] if self.ranks_per_node is None else [f"--ntasks-per-node={self.ranks_per_node}"]
        return [f"--array={array_indices(self.indices)}", *nodes, f"--ntasks={self.ranks}", *per_node]


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
    queued : dict of str to str
        Missing cells that wait or run in jobs of earlier submissions: the job's number by the cell's id.
    """

    study: Study
    plan: CellPlan
    folder: StudyFolder
    source: Path
    place: Path
    script: str
    arrays: tuple[CellArray, ...]
    options: SlurmOptions
    queued: Mapping[str, str]

    @property
    def script_path(self) -> Path:
        """Where the batch script belongs."""
        return self.place / SCRIPT

    def array_command(self, array: CellArray) -> list[str]:
        """Return the command that submits an array."""
        words = [*array.words(), f"--cpus-per-task={self.study.threads}", *self.options.words()]
        first = [str(array.offset)] * (array.offset > 0)
        return [*self._sbatch(f"{self.study.name}-{array.ranks}", "%A_%a", words), *first]

    def report_command(self, jobs: Sequence[str]) -> list[str]:
        """Return the command that submits the report, which waits for the jobs with the numbers `jobs`.

        It waits for those of earlier submissions too.
        """
        after = f"--dependency=afterany:{':'.join([*jobs, *dict.fromkeys(self.queued.values())])}"
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
        If no cell can run, the folder holds something else, or the partition is too small for a cell.
    DataError
        If data of a cell are not on disk.
    EnvironmentProblem
        If the study was submitted before, and Slurm does not say what of it is still queued.
    """
    plan, cells = make_cells(study), StudyFolder(folder)
    cells.check(study, plan)
    missing = [cell for cell in plan.cells if not cells.is_finished(cell.id)]
    in_jobs = _queued_cells(folder) if missing else {}
    queued = {cell.id: in_jobs[cell.id] for cell in missing if cell.id in in_jobs}
    to_submit = [cell for cell in missing if cell.id not in queued]
    _require_data(to_submit)
    arrays = _arrays(study, plan, to_submit, options)
    place = next(place for n in count(1) if not (place := folder / "slurm" / str(n)).exists())
    values = {
        "python": sys.executable,
        "study": str(_study_copy(place)),
        "folder": str(folder),
        "options": "--reduced" if study.reduced else "",
    }
    script = filled_in((Path(str(files("hybridnn.hpc_jobs"))) / SCRIPT).read_text(encoding="utf-8"), values)
    path = ready_studies().get(source, Path(source))
    return Submission(study, plan, cells, path, place, script, arrays, options, queued)


def _arrays(study: Study, plan: CellPlan, cells: Sequence[Cell], options: SlurmOptions) -> tuple[CellArray, ...]:
    """An array for each number of ranks, or several where one cannot have so many cells."""
    if not cells:
        return ()
    wanted = {cell.id for cell in cells}
    elsewhere = any(word.startswith(("--partition", "-p", "--clusters", "-M")) for word in options.more)
    partition, limit = None if elsewhere else find_partition(options.partition), array_limit()
    found = []
    for ranks in sorted({cell.ranks for cell in cells}):
        placed = _placement(ranks, study.threads, partition, options.ranks_per_node)
        numbers = [n for n, cell in enumerate(plan.cells) if cell.ranks == ranks and cell.id in wanted]
        found += [CellArray(ranks, chunk, offset, *placed) for offset, chunk in _chunks(numbers, limit)]
    return tuple(found)


def _chunks(numbers: Sequence[int], limit: int) -> list[tuple[int, tuple[int, ...]]]:
    """Parts of rising numbers, each with an offset that brings them below `limit`; 0 where they are already."""
    chunks: list[tuple[int, list[int]]] = [(0, [])]
    for number in numbers:
        if number - chunks[-1][0] >= limit:
            chunks.append((number, []))
        chunks[-1][1].append(number)
    return [(offset, tuple(part)) for offset, part in chunks if part]


def _placement(
    ranks: int, threads: int, partition: Partition | None, ranks_per_node: int | None
) -> tuple[int | None, int | None]:
    """Nodes, and ranks on a node, that are the same for every cell of so many ranks; None where nothing is known.

    Raises
    ------
    SettingError
        If the partition does not have so many CPUs, or none of its nodes so many.
    """
    if partition is not None and ranks * threads > partition.cpus:
        on = f"{ranks * threads} CPUs, and partition {partition.name} has {partition.cpus}"
        raise SettingError("ranks", ranks, f"a cell needs {on}; nothing was submitted")
    if ranks_per_node is None:
        if partition is None or threads > partition.cores_per_node:
            return None, None
        ranks_per_node = partition.cores_per_node // threads
    nodes = -(-ranks // ranks_per_node)
    if partition is not None and nodes > partition.nodes:
        return None, None  # its nodes differ, and the smallest of them are not enough
    return nodes, -(-ranks // nodes)


def _require_data(cells: Sequence[Cell]) -> None:
    """Refuse cells whose data are not on disk: nodes that compute often have no network.

    Raises
    ------
    DataError
        Naming the command that fetches them.
    """
    for name, file in dict.fromkeys((cell.settings.data.name, cell.settings.data.file) for cell in cells):
        if file is not None and not Path(file).is_file():
            raise DataError(f"data.file = {file!r}: no such file; nothing was submitted")
        if name is not None and not is_fetched(dataset_info(name)):
            problem = "is not on disk, and jobs may have no network; nothing was submitted"
            raise DataError(f"data.name = {name!r}: {problem}; first: hybridnn data fetch {name}")


def _queued_cells(folder: Path) -> dict[str, str]:
    """The cells that wait or run in jobs that were submitted before: the job's number by the cell's id.

    Raises
    ------
    DataError
        If the record of a submission is damaged.
    EnvironmentProblem
        If Slurm does not say.
    """
    cells: dict[str, dict[str, str]] = {}
    for path in sorted((folder / "slurm").glob(f"*/{JOBS}")):
        try:
            for array in read_json(path)["arrays"]:
                cells[str(array["job"])] = {str(index): str(cell) for index, cell in array["cells"].items()}
        except (LookupError, TypeError, AttributeError) as error:
            raise FileError(path, f"not written by `hybridnn study submit`: {error}") from error
    tasks = queued_tasks(list(cells)) if cells else set()
    pairs = (task.partition("_") for task in tasks)
    return {cells[job][index]: job for job, _, index in pairs if index in cells.get(job, {})}


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
    write_atomically(_study_copy(submission.place), _text_of(submission.source))
    write_atomically(submission.script_path, submission.script)
    jobs: list[str] = []
    record: list[dict[str, Any]] = []
    for array in submission.arrays:
        jobs.append(_submitted(submission.array_command(array), jobs))
        names = (submission.plan.cells[number].id for number in array.cells)
        record.append({"job": jobs[-1], "cells": dict(zip(map(str, array.indices), names, strict=True))})
        write_atomically(submission.place / JOBS, to_json({"arrays": record}, indent=2) + "\n")
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
