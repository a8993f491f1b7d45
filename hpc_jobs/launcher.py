"""Find the launcher that gives the ranks of a Slurm job each other: srun with the right ``--mpi``, or mpirun.

``python -m hybridnn.hpc_jobs.launcher [FILE]`` inside a batch job prints the words that go before the number of ranks,
for example ``srun --mpi=pmix -n``. Which one works depends on how Slurm and the MPI library were built, and a wrong one
starts processes that are each alone. So each is tried on the whole allocation until one is right. It is written into
FILE, where the next call finds it: after a requeue, or in the other tasks of an array.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hybridnn.comm.launcher import has_plugin, offered_plugins
from hybridnn.utils.files import replace_atomically

__all__ = ["candidates", "find_launcher"]

SRUN_PLUGINS = ("pmix", "pmi2")
MPIRUN = ("mpirun", "--bind-to", "none", "-n")
"""Slurm keeps a job to its own cores; mpirun would also keep each rank, with all its threads, to one of them."""

SECONDS = 120
"""Limit of a try. One that hangs is as wrong as one that fails."""

Try = Callable[[Sequence[str]], str | None]


def candidates(plugins: str, programs: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Give the launchers that may work here, the best first.

    Parameters
    ----------
    plugins : str
        What ``srun --mpi=list`` prints.
    programs : sequence of str
        Which of ``srun`` and ``mpirun`` there are.
    """
    if "srun" in programs:
        yield "srun", "-n"
        for plugin in SRUN_PLUGINS:
            if has_plugin(plugins, plugin):
                yield "srun", f"--mpi={plugin}", "-n"
    if "mpirun" in programs:
        yield MPIRUN


def find_launcher(launchers: Iterator[tuple[str, ...]], attempt: Try) -> tuple[tuple[str, ...] | None, list[str]]:
    """Return the first launcher that works, or None, and a line about each that does not.

    Parameters
    ----------
    launchers : iterator of tuple of str
        Words before the number of ranks.
    attempt : callable
        ``attempt(launcher)`` returns None if it works, else why not.
    """
    failures: list[str] = []
    for launcher in launchers:
        reason = attempt(launcher)
        if reason is None:
            return launcher, failures
        failures.append(f"{' '.join(launcher[:-1])}: {reason}")
    return None, failures


def _attempt(launcher: Sequence[str], ranks: str, nodes: str) -> str | None:
    """Start every rank of the job, and ask them how many they are and on how many nodes."""
    command = [*launcher, ranks, sys.executable, "-m", "hybridnn.comm.launch_check", ranks, nodes]
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {SECONDS} s"
    if ended.returncode == 0:
        return None
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    for telling in ("MPI sees", "Error", "error", ""):  # launchers write much around the reason
        if found := [line for line in lines if telling in line]:
            return found[0]
    return f"exit code {ended.returncode}"


def _found_before(file: Path) -> str:
    """The launcher that an earlier call wrote into the file; empty if there is none whose program is there."""
    try:
        words = file.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return ""
    return " ".join(words) if words and shutil.which(words[0]) else ""


def _keep(file: Path, words: str) -> None:
    """Write the launcher down; without it the next call searches again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_atomically(file, lambda opened: opened.write(f"{words}\n".encode()), exclusive=False)
    except OSError as error:
        print(f"launcher: {file} cannot be written: {error.strerror}", file=sys.stderr)


def _main(environment: Mapping[str, str], file: Path | None) -> int:
    if file is not None and (found := _found_before(file)):
        print(f"launcher: {found.rpartition(' ')[0]}, as found before", file=sys.stderr)
        print(found)
        return 0
    try:
        ranks, nodes = environment["SLURM_NTASKS"], environment["SLURM_JOB_NUM_NODES"]
    except KeyError as error:
        print(f"{error.args[0]} is not set: call this in a Slurm job that asked for --ntasks", file=sys.stderr)
        return 2
    programs = [name for name in ("srun", "mpirun") if shutil.which(name)]
    plugins = offered_plugins(environment) if "srun" in programs else ""
    launcher, failures = find_launcher(candidates(plugins, programs), lambda words: _attempt(words, ranks, nodes))
    for failure in failures:
        print(f"launcher: not {failure}", file=sys.stderr)
    if launcher is None:
        print(f"launcher: nothing starts {ranks} ranks on {nodes} nodes that see each other", file=sys.stderr)
        return 1
    print(f"launcher: {' '.join(launcher[:-1])}", file=sys.stderr)
    if file is not None:
        _keep(file, " ".join(launcher))
    print(" ".join(launcher))
    return 0


if __name__ == "__main__":
    sys.exit(_main(os.environ, Path(sys.argv[1]) if len(sys.argv) > 1 else None))
