"""What Slurm says of a cluster and of jobs, as far as it answers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hybridnn.errors import EnvironmentProblem

__all__ = ["MAX_ARRAY_SIZE", "Partition", "array_limit", "find_partition", "queued_tasks"]

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
