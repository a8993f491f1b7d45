"""Search for a launcher that connects the ranks of a Slurm job: srun with a suitable ``--mpi``, or mpirun.

``python -m hybridnn.batch_jobs.launcher [FILE]`` inside a batch job prints the command before the number of ranks, for
example ``srun --mpi=pmix -n``. The launcher that works depends on the build of Slurm and of the MPI library; any other
starts processes of one rank each. So the launchers are tried on the whole allocation, one after another. The first
that works is stored in FILE for further calls: after a requeue, or in the other tasks of an array.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hybridnn.comm.launcher import has_plugin, offered_plugins
from hybridnn.utils.files import replace_atomically
from hybridnn.utils.processes import run_child

__all__ = ["candidates", "find_launcher"]

SRUN_PLUGINS = ("pmix", "pmi2")
MPIRUN = ("mpirun", "--bind-to", "none", "-n")
"""Without ``--bind-to none``, mpirun would bind each rank with all its threads to one of the cores of the job."""

SECONDS = 120
"""Time limit of an attempt."""

Attempt = Callable[[Sequence[str]], str | None]


def candidates(plugins: str, programs: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the launchers that may work, in order of preference.

    `plugins` is the output of ``srun --mpi=list``, and `programs` are those available among ``srun`` and ``mpirun``.
    """
    if "srun" in programs:
        yield "srun", "-n"
        for plugin in SRUN_PLUGINS:
            if has_plugin(plugins, plugin):
                yield "srun", f"--mpi={plugin}", "-n"
    if "mpirun" in programs:
        yield MPIRUN


def find_launcher(launchers: Iterator[tuple[str, ...]], attempt: Attempt) -> tuple[tuple[str, ...] | None, list[str]]:
    """Return the first launcher that works, or None, and a line about each that does not.

    A launcher consists of the arguments before the number of ranks; ``attempt(launcher)`` returns None if it works,
    otherwise the reason.
    """
    failures: list[str] = []
    for launcher in launchers:
        reason = attempt(launcher)
        if reason is None:
            return launcher, failures
        failures.append(f"{' '.join(launcher[:-1])}: {reason}")
    return None, failures


def _attempt(launcher: Sequence[str], ranks: str, nodes: str) -> str | None:
    """Start all ranks of the job, which check their number and the number of nodes."""
    command = [*launcher, ranks, sys.executable, "-m", "hybridnn.comm.launch_check", ranks, nodes]
    ended = run_child(command, SECONDS, os.environ)
    if ended.timed_out:
        return f"no answer within {SECONDS} s"
    if ended.code == 0:
        return None
    lines = [line.strip() for line in ended.errors.splitlines() if line.strip()]
    for fragment in ("MPI sees", "Error", "error", ""):  # launchers print other lines around the reason
        if found := [line for line in lines if fragment in line]:
            return found[0]
    return f"exit code {ended.code}"


def _stored(file: Path) -> str:
    """The launcher that an earlier call stored in the file; empty without one, or if its program does not exist."""
    try:
        arguments = file.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return ""
    return " ".join(arguments) if arguments and shutil.which(arguments[0]) else ""


def _store(file: Path, launcher: str) -> None:
    """Store the launcher; if this fails, the next call searches again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_atomically(file, lambda opened: opened.write(f"{launcher}\n".encode()), exclusive=False)
    except OSError as error:
        print(f"launcher: {file} cannot be written: {error.strerror}", file=sys.stderr)


def _main(environment: Mapping[str, str], file: Path | None) -> int:
    if file is not None and (found := _stored(file)):
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
    launcher, failures = find_launcher(candidates(plugins, programs), lambda command: _attempt(command, ranks, nodes))
    for failure in failures:
        print(f"launcher: not {failure}", file=sys.stderr)
    if launcher is None:
        print(f"launcher: nothing starts {ranks} ranks on {nodes} nodes that see each other", file=sys.stderr)
        return 1
    print(f"launcher: {' '.join(launcher[:-1])}", file=sys.stderr)
    if file is not None:
        _store(file, " ".join(launcher))
    print(" ".join(launcher))
    return 0


if __name__ == "__main__":
    sys.exit(_main(os.environ, Path(sys.argv[1]) if len(sys.argv) > 1 else None))
