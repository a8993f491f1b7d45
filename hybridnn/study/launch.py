"""Run of a cell as a child process: launcher, time limit, signals and the error line of a failed run."""

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
from time import monotonic
from types import FrameType
from typing import Literal

from hybridnn.comm.launcher import RANKS_PER_NODE, RankLauncher
from hybridnn.comm.threads import THREAD_VARIABLES
from hybridnn.errors import EnvironmentProblem, SettingError
from hybridnn.utils.files import read_tail

RANKS, NODES = "{ranks}", "{nodes}"
GRACE = 10.0
"""Seconds between SIGTERM to a launcher and SIGKILL."""

CHECKPOINT_GRACE = 60.0
"""Seconds for a run to write a checkpoint before its launcher is sent SIGTERM."""

TWICE_SECONDS = 1.0
"""Interval within which a repeated signal is ignored: a batch system may send it twice."""

STDOUT, STDERR = "stdout.log", "stderr.log"
ERROR_LINE = re.compile(r"Error\b|[A-Za-z_.]*(Error|Exception|Interrupt|Problem)\b.*:")
"""An error line of the program or of Python, unlike the messages that launchers write after it."""

DEATHS = (
    r"process rank \d+ with PID \d+ on node \S+ exited on signal \d+( \([^)]*\))?".replace(" ", r"\s+"),  # Open MPI
    r"EXIT STRING: .*signal \d+\)",  # MPICH
    r"\berror: .*(Killed|[Oo][Oo][Mm].?[Kk]ill|Segmentation fault|Aborted).*",  # Slurm
    r"rank \d+ \(.*\) is gone: [^;=\n]*",  # the program's own, of a rank of its node
)
"""Messages about the death of a rank, the most informative first. Open MPI breaks its message over lines."""


@dataclass(frozen=True)
class RunLauncher:
    """The command that starts a program on several ranks.

    Attributes
    ----------
    template : tuple of str
        Arguments with ``{ranks}`` in place of the number of ranks, and ``{nodes}`` of the nodes that they fill.
    ranks_per_node : int
        For ``{nodes}``.
    found : RankLauncher or None
        The launcher of this environment, in place of the template.
    """

    template: tuple[str, ...] = ()
    ranks_per_node: int = 1
    found: RankLauncher | None = None

    @classmethod
    def of(cls, text: str | None, most_ranks: int) -> RunLauncher:
        """Split a launcher as a shell does, and check it; None stands for the launcher of this environment.

        Raises
        ------
        SettingError
            If it is not a command, lacks ``{ranks}`` where a run has several, or has ``{nodes}`` outside a Slurm job
            with a number of ranks per node.
        EnvironmentProblem
            If its program is not found, or this environment has no launcher.
        """
        if text is None:
            return cls(found=RankLauncher.find(os.environ))
        try:
            template = tuple(shlex.split(text))
        except ValueError as error:
            raise SettingError("--launcher", text, f"cannot be split into words: {error}") from error
        if most_ranks > 1 and RANKS not in text:
            raise SettingError("--launcher", text, f"must hold {RANKS}, for example 'mpirun -n {RANKS}'")
        if template and shutil.which(template[0]) is None:
            raise EnvironmentProblem(f"--launcher: there is no program {template[0]!r}")
        if NODES not in text:
            return cls(template)
        per_node = os.environ.get(RANKS_PER_NODE, "")
        if not per_node.isdigit() or int(per_node) == 0:
            raise SettingError("--launcher", text, f"{NODES} needs a Slurm job that was given --ntasks-per-node")
        return cls(template, int(per_node))

    def command(self, ranks: int, program: Sequence[str]) -> list[str]:
        """Return the whole command of a run."""
        if self.found is not None:
            settings = [f"{name}={value}" for name, value in self.found.settings(ranks, os.environ).items()]
            return ["env", *settings, *self.found.command(ranks, program, os.environ)]
        nodes = -(-ranks // self.ranks_per_node)
        start = [part.replace(RANKS, str(ranks)).replace(NODES, str(nodes)) for part in self.template]
        return [*start, *program]


@dataclass(frozen=True)
class ProcessOutcome:
    """End of a process.

    Attributes
    ----------
    code : int
        Exit code, negative for a signal.
    ended_by : {"", "limit", "warning"}
        Its time limit, or SIGUSR1 before the time limit of the batch job; empty if the process ended by itself.
    """

    code: int
    ended_by: Literal["", "limit", "warning"] = ""


def run_process(
    command: Sequence[str], folder: Path, limit: float | None, keep_open: int, *, checkpoint: bool = False
) -> ProcessOutcome:
    """Run a command to its end; its output goes to ``stdout.log`` and ``stderr.log`` in `folder`, which exists.

    Parameters
    ----------
    limit : float or None
        Seconds after which it is ended.
    keep_open : int
        A file descriptor that the command inherits: a lock on it lasts as long as the command, even if this
        process is killed.
    checkpoint : bool
        Send SIGUSR1 before ending the command, and wait for the run to write a checkpoint.

    Raises
    ------
    EnvironmentProblem
        If it cannot be started.
    KeyboardInterrupt
        After SIGINT or SIGTERM and the end of the command, with the signal's name. Another signal while the command is
        being ended shortens the wait.
    """
    with _raising_signals(), open(folder / STDOUT, "wb") as out, open(folder / STDERR, "wb") as err:
        try:
            # A session of its own: an interrupt on the terminal reaches this process alone, which then ends the ranks.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, pass_fds=(keep_open,)
            )
        except OSError as error:
            raise EnvironmentProblem(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            # With a limit Python polls; without, it might handle a signal only after the process's end.
            return ProcessOutcome(process.wait(inf if limit is None else limit))
        except subprocess.TimeoutExpired:
            return ProcessOutcome(_end(process, checkpoint=checkpoint), "limit")
        except _Warned:
            return ProcessOutcome(_end(process, checkpoint=checkpoint), "warning")
        except BaseException:
            _end(process, checkpoint=checkpoint)
            raise


def error_line(folder: Path) -> str:
    """The most informative line of a failed run's ``stderr.log``.

    The last error line; else the launcher's message about a dead rank; else the last line that is not a rule.
    """
    text = read_tail(folder / STDERR).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    errors = [line for line in lines if ERROR_LINE.match(line)]
    deaths = [" ".join(found[0].split()) for pattern in DEATHS if (found := re.search(pattern, text))]
    return (errors[-1:] or deaths or lines[-1:] or ["it printed no error"])[0]


def thread_settings(threads: int) -> list[str]:
    """Return the start of a command that sets its number of BLAS threads, on every node and under any launcher."""
    return ["env", *(f"{name}={threads}" for name in THREAD_VARIABLES)]


def train_command(settings: Path, folder: Path) -> list[str]:
    """Return the command that trains with a settings file into a folder, with this Python and package."""
    quoted = str(folder).replace("\\", "\\\\").replace('"', '\\"')
    return [sys.executable, "-m", "hybridnn", "train", str(settings), "--set", f'output.folder="{quoted}"']


class _Warned(KeyboardInterrupt):
    """SIGUSR1: the warning before the time limit of a batch job."""


@contextlib.contextmanager
def _raising_signals() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on SIGINT, SIGTERM and SIGUSR1, in the main thread alone, so that the run is ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last = -inf

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal last
        before, last = last, monotonic()
        if last - before <= TWICE_SECONDS:
            return
        raise (_Warned if number == signal.SIGUSR1 else KeyboardInterrupt)(signal.Signals(number).name)

    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    handlers = {kind: signal.signal(kind, stop) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in handlers.items():
            signal.signal(kind, handler)


def _end(process: subprocess.Popen[bytes], *, checkpoint: bool) -> int:
    """End a process group: with SIGUSR1 if it shall write a checkpoint, SIGTERM, and at last SIGKILL."""
    if checkpoint:
        process.send_signal(signal.SIGUSR1)  # launchers forward it to the ranks
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(CHECKPOINT_GRACE)
    for kind, grace in ((signal.SIGTERM, GRACE), (signal.SIGKILL, inf)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            return process.wait(grace)
    return process.wait()
