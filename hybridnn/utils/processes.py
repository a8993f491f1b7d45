"""Programs that may crash or hang, as processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LAUNCHER_PREFIXES = ("OMPI_COMM_", "OMPI_UNIVERSE_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "HYDI_", "MPI_LOCAL")
"""Variables by which a process knows that it is a rank of a job."""


@dataclass(frozen=True)
class ChildEnd:
    """How a child process ended.

    Attributes
    ----------
    code : int
        Its exit code, negative for a signal.
    output, errors : str
        What it wrote.
    timed_out : bool
        Whether its time was over.
    """

    code: int
    output: str
    errors: str
    timed_out: bool

    @property
    def story(self) -> str:
        """The end in words."""
        if self.timed_out:
            return "did not end in time"
        if self.code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-self.code).name}"
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        return f"ended with exit code {self.code}" + (f": {lines[-1]}" if lines and self.code else "")


def run_child(command: Sequence[str], seconds: float, environment: Mapping[str, str]) -> ChildEnd:
    """Run a command, and kill it with all that it started when its time is over.

    Raises
    ------
    OSError
        If it cannot be started.
    """
    # Files, not pipes: what the child leaves behind could keep a pipe open for ever.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(environment), start_new_session=True
        )
        timed_out = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return ChildEnd(code, texts[0], texts[1], timed_out)


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is no rank of a job, for children that must not be taken for one."""
    return {name: value for name, value in environment.items() if not name.startswith(LAUNCHER_PREFIXES)}
