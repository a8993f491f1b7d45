"""The option ``-n``: start several ranks that run the same command, with ``mpirun`` or ``srun``."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from time import monotonic
from types import FrameType
from typing import Annotated, NoReturn

import typer

from hybridnn.cli.ranks import launch_rank
from hybridnn.errors import EnvironmentProblem, SettingError
from hybridnn.runs.stop_signals import REPEAT_SECONDS

FORWARDED = {
    signal.SIGINT: signal.SIGUSR2,
    signal.SIGTERM: signal.SIGUSR1,
    signal.SIGUSR1: signal.SIGUSR1,
}
"""What is sent to Open MPI's ``mpirun`` when a signal arrives: on the first two it would end the ranks at once."""

PARENT_DEATH_SIGNAL = 1
"""Option of ``prctl``: the signal that a process gets when its parent has ended (Linux)."""

Ranks = Annotated[
    int | None,
    typer.Option(
        "-n",
        min=1,
        help="Start this command on N ranks, with mpirun, or in a Slurm job with srun.",
        metavar="N",
        show_default=False,
    ),
]


def start_ranks(ranks: int | None, *, stops_on_signals: bool = False) -> None:
    """Start this command on `ranks` ranks; return only where `ranks` is None.

    Called when the options that one process can check have been checked, and before MPI is loaded.

    Parameters
    ----------
    ranks : int or None
    stops_on_signals : bool
        The ranks end their step and write a checkpoint on the signals of `hybridnn.runs.stop_signals`.

    Raises
    ------
    SettingError
        If the option cannot be taken out of the command.
    EnvironmentProblem
        If this process is a rank already, or no launcher is found.
    """
    if ranks is not None:
        program = [*_this_program(), *_without_option(sys.argv[1:], ranks)]
        replace_by_ranks(ranks, program, stops_on_signals=stops_on_signals)


def replace_by_ranks(ranks: int, program: Sequence[str], *, stops_on_signals: bool = False) -> NoReturn:
    """Replace this process by the launcher of `ranks` ranks that run `program` with this Python.

    Signals, standard streams and the exit code are then the launcher's. Ranks learn the width of the terminal from
    ``COLUMNS``, as their own output may be a pipe.

    Parameters
    ----------
    ranks : int
    program : sequence of str
        Arguments of the Python interpreter.
    stops_on_signals : bool
        As in `start_ranks`. Where the launcher does not forward them, this process waits for it and does.

    Raises
    ------
    EnvironmentProblem
        If this process is a rank already, or no launcher is found.
    """
    if launch_rank() is not None:
        raise EnvironmentProblem(f"-n {ranks} starts the ranks itself: call it without mpirun or srun")

    from hybridnn.comm.launcher import RankLauncher

    try:
        launcher = RankLauncher.find(os.environ)
    except EnvironmentProblem as error:
        raise EnvironmentProblem(f"-n {ranks}: {error}; hybridnn train --in-process {ranks} needs no MPI") from error
    command = launcher.command(ranks, [sys.executable, *program], os.environ)
    environment = os.environ | launcher.settings(ranks, os.environ)
    if sys.stdout.isatty() and (columns := os.get_terminal_size(sys.stdout.fileno()).columns):
        environment.setdefault("COLUMNS", str(columns))
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if stops_on_signals and launcher.ends_ranks_on_signals(os.environ):
            sys.exit(_run_and_forward(command, environment))
        # Python ignores it, and the launcher would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise EnvironmentProblem(f"{command[0]} cannot be started: {error.strerror}") from error


def _run_and_forward(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a launcher, forward signals as `FORWARDED` says, and return its exit code.

    Ctrl-C in a terminal signals the whole process group. The launcher inherits the first two of `FORWARDED` as
    blocked, and gets what this process sends instead. On a second signal it ends the ranks, which may be stuck.
    """
    sent: list[tuple[float, int, int]] = []

    def forward(number: int, frame: FrameType | None) -> None:
        now = monotonic()
        again = bool(sent) and now - sent[0][0] > REPEAT_SECONDS
        sent.append((now, number, signal.SIGHUP if again else FORWARDED[signal.Signals(number)]))
        process.send_signal(sent[-1][2])

    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    process = subprocess.Popen(command, env=environment, preexec_fn=_prepare_launcher)
    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    code = process.wait()
    # Ranks that were not yet ready for it ended with what was sent instead.
    ended_by = next((number for _, number, to in sent if to == signal.SIGHUP or code == 128 + to), None)
    return 128 + ended_by if ended_by else code if code >= 0 else 128 - code


def _prepare_launcher() -> None:
    """Let SIGUSR1 through, and have the launcher killed when its parent is: one that blocks SIGTERM is hard to end."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _this_program() -> list[str]:
    """Arguments of the interpreter before those of this program: ``-m hybridnn``, or the path of the script."""
    return sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]


def _without_option(arguments: Sequence[str], ranks: int) -> list[str]:
    """Arguments without ``-n N``, so that the ranks start no others.

    Raises
    ------
    SettingError
        If the option is not there exactly once, by itself.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    places = [place for place, word in enumerate(arguments[:end]) if re.fullmatch(r"-n\d*", word)]
    if len(places) != 1:
        raise SettingError("-n", ranks, f"write it once and apart from other options: -n {ranks}")
    after = places[0] + (2 if arguments[places[0]] == "-n" else 1)
    return [*arguments[: places[0]], *arguments[after:]]
