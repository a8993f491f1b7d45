"""Child processes with a time limit, for programs that may crash or hang."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ChildResult:
    """Result of a child process."""

    code: int  # exit code, negative for a signal
    # standard output and standard error
    output: str
    errors: str
    timed_out: bool  # whether it was killed at the time limit

    @property
    def summary(self) -> str:
        """How the process ended, as the end of a sentence."""
        if self.timed_out:
            return "did not end in time"
        if self.code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-self.code).name}"
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        return f"ended with exit code {self.code}" + (f": {lines[-1]}" if lines and self.code else "")


def run_child(command: Sequence[str], seconds: float, environment: Mapping[str, str]) -> ChildResult:
    """Run a command, and kill it with all processes that it started when `seconds` have passed.

    Raises
    ------
    OSError
        If it cannot be started.
    """
    # Files, not pipes: processes that outlive the child could keep a pipe open forever.
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
    return ChildResult(code, texts[0], texts[1], timed_out)
