"""Programs that Slurm batch scripts call.

``python -m hybridnn.batch_jobs`` prints the folder of the scripts, study files and machine files, which users copy.

``python -m hybridnn.batch_jobs launcher [FILE]`` inside a batch job prints the command before the number of ranks, for
example ``srun --mpi=pmix -n``. The launchers that may work are tried on the whole allocation, one after another. The
first that works is stored in FILE for further calls: after a requeue, or in the other tasks of an array.

``python -m hybridnn.batch_jobs run_step FILE COMMAND…`` runs a command, forwards the script's signals, and writes the
exit code to a file: bash 5.2 may lose the exit code of a process that ends while a trapped signal arrives. ``wait``
then returns -1, and a run that should be requeued would end its job.

``python -m hybridnn.batch_jobs lost_node`` ends with exit code 0 if a node of the job has failed. That ends a run on
several nodes within seconds, but Slurm may notice it minutes later. If the batch script ended with the run, Slurm would
count the job as failed, and would not requeue it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hybridnn.comm.launcher import srun_on_every_node, srun_plugins, trial_command
from hybridnn.utils.processes import run_child

# -- launcher ----------------------------------------------------------------------------------------------------------

LAUNCHER_SECONDS = 120  # time limit of the trial of a launcher


def candidates(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the launchers that may work, up to the number of ranks, in order of preference.

    The one that does depends on the build of Slurm and of the MPI library; any other starts processes of one rank each.
    """
    path = environment.get("PATH")
    if shutil.which("srun", path=path):
        yield "srun -n"
        plugins = srun_plugins(environment)
        yield from (f"srun --mpi={plugin} -n" for plugin in ("pmix", "pmi2") if plugin in plugins)
    if shutil.which("mpirun", path=path):
        # Without the option, it would bind each rank with all its threads to one of the cores of the job.
        yield "mpirun --bind-to none -n"


def _trial_problem(launcher: str, ranks: str, nodes: str, environment: Mapping[str, str]) -> str:
    """Why a launcher does not start connected ranks on all nodes of the job, in one line; empty if it does."""
    ended = run_child([*launcher.split(), ranks, *trial_command(ranks, nodes)], LAUNCHER_SECONDS, environment)
    if ended.timed_out:
        return f"no answer within {LAUNCHER_SECONDS} s"
    if ended.code == 0:
        return ""
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
    from hybridnn.utils.files import replace_atomically  # loads NumPy: see `run_step`

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_atomically(file, lambda opened: opened.write(f"{launcher}\n".encode()), exclusive=False)
    except OSError as error:
        print(f"launcher: {file} cannot be written: {error.strerror}", file=sys.stderr)


def print_launcher(environment: Mapping[str, str], file: Path | None = None) -> int:
    """Print the launcher of this job, from the file or after a search, and store it; returns the exit code."""
    if file is not None and (found := _stored(file)):
        print(f"launcher: {found.rpartition(' ')[0]}, as found before", file=sys.stderr)
        print(found)
        return 0
    try:
        ranks, nodes = environment["SLURM_NTASKS"], environment["SLURM_JOB_NUM_NODES"]
    except KeyError as error:
        print(f"{error.args[0]} is not set: call this in a Slurm job that asked for --ntasks", file=sys.stderr)
        return 2
    for launcher in candidates(environment):
        name = launcher.removesuffix(" -n")
        if problem := _trial_problem(launcher, ranks, nodes, environment):
            print(f"launcher: not {name}: {problem}", file=sys.stderr)
            continue
        print(f"launcher: {name}", file=sys.stderr)
        if file is not None:
            _store(file, launcher)
        print(launcher)
        return 0
    print(f"launcher: nothing starts {ranks} ranks on {nodes} nodes that see each other", file=sys.stderr)
    return 1


# -- run of a command --------------------------------------------------------------------------------------------------

FORWARDED = {signal.SIGUSR1, signal.SIGTERM}


def run_step(command: Sequence[str]) -> int:
    """Run a command; returns its exit code, 128 + N after signal N.

    Signals that the parent process sends are forwarded. Those of others, such as Slurm's to all processes of a job, are
    not, because the command receives them as well.

    Other threads, such as those of BLAS, would receive signals that this one blocks: this module does not load NumPy.
    """
    signals = FORWARDED | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    child = os.posix_spawnp(command[0], list(command), os.environ, setsigmask=before)
    while True:
        received = signal.sigwaitinfo(signals)
        if received.si_signo != signal.SIGCHLD:
            if received.si_pid == os.getppid():
                os.kill(child, received.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


# -- failed nodes ------------------------------------------------------------------------------------------------------

TRIAL_SECONDS = 60.0
QUERY_SECONDS = 30.0
NOTICE_SECONDS = 300.0
"""Time in which Slurm notices a failed node: it asks every node three times per SlurmdTimeout, by default 300 s."""
POLL_SECONDS = 2.0
LOST = ("down", "fail", "error")
NO_ANSWER = "*"
"""Mark behind the state of a node that does not answer, which ``sinfo`` writes."""


def find_lost_node(environment: Mapping[str, str]) -> str | None:
    """Node of this job that has failed, with its state; None if a program starts on all of them, or Slurm lists none.

    If a program does not start on all nodes, Slurm has `NOTICE_SECONDS` to notice the failure.
    """
    nodes, names = environment.get("SLURM_JOB_NUM_NODES", "1"), environment.get("SLURM_JOB_NODELIST", "")
    if nodes == "1" or not names:  # this program runs on the only node
        return None
    query = ["sinfo", "--noheader", "--Node", f"--nodes={names}", "--format=%N %T"]
    try:
        ended = run_child([*srun_on_every_node(nodes), "true"], TRIAL_SECONDS, environment)
        if ended.code == 0 and not ended.timed_out:
            return None
        print(f"a program on all {nodes} nodes {ended.summary}: has one of them failed?", file=sys.stderr, flush=True)
        end = time.monotonic() + NOTICE_SECONDS
        while time.monotonic() < end:
            for line in run_child(query, QUERY_SECONDS, environment).output.splitlines():
                name, _, state = line.strip().partition(" ")
                if state.endswith(NO_ANSWER) or state.startswith(LOST):
                    return f"{name} ({state})"
            time.sleep(POLL_SECONDS)
    except OSError as error:  # there is no srun or sinfo
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
    return None


# -- programs ----------------------------------------------------------------------------------------------------------


def main(program: str = "", *arguments: str) -> int:
    """Run one of the programs; returns the exit code."""
    if program == "launcher":
        return print_launcher(os.environ, *map(Path, arguments))
    if program == "run_step":
        file, *command = arguments
        code = run_step(command)
        if file:  # empty if there is no room for a file
            Path(file).write_text(f"{code}\n", encoding="utf-8")
        return code
    if program == "lost_node":
        lost = find_lost_node(os.environ)
        if lost is not None:
            print(f"node failure: {lost}", file=sys.stderr)
        return int(lost is None)
    if program:
        print(f"there is no program {program}: launcher, run_step or lost_node", file=sys.stderr)
        return 2
    from hybridnn.utils.files import shipped_folder  # loads NumPy: see `run_step`

    print(shipped_folder("hpc_jobs"))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
