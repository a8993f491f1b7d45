"""The option ``-n``: replace this process by the launcher of several ranks that run the same command."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from hybridnn.cli.ranks import launch_rank
from hybridnn.errors import EnvironmentProblem, SettingError

__all__ = ["Ranks", "start_ranks"]

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


def start_ranks(ranks: int | None) -> None:
    """Start this command on `ranks` ranks; return only where `ranks` is None.

    Called when the options that one process can check have been checked, and before MPI is loaded.

    Raises
    ------
    SettingError
        If the option cannot be taken out of the command.
    EnvironmentProblem
        If this process is a rank already, or no launcher is found.
    """
    if ranks is not None:
        replace_by_ranks(ranks, [*_this_program(), *_without_option(sys.argv[1:], ranks)])


def replace_by_ranks(ranks: int, program: Sequence[str]) -> NoReturn:
    """Replace this process by the launcher of `ranks` ranks that run `program` with this Python.

    Signals, standard streams and the exit code are then the launcher's. Ranks learn the width of the terminal from
    ``COLUMNS``, as their own output may be a pipe.

    Parameters
    ----------
    ranks : int
    program : sequence of str
        Arguments of the Python interpreter.

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
    # Python ignores it, and the launcher would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise EnvironmentProblem(f"{command[0]} cannot be started: {error.strerror}") from error


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
