"""Start of a command's ranks: ``-n`` with ``mpirun`` or ``srun``, ``--in-process`` inside this process."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from types import FrameType
from typing import NoReturn, TypeVar

from hybridnn.cli.ranks import launch_rank
from hybridnn.errors import EnvironmentProblem, SettingError
from hybridnn.runs.stop_signals import REPEAT_SECONDS

FORWARDED = {
    signal.SIGINT: signal.SIGUSR2,
    signal.SIGTERM: signal.SIGUSR1,
    signal.SIGUSR1: signal.SIGUSR1,
}
"""Signals of this process, and those sent to Open MPI's ``mpirun``: on the first two it would end the ranks at once."""

PARENT_DEATH_SIGNAL = 1
"""``PR_SET_PDEATHSIG`` of Linux: option of ``prctl`` for the signal that is sent when the parent process ends."""

Result = TypeVar("Result")


def require_one_way(ranks: int | None, in_process: int | None) -> None:
    """Raise `SettingError` where both ``-n`` and ``--in-process`` are given, or a launcher has started the ranks."""
    if in_process is None:
        return
    if ranks is not None:
        raise SettingError("--in-process", in_process, f"not together with -n {ranks}: both start the ranks")
    if launch_rank() is not None:
        from hybridnn.comm.launcher import detect_launch

        launch = detect_launch(os.environ)
        if launch is None or launch.ranks > 1:
            by = "a launcher" if launch is None else launch.launcher
            raise SettingError("--in-process", in_process, f"not under {by}, which has started the ranks")


def on_ranks(in_process: int | None, action: Callable[[], Result]) -> Result:
    """Run a collective function on every rank.

    Parameters
    ----------
    in_process : int or None
        Number of ranks in this process; None where each rank is a process.
    action : callable
        What it raises on a rank propagates.

    Returns
    -------
    object
        Result of this rank, or of rank 0 of this process.

    Raises
    ------
    SettingError
        If the number of ranks is not allowed.
    CommunicationError
        On a deadlock, or where the calls of the ranks do not match.
    """
    if in_process is None:
        return action()
    from hybridnn.in_process.runner import MOST_RANKS, run_ranks

    if not 1 <= in_process <= MOST_RANKS:
        raise SettingError("--in-process", in_process, f"a whole number from 1 to {MOST_RANKS:,}")
    result: Result = run_ranks(in_process, lambda comm: action()).results[0]
    return result


def start_ranks(ranks: int | None, *, stops_on_signals: bool = False) -> None:
    """Start this command on `ranks` ranks; return only where `ranks` is None.

    Called after the options that one process can check, and before MPI is loaded. Parameters and errors as for
    `replace_by_ranks`.

    Raises
    ------
    SettingError
        If ``-n`` cannot be removed from the command line.
    """
    if ranks is not None:
        program = [*_this_program(), *_without_option(sys.argv[1:], ranks)]
        replace_by_ranks(ranks, program, stops_on_signals=stops_on_signals)


def replace_by_ranks(ranks: int, program: Sequence[str], *, stops_on_signals: bool = False) -> NoReturn:
    """Replace this process by the launcher of `ranks` ranks that run `program` with this Python.

    Signals, standard streams and the exit code are then the launcher's. The ranks read the width of the terminal from
    ``COLUMNS``, as their own output may be a pipe.

    Parameters
    ----------
    program : sequence of str
        Arguments of the Python interpreter.
    stops_on_signals : bool
        The ranks end their step and write a checkpoint on the signals of `hybridnn.runs.stop_signals`. A launcher that
        does not forward them is run as a child of this process, which does.

    Raises
    ------
    EnvironmentProblem
        If this process is already a rank, or no launcher is found.
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
        # Python ignores SIGPIPE, and the launcher would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise EnvironmentProblem(f"{command[0]} cannot be started: {error.strerror}") from error


def _run_and_forward(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a launcher, forward signals according to `FORWARDED`, and return its exit code.

    Ctrl-C in a terminal signals the whole process group. The launcher inherits the first two of `FORWARDED` as
    blocked, and receives only what this process sends. On a second signal it ends the ranks, which may be stuck.
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
    # Ranks without a handler yet ended on the signal that was sent instead.
    ended_by = next((number for _, number, to in sent if to == signal.SIGHUP or code == 128 + to), None)
    return 128 + ended_by if ended_by else code if code >= 0 else 128 - code


def _prepare_launcher() -> None:
    """Unblock SIGUSR1, and have the launcher killed when its parent dies: one that blocks SIGTERM is hard to end."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _this_program() -> list[str]:
    """Arguments of the interpreter that select this program: ``-m hybridnn``, or the path of the script."""
    return sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]


def _without_option(arguments: Sequence[str], ranks: int) -> list[str]:
    """Arguments without ``-n N``, which must be there once and by itself, so that the ranks start no others."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    found = [index for index, argument in enumerate(arguments[:end]) if re.fullmatch(r"-n\d*", argument)]
    if len(found) != 1:
        raise SettingError("-n", ranks, f"write it once and apart from other options: -n {ranks}")
    after = found[0] + (2 if arguments[found[0]] == "-n" else 1)
    return [*arguments[: found[0]], *arguments[after:]]
