"""Submission of a study to Slurm: job arrays over the missing cells, and a job for the report when they have ended."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from hybridnn.comm.launcher import ANYWHERE, Placement
from hybridnn.cost.machine_file import read_machine
from hybridnn.data import dataset_info, is_fetched
from hybridnn.errors import DataError, EnvironmentProblem, SettingError, one_line
from hybridnn.study.cells import Cell, CellPlan, make_cells
from hybridnn.study.study_file import Study, ready_studies
from hybridnn.study.study_folder import StudyFolder, write_json
from hybridnn.utils.files import TOML_BYTES, FileError, read_json, read_text, shipped_folder, write_atomically
from hybridnn.utils.processes import run_child
from hybridnn.utils.text import counted, format_numbers

SCRIPT = "study_array.sbatch"
COPY = "study.toml"
JOBS = "jobs.json"

QUERY_SECONDS = 60  # time limit of a query to Slurm
SBATCH_SECONDS = 120  # time limit of sbatch
MAX_ARRAY_SIZE = 1001  # Slurm's default bound of array indices

UNKNOWN_JOB = "Invalid job id"


@dataclass(frozen=True)
class SlurmOptions:
    """Options of sbatch from the user; None leaves them to the script and the site.

    `time` is the limit of each cell, `more` has further options such as ``--constraint=skylake``, and without
    `ranks_per_node` cells fill the nodes. With `share_nodes` cells that compare times do not ask for whole nodes.
    """

    partition: str | None = None
    time: str | None = None
    more: tuple[str, ...] = ()
    ranks_per_node: int | None = None
    share_nodes: bool = False

    def arguments(self) -> list[str]:
        """Return the options as arguments of sbatch."""
        named = {"partition": self.partition, "time": self.time}
        return [f"--{name}={value}" for name, value in named.items() if value is not None] + list(self.more)


@dataclass(frozen=True)
class CellArray:
    """A job array: missing cells with one number of ranks and one placement."""

    ranks: int
    cells: tuple[int, ...]  # numbers of the cells, as ``hybridnn study run --cell`` takes them
    offset: int = 0  # number of a cell less the index of its array task
    placement: Placement = ANYWHERE  # nodes that are None are left to Slurm

    @property
    def indices(self) -> list[int]:
        """Array index of each cell."""
        return [number - self.offset for number in self.cells]

    def arguments(self) -> list[str]:
        """Return array and placement as arguments of sbatch."""
        arguments = [f"--array={format_numbers(self.indices).replace(' ', '')}"]
        arguments += [f"--nodes={self.placement.nodes}"] if self.placement.nodes else []
        arguments += [f"--ntasks={self.ranks}"]
        per_node = self.placement.ranks_per_node
        arguments += [f"--ntasks-per-node={per_node}"] if per_node else []
        return [*arguments, f"--cpus-per-task={self.placement.threads}"]


@dataclass(frozen=True)
class Submission:
    """A planned submission, before anything is written."""

    study: Study
    plan: CellPlan
    folder: StudyFolder
    source: Path
    # folder for the script, a copy of the study file and the output of the jobs. With the copy the numbers of the
    # cells stay valid when the file is edited before a job starts.
    job_folder: Path
    script: str
    arrays: tuple[CellArray, ...]  # empty if no cell is missing
    options: SlurmOptions
    # missing cells in pending or running jobs of earlier submissions: number of the job by id of the cell
    queued: Mapping[str, str]

    @property
    def is_timed(self) -> bool:
        """Whether times of the cells are compared, which other jobs on their nodes would disturb."""
        return self.study.keys.compares == "times"

    def array_command(self, array: CellArray) -> list[str]:
        """Return the command that submits an array; cells that are timed ask for whole nodes."""
        whole = self.is_timed and not self.options.share_nodes
        is_given = any(option.startswith("--exclusive") for option in self.options.more)
        arguments = [*array.arguments(), *["--exclusive"] * (whole and not is_given), *self.options.arguments()]
        offset = [str(array.offset)] * (array.offset > 0)
        return [*self._sbatch(f"{self.study.keys.name}-{array.ranks}", "%A_%a", arguments), *offset]

    def report_command(self, jobs: Sequence[str]) -> list[str]:
        """Return the command that submits the report, which waits for `jobs` and those of earlier submissions."""
        after = f"--dependency=afterany:{':'.join([*jobs, *dict.fromkeys(self.queued.values())])}"
        return self._sbatch(f"{self.study.keys.name}-report", "%j", [after, *self.options.arguments(), "--ntasks=1"])

    def _sbatch(self, name: str, number: str, arguments: Sequence[str]) -> list[str]:
        output = f"--output={self.job_folder / f'%x-{number}.out'}"
        return ["sbatch", "--parsable", f"--job-name={name}", output, *arguments, str(self.job_folder / SCRIPT)]


def plan_submission(study: Study, source: str, folder: Path, options: SlurmOptions) -> Submission:
    """Plan the jobs, and check everything that can be checked before; `source` is a file, or a ready study's name.

    Raises `SettingError` if no cell can run, the folder has another study, or the partition is too small for a cell;
    `DataError` if data of a cell or the machine file are not on disk, or the record of an earlier submission is
    damaged; `EnvironmentProblem` if the study was submitted before and Slurm does not list its queued jobs.
    """
    plan, cells = make_cells(study), StudyFolder(folder)
    cells.check(study, plan)
    missing = [cell for cell in plan.cells if not cells.has_ended(cell.id)]
    job_of_cell = _queued_cells(folder) if missing else {}
    queued = {cell.id: job_of_cell[cell.id] for cell in missing if cell.id in job_of_cell}
    to_submit = [cell for cell in missing if cell.id not in queued]
    _require_data(to_submit)
    if study.keys.machine is not None:
        read_machine(study.keys.machine)
    arrays = _make_arrays(plan, to_submit, options, in_process=study.keys.in_process)
    job_folder = next(path for n in count(1) if not (path := folder / "slurm" / str(n)).exists())
    values = {
        "python": sys.executable,
        "study": str(job_folder / COPY),
        "folder": str(folder),
        "options": "--reduced" if study.reduced else "",
    }
    template = shipped_folder("hpc_jobs") / SCRIPT
    script = fill_in_script(template.read_text(encoding="utf-8"), values)
    path = ready_studies().get(source, Path(source))
    return Submission(study, plan, cells, path, job_folder, script, arrays, options, queued)


def submit(submission: Submission) -> tuple[list[str], str]:
    """Write the script, submit the arrays and the report, and return the numbers of their jobs.

    Raises `EnvironmentProblem` if Slurm is missing or refuses a job, or the folder cannot be written.
    """
    if shutil.which("sbatch") is None:
        raise EnvironmentProblem("study submit needs Slurm: there is no program 'sbatch' (--dry-run shows the script)")
    submission.folder.begin(submission.study, submission.plan)
    try:
        study_text = read_text(submission.source, TOML_BYTES)
    except FileError as error:
        raise SettingError("study", str(submission.source), error.reason) from error
    write_atomically(submission.job_folder / COPY, study_text)
    write_atomically(submission.job_folder / SCRIPT, submission.script)
    jobs: list[str] = []
    record: list[dict[str, Any]] = []
    for array in submission.arrays:
        jobs.append(_run_sbatch(submission.array_command(array), jobs))
        names = (submission.plan.cells[number].id for number in array.cells)
        record.append({"job": jobs[-1], "cells": dict(zip(map(str, array.indices), names, strict=True))})
        write_json(submission.job_folder / JOBS, {"arrays": record})
    return jobs, _run_sbatch(submission.report_command(jobs), jobs)


def fill_in_script(script: str, values: Mapping[str, str]) -> str:
    """Set variables of a batch script, each in its only line ``name=value   # comment``; the comments are kept."""
    lines = script.split("\n")
    for name, value in values.items():
        found = [number for number, line in enumerate(lines) if line.startswith(f"{name}=")]
        if len(found) != 1:
            raise SettingError(SCRIPT, name, "must be set in exactly one line of the script")
        comment = lines[found[0]].partition("#")[2]
        lines[found[0]] = f"{name}={shlex.quote(value)}" + f" #{comment}" * bool(comment)
    return "\n".join(lines)


def _require_data(cells: Sequence[Cell]) -> None:
    """Raise `DataError` for cells whose data are not on disk: compute nodes often have no network."""
    for name, file in dict.fromkeys((cell.settings.data.name, cell.settings.data.file) for cell in cells):
        if file is not None and not Path(file).is_file():
            raise DataError(f"data.file = {file!r}: no such file; nothing was submitted")
        if name is not None and not is_fetched(dataset_info(name)):
            problem = "is not on disk, and jobs may have no network; nothing was submitted"
            raise DataError(f"data.name = {name!r}: {problem}; first: hybridnn data fetch {name}")


def _make_arrays(
    plan: CellPlan, cells: Sequence[Cell], options: SlurmOptions, *, in_process: bool
) -> tuple[CellArray, ...]:
    """One array for each number of ranks and placement, or several where it has too many cells for one."""
    if not cells:
        return ()
    wanted = {cell.id for cell in cells}
    is_elsewhere = any(option.startswith(("--partition", "-p", "--clusters", "-M")) for option in options.more)
    partition, limit = None if is_elsewhere else _find_partition(options.partition), _array_limit()
    groups: dict[tuple[int, Placement], list[int]] = {}
    for number, cell in enumerate(plan.cells):
        if cell.id in wanted:
            # The launcher of the cell binds its ranks, not sbatch.
            processes = 1 if in_process else cell.ranks
            groups.setdefault((processes, replace(cell.placement, binding=None)), []).append(number)
    arrays = []
    for (ranks, wish), numbers in sorted(groups.items(), key=lambda group: (group[0][0], group[1])):
        placement = _placement(ranks, wish, partition, options.ranks_per_node)
        arrays += [CellArray(ranks, chunk, offset, placement) for offset, chunk in _chunks(numbers, limit)]
    return tuple(arrays)


def _chunks(numbers: Sequence[int], limit: int) -> list[tuple[int, tuple[int, ...]]]:
    """Chunks of rising numbers, each with the offset that brings its indices below `limit`."""
    chunks: list[tuple[int, list[int]]] = [(0, [])]
    for number in numbers:
        if number - chunks[-1][0] >= limit:
            chunks.append((number, []))
        chunks[-1][1].append(number)
    return [(offset, tuple(chunk)) for offset, chunk in chunks if chunk]


class Partition(NamedTuple):
    """A partition of the cluster: the CPUs of all its nodes, and the cores of the node with the fewest."""

    name: str
    cpus: int
    nodes: int
    cores_per_node: int


def _placement(ranks: int, wish: Placement, partition: Partition | None, ranks_per_node: int | None) -> Placement:
    """Nodes and ranks per node of a cell; as in `wish` where the partition is not known or its nodes differ."""
    threads = wish.threads
    if partition is not None and ranks * threads > partition.cpus:
        needs = f"{ranks * threads} CPUs, and partition {partition.name} has {partition.cpus}"
        raise SettingError("ranks", ranks, f"a cell needs {needs}; nothing was submitted")
    if wish.nodes is not None:
        if ranks_per_node is not None:
            problem = "the study has nodes or ranks_per_node as an axis; nothing was submitted"
            raise SettingError("--ranks-per-node", ranks_per_node, problem)
        if partition is not None and wish.nodes > partition.nodes:
            problem = f"partition {partition.name} has {counted(partition.nodes, 'node')}; nothing was submitted"
            raise SettingError("nodes", wish.nodes, problem)
        return wish
    if ranks_per_node is None:
        if partition is None or threads > partition.cores_per_node:
            return wish
        ranks_per_node = partition.cores_per_node // threads
    nodes = -(-ranks // ranks_per_node)
    if partition is not None and nodes > partition.nodes:
        return wish  # its nodes differ, and the smallest are too few
    return replace(wish, nodes=nodes, ranks_per_node=-(-ranks // nodes))


def _find_partition(name: str | None) -> Partition | None:
    """The partition of this name, of several names the largest, or the default one; None where Slurm lists none."""
    arguments = ["--noheader", "--format=%P|%C|%D|%c|%Z", *([] if name is None else [f"--partition={name}"])]
    found = []
    for line in _query("sinfo", arguments).splitlines():
        # Name, CPUs (allocated/idle/other/total), nodes, CPUs per node, and threads per core.
        with contextlib.suppress(ValueError, IndexError, ZeroDivisionError):
            title, cpus, nodes, per_node, threads = line.strip().split("|")
            cores = int(per_node.rstrip("+")) // int(threads.rstrip("+"))
            if name is not None or title.endswith("*"):
                found.append(Partition(title.rstrip("*"), int(cpus.split("/")[3]), int(nodes), max(1, cores)))
    return max(found, key=lambda partition: partition.cpus, default=None)


def _array_limit() -> int:
    """Bound of array indices."""
    for line in _query("scontrol", ["show", "config"]).splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "MaxArraySize" and value.strip().isdigit() and int(value) > 0:
            return int(value)
    return MAX_ARRAY_SIZE


def _queued_cells(folder: Path) -> dict[str, str]:
    """Number of the job by id of the cell, of pending and running jobs of earlier submissions."""
    cells: dict[str, dict[str, str]] = {}
    for path in sorted((folder / "slurm").glob(f"*/{JOBS}")):
        try:
            for array in read_json(path)["arrays"]:
                cells[str(array["job"])] = {str(index): str(cell) for index, cell in array["cells"].items()}
        except (LookupError, TypeError, AttributeError) as error:
            raise FileError(path, f"not written by `hybridnn study submit`: {error}") from error
    tasks = _queued_tasks(list(cells)) if cells else set()
    pairs = (task.partition("_") for task in tasks)
    return {cells[job][index]: job for job, _, index in pairs if index in cells.get(job, {})}


def _queued_tasks(jobs: Sequence[str]) -> set[str]:
    """Pending and running tasks of array jobs, as ``"63_1"``; raises `EnvironmentProblem` if squeue fails."""
    try:
        listed = _answer(["squeue", "--noheader", "--array", "--format=%i", f"--jobs={','.join(jobs)}"], QUERY_SECONDS)
    except EnvironmentProblem as problem:
        if UNKNOWN_JOB in str(problem):  # all of them ended long ago
            return set()
        queued = f"cells may still be queued in the jobs {', '.join(jobs)} of this study"
        raise EnvironmentProblem(f"{queued}: squeue: {problem}") from problem
    return {task for line in listed.split() for task in _expand_tasks(line)}


def _expand_tasks(text: str) -> list[str]:
    """Tasks in ``63_1``, and in ``63_[2-4,7%5]`` or ``63_[1-5:2]``, the forms of pending tasks in some versions."""
    job, _, indices = text.partition("_")
    if not indices.startswith("["):
        return [text]
    tasks = []
    for span in indices.strip("[]").partition("%")[0].split(","):
        ends, _, step = span.partition(":")
        first, _, last = ends.partition("-")
        tasks += [f"{job}_{index}" for index in range(int(first), int(last or first) + 1, int(step or 1))]
    return tasks


def _run_sbatch(command: Sequence[str], before: Sequence[str]) -> str:
    """Submit one job and return its number; errors list the jobs `before`, which have been submitted."""
    try:
        return _answer(command, SBATCH_SECONDS).strip().partition(";")[0]  # after it: the name of the cluster
    except EnvironmentProblem as problem:
        submitted = f"; already submitted: {', '.join(before)}" if before else ""
        raise EnvironmentProblem(f"sbatch failed: {problem}{submitted}") from problem


def _query(program: str, arguments: Sequence[str]) -> str:
    """Output of a program of Slurm; empty where it is missing or fails."""
    with contextlib.suppress(EnvironmentProblem):
        return _answer([program, *arguments], QUERY_SECONDS)
    return ""


def _answer(command: Sequence[str], seconds: float) -> str:
    """Output of a program of Slurm; raises `EnvironmentProblem` where it is missing, fails or gives none in time."""
    if shutil.which(command[0]) is None:
        raise EnvironmentProblem(f"there is no program {command[0]!r}")
    try:
        ended = run_child(command, seconds, os.environ)
    except OSError as error:
        raise EnvironmentProblem(str(error.strerror)) from error
    if ended.timed_out:
        raise EnvironmentProblem(f"no answer within {seconds} s")
    if ended.code != 0:
        raise EnvironmentProblem(one_line(ended.errors.strip()) or f"exit code {ended.code}")
    return ended.output
