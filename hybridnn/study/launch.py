"""One run as a process of its own, under the user's launcher, within a time limit."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from hybridnn.errors import EnvironmentProblem, SettingError
from hybridnn.small_files import read_tail

__all__ = ["Ended", "Launcher", "last_words", "run_process", "train_command"]

RANKS, NODES = "{ranks}", "{nodes}"
RANKS_PER_NODE = "SLURM_NTASKS_PER_NODE"
GRACE = 10.0
"""Seconds that a launcher gets to end its ranks before it is killed."""

STDOUT, STDERR = "stdout.log", "stderr.log"
ERROR_LINE = re.compile(r"Error\b|[A-Za-z_.]*(Error|Exception|Interrupt|Problem)\b.*:")
"""A line of the program or of Python that says what went wrong, unlike what launchers write after it."""


@dataclass(frozen=True)
class Launcher:
    """The command that starts a program on several ranks.

    Attributes
    ----------
    words : tuple of str
        With ``{ranks}`` where the number of ranks belongs, and ``{nodes}`` for that of the nodes that they fill.
    ranks_per_node : int
        Counts only where the words hold ``{nodes}``.
    """

    words: tuple[str, ...]
    ranks_per_node: int = 1

    @classmethod
    def of(cls, text: str, most_ranks: int) -> Launcher:
        """Split a launcher as a shell does, and check it.

        Raises
        ------
        SettingError
            If it is not a command, does not say the number of ranks where a run has several, or asks for nodes outside
            a Slurm job that says how many ranks belong on one.
        EnvironmentProblem
            If its program is not there.
        """
        try:
            words = tuple(shlex.split(text))
        except ValueError as error:
            raise SettingError("--launcher", text, f"cannot be split into words: {error}") from error
        if most_ranks > 1 and RANKS not in text:
            raise SettingError("--launcher", text, f"must hold {RANKS}, for example 'mpirun -n {RANKS}'")
        if words and shutil.which(words[0]) is None:
            raise EnvironmentProblem(f"--launcher: there is no program {words[0]!r}")
        if NODES not in text:
            return cls(words)
        per_node = os.environ.get(RANKS_PER_NODE, "")
        if not per_node.isdigit() or int(per_node) == 0:
            raise SettingError("--launcher", text, f"{NODES} needs a Slurm job that was given --ntasks-per-node")
        return cls(words, int(per_node))

    def command(self, ranks: int, program: Sequence[str]) -> list[str]:
        """Return the whole command of a run."""
        nodes = -(-ranks // self.ranks_per_node)
        return [*(word.replace(RANKS, str(ranks)).replace(NODES, str(nodes)) for word in self.words), *program]


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, negative for a signal, and whether its time was over."""

    code: int
    timed_out: bool


def run_process(command: Sequence[str], folder: Path, limit: float | None, keep_open: int) -> Ended:
    """Run a command to its end; what it prints goes to ``stdout.log`` and ``stderr.log`` in `folder`.

    Parameters
    ----------
    command : sequence of str
    folder : Path
        Exists.
    limit : float or None
        Seconds after which it is ended.
    keep_open : int
        A file descriptor that the command inherits: a lock on it lasts as long as the command, even if this
        process is killed.

    Raises
    ------
    EnvironmentProblem
        If it cannot be started.
    KeyboardInterrupt
        After the command has been ended; by SIGTERM too, with which a batch system ends its jobs.
    """
    with _interrupted_by_sigterm(), open(folder / STDOUT, "wb") as out, open(folder / STDERR, "wb") as err:
        try:
            # A session of its own: an interrupt on the terminal reaches this process alone, which then ends the ranks.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, pass_fds=(keep_open,)
            )
        except OSError as error:
            raise EnvironmentProblem(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            # With a limit Python looks again and again; without, a signal might be heeded only after the process's end.
            return Ended(process.wait(inf if limit is None else limit), timed_out=False)
        except subprocess.TimeoutExpired:
            return Ended(_end(process), timed_out=True)
        except BaseException:
            _end(process)
            raise


def last_words(folder: Path) -> str:
    """The line of a failed run's ``stderr.log`` that says most: the last that names an error, or else the last."""
    text = read_tail(folder / STDERR).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if ERROR_LINE.match(line)]
    return (errors or lines or ["it printed no error"])[-1]


def train_command(settings: Path, folder: Path) -> list[str]:
    """Return the command that trains with a settings file into a folder, with this Python and this package."""
    quoted = str(folder).replace("\\", "\\\\").replace('"', '\\"')
    return [sys.executable, "-m", "hybridnn", "train", str(settings), "--set", f'output.folder="{quoted}"']


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Make SIGTERM an interrupt, so that nobody is left running; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a process and what it started: politely, then not."""
    for kind, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(patience)
    raise AssertionError("a killed process ends")
