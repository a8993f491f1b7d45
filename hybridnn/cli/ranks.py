"""Ranks of a command: how ``-n`` and ``--in-process`` start them, and how they end together.

Rank 0 alone prints. `run`, the command that starts a script on several ranks, is here too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import IO, Annotated, NoReturn, TextIO, TypeVar

import typer

from hybridnn.cli.options import count
from hybridnn.comm.mpi import detect_launch, import_mpi, is_child, launched_rank
from hybridnn.diagnostics.failsafe import (
    BEGUN,
    ENDED,
    FAILED,
    PROGRESS_FILE,
    all_ranks_arrive,
    bar_file,
    lower_rank_reports,
    notify_higher_ranks,
    progress_file,
    report_failure,
    running_world,
)
from hybridnn.errors import EnvironmentProblem, HybridnnError, SettingError
from hybridnn.utils.processes import REPEAT_SECONDS, host_of, open_connections
from hybridnn.utils.text import MAX_RANKS

LEAD_SECONDS = 0.5
"""Delay of the other processes before they exit: a launcher may end the job before rank 0 has printed."""

DEADLINE = 5.0  # seconds that a rank waits for the others to reach the same error

Signals = Mapping[signal.Signals, signal.Signals]

FORWARDED: Signals = {signal.SIGINT: signal.SIGUSR2, signal.SIGTERM: signal.SIGUSR1, signal.SIGUSR1: signal.SIGUSR1}
"""Signals of this process, and those sent to Open MPI's ``mpirun``: on the first two it would end the ranks at once."""

UNCHANGED: Signals = {number: number for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}
"""The same for other launchers, which receive SIGINT from the terminal as well."""

ENDING: Signals = {**UNCHANGED, signal.SIGINT: signal.SIGHUP, signal.SIGTERM: signal.SIGHUP}
"""The same for Open MPI's ``mpirun`` with ranks that write no checkpoint: they end at once."""

CHECK_SECONDS = 1.0  # between two looks at the connections of a launcher
SILENT_SECONDS = 20.0  # after which a host that acknowledges nothing is lost for a launcher

TERMINAL = "TTY_COMPATIBLE"
"""Environment variable, which rich reads too: ``1`` where what a rank writes is shown on a terminal."""

NOTEBOOK = "JPY_PARENT_PID"  # environment variable that Jupyter sets for its kernels
UNKNOWN_TERMINAL_WIDTH = 80
SILENT_OUTPUT_SECONDS = 1.0  # without output, after which a terminal shows the time
TICK_SECONDS = 0.2
ERASE = b"\r\033[K"  # a terminal erases the line of the cursor

PARENT_DEATH_SIGNAL = 1
"""``PR_SET_PDEATHSIG`` of Linux: option of ``prctl`` for the signal that is sent when the parent process ends."""

Result = TypeVar("Result")


def launch_rank() -> int | None:
    """Rank of this process as its launcher numbered it; None without a launcher, or if a rank started it."""
    return None if is_child() else launched_rank(os.environ)


class FirstRankError(HybridnnError):
    """An error of a command that runs on rank 0 alone."""

    def __init__(self, error: HybridnnError) -> None:
        super().__init__(str(error))
        self.exit_code = error.exit_code


@contextlib.contextmanager
def first_rank_alone() -> Iterator[None]:
    """Run the block on rank 0 alone: the other ranks exit, so that an error of rank 0 does not wait for them."""
    if launch_rank() not in (None, 0):
        raise typer.Exit()
    try:
        yield
    except HybridnnError as error:
        raise FirstRankError(error) from error


def leave(message: str, exit_code: int, *, together: bool = True) -> NoReturn:
    """Print one error line on rank 0 and exit on every rank.

    The ranks exit together, because mpirun ends a job at the first rank that fails, perhaps before rank 0 has printed.
    An error that not all ranks have ends the job after `DEADLINE`, with the line of the lowest rank that has it. Where
    they are not `together`, the others have exited: rank 0 prints and exits at once.
    """
    if not together:
        print(f"Error: {message}", file=sys.stderr, flush=True)
        sys.exit(exit_code)
    if launch_rank() is not None:
        # Several ranks may have met the same error before any of them needed MPI. Without an MPI library every process
        # exits by itself.
        with contextlib.suppress(EnvironmentProblem):
            import_mpi()
    world = running_world()
    if world is None and launch_rank() not in (None, 0):
        time.sleep(LEAD_SECONDS)  # without MPI the process with number 0 prints for all
        sys.exit(exit_code)
    if world is None or world.Get_rank() == 0:
        print(f"Error: {message}", file=sys.stderr, flush=True)
        notify_higher_ranks()
    if not all_ranks_arrive(DEADLINE):
        if world.Get_rank() != 0:
            notify_higher_ranks()
            if lower_rank_reports(LEAD_SECONDS):
                time.sleep(DEADLINE)  # that rank prints, and ends the job
            else:
                where = f"rank {world.Get_rank()} on {socket.gethostname()}"
                print(f"Error on {where}: {message}", file=sys.stderr, flush=True)
        report_failure(exit_code)
        time.sleep(LEAD_SECONDS)  # for the launcher to forward the line
        world.Abort(exit_code)
    sys.exit(exit_code)


def columns_of_terminal(stream: TextIO) -> int | None:
    """Columns of the terminal that `stream` is, 0 where it has no size; None if it is none.

    A notebook gives the commands of its cells a pseudo-terminal, and shows each update of a line as a new one.
    """
    if not stream.isatty() or NOTEBOOK in os.environ:
        return None
    return os.get_terminal_size(stream.fileno()).columns


def require_one_way(ranks: int | None, in_process: int | None) -> None:
    """Raise `SettingError` where both ``-n`` and ``--in-process`` are given, or a launcher has started the ranks."""
    if in_process is None:
        return
    if ranks is not None:
        raise SettingError("--in-process", in_process, f"not together with -n {ranks}: both start the ranks")
    if launch_rank() is not None:
        launch = detect_launch(os.environ)
        if launch is None or launch.ranks > 1:
            by = "a launcher" if launch is None else launch.launcher
            raise SettingError("--in-process", in_process, f"not under {by}, which has started the ranks")


def on_ranks(in_process: int | None, action: Callable[[], Result]) -> Result:
    """Run a collective function on `in_process` ranks of this process, or once where each rank is a process.

    Returns the result of this rank, or of rank 0 of this process. What the function raises on a rank propagates.
    """
    if in_process is None:
        return action()
    from hybridnn.in_process import MOST_RANKS, run_ranks

    if not 1 <= in_process <= MOST_RANKS:
        raise SettingError("--in-process", in_process, f"must be a whole number from 1 to {MOST_RANKS:,}")
    result: Result = run_ranks(in_process, lambda comm: action()).results[0]
    return result


def start_ranks(ranks: int | None, *, stops_on_signals: bool = False) -> None:
    """Start this command on `ranks` ranks; return only where `ranks` is None.

    Called after the options that one process can check, and before MPI is loaded. Raises `SettingError` if ``-n``
    cannot be removed from the command line.
    """
    if ranks is not None:
        # The interpreter's own arguments select this program: -m hybridnn, or the path of the script.
        interpreter = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
        program = [*interpreter, *_without_option(sys.argv[1:], ranks)]
        replace_by_ranks(ranks, program, stops_on_signals=stops_on_signals)


def replace_by_ranks(ranks: int, program: Sequence[str], *, stops_on_signals: bool = False) -> NoReturn:
    """Replace this process by the launcher of `ranks` ranks that run `program`, arguments of this Python.

    Signals, standard streams and the exit code are then the launcher's. On a terminal the launcher is a child of this
    process, which shows its output; the ranks read from the environment that they write to a terminal, and its width,
    as their own output may be a pipe. With `stops_on_signals` the ranks end their step and write a checkpoint on the
    signals of `hybridnn.runs.callbacks`; ``mpirun`` is then a child of this process, which forwards them, and sends one
    where nothing reads the output any more.
    """
    if launch_rank() is not None:
        raise EnvironmentProblem(f"-n {ranks} starts the ranks itself: call it without mpirun or srun")
    if ranks > MAX_RANKS:
        raise SettingError("-n", ranks, f"must be at most {MAX_RANKS:,}")
    from hybridnn.comm.launcher import RankLauncher

    try:
        launcher = RankLauncher.find(os.environ)
    except EnvironmentProblem as error:
        raise EnvironmentProblem(f"-n {ranks}: {error}; hybridnn train --in-process {ranks} needs no MPI") from error
    command = launcher.command(ranks, [sys.executable, *program], os.environ)
    environment = os.environ | launcher.settings(ranks, os.environ)
    columns = columns_of_terminal(sys.stdout)
    if columns is not None:
        environment = {TERMINAL: "1", "COLUMNS": str(columns or UNKNOWN_TERMINAL_WIDTH)} | environment
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if columns is not None or (stops_on_signals and not launcher.is_srun):
            ends_ranks = launcher.ends_ranks_on_signals(os.environ)
            signals = (FORWARDED if stops_on_signals else ENDING) if ends_ranks else UNCHANGED
            sys.exit(_run_and_forward(command, environment, signals))
        # Python ignores SIGPIPE, and the launcher would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise EnvironmentProblem(f"{command[0]} cannot be started: {error.strerror}") from error


def _run_and_forward(command: Sequence[str], environment: Mapping[str, str], signals: Signals = FORWARDED) -> int:
    """Run a launcher, show its output, forward signals, and return its exit code.

    Ctrl-C in a terminal signals the whole process group. Open MPI's launcher inherits the first two of `FORWARDED` as
    blocked, and receives only what this process sends. On a second signal it ends the ranks, which may be stuck.
    """
    sent: list[tuple[float, int, int]] = []

    def forward(number: int, frame: FrameType | None) -> None:
        now = monotonic()
        again = signals is not UNCHANGED and bool(sent) and now - sent[0][0] > REPEAT_SECONDS
        to = signal.SIGHUP if again else signals.get(signal.Signals(number))
        if to is not None:
            sent.append((now, number, to))
            process.send_signal(to)

    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    with tempfile.TemporaryDirectory(prefix="hybridnn-progress-") as folder:
        progress = Path(folder, "progress")
        progress.touch()
        environment = {**environment, PROGRESS_FILE: str(progress)}
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if sys.stdout.isatty() and sys.stderr.isatty() else None,
            preexec_fn=partial(_prepare_launcher, FORWARDED if signals is UNCHANGED else [signal.SIGUSR1]),
        )
        for number in {**FORWARDED, **signals}:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, forward)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        ended = threading.Event()
        output = threading.Thread(target=_write_output, args=(process.stdout, bar_file(progress), ended), daemon=True)
        output.start()
        try:
            code = _wait(process)
        finally:
            ended.set()
            output.join()
        reported = progress.read_bytes()
        if code == 0 and reported == BEGUN:
            _print_end("mpirun lost a host, and ended the training")
            return 1
        if reported.startswith(FAILED):
            # The launcher's is that of the rank that it missed first, which may have lost its connections.
            return int(reported.removeprefix(FAILED))
    # Ranks without a handler yet ended on the signal that was sent instead.
    ended_by = next((number for _, number, to in sent if to == signal.SIGHUP or code == 128 + to), None)
    return 128 + ended_by if ended_by else code if code >= 0 else 128 - code


def _wait(launcher: subprocess.Popen[bytes]) -> int:
    """Wait for a launcher and return its exit code, or 1 where it is ended because it waits for a lost host.

    When a job ends, Open MPI's ``mpirun`` waits for an answer of every host, for a quarter of an hour if one is lost.
    """
    silent_since: dict[str, float] = {}
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return launcher.wait(CHECK_SECONDS)
        now = monotonic()
        silent = [connection for connection in open_connections(launcher.pid) if connection.is_silent]
        silent_since = {connection.inode: silent_since.get(connection.inode, now) for connection in silent}
        lost = [connection.remote for connection in silent if now - silent_since[connection.inode] >= SILENT_SECONDS]
        if lost:
            hosts = ", ".join(dict.fromkeys(map(host_of, lost)))
            _print_end(f"no answer from {hosts} for {SILENT_SECONDS:g} s: it or its network is down; mpirun was ended")
            launcher.kill()
            launcher.wait()
            return 1


def _print_end(reason: str) -> None:
    print(f"\n=== {reason} ===", file=sys.stderr, flush=True)


def _write_output(pipe: IO[bytes], bar: Path, ended: threading.Event) -> None:
    """Write what comes from `pipe` to standard output, until its end, or all that there is when the launcher has ended.

    Below it a terminal shows the content of the file `bar`, or the seconds since the start when nothing has come for
    `SILENT_OUTPUT_SECONDS`.
    """
    out, is_terminal, begin = sys.stdout.fileno(), sys.stdout.isatty(), monotonic()
    last, at_line_start, shown = begin, True, b""
    try:
        while True:
            is_last = ended.is_set()  # before looking
            ready = select.select([pipe], [], [], 0 if is_last else TICK_SECONDS)[0]
            text = os.read(pipe.fileno(), 1 << 16) if ready else b""
            if text:
                _write_all(out, (ERASE if shown else b"") + text)
                last, at_line_start, shown = monotonic(), text.endswith(b"\n"), b""
            elif ready or is_last:
                return
            elif is_terminal and at_line_start:
                line = bar.read_bytes() if bar.exists() else b""
                if not line and monotonic() - last >= SILENT_OUTPUT_SECONDS:
                    line = f"running, {monotonic() - begin:.0f} s".encode()
                if line and line != shown:
                    _write_all(out, ERASE + line)
                    shown = line
    finally:
        pipe.close()
        if shown:
            _write_all(out, ERASE)


def _write_all(descriptor: int, text: bytes) -> None:
    try:
        while text:
            text = text[os.write(descriptor, text) :]
    except BrokenPipeError:
        stop_unread()


def discard_output() -> None:
    """Let standard output lead nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def stop_unread() -> None:
    """Stop a training whose output nothing reads any more, as behind ``head``, like SIGTERM: it writes a checkpoint."""
    discard_output()
    with contextlib.suppress(OSError):
        os.write(2, b"nothing reads the output any more\n")
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def reported_progress() -> Iterator[None]:
    """Report begin and end of the block to the process that started the ranks, if rank 0 shares its temporary folder.

    Open MPI's ``mpirun`` ends with exit code 0 if it has lost a host.
    """
    file = progress_file() if launch_rank() == 0 else None
    if file is not None:
        file.write_bytes(BEGUN)
    yield
    if file is not None:
        file.write_bytes(ENDED)


def _prepare_launcher(unblocked: Iterable[signal.Signals]) -> None:
    """Unblock signals, and have the launcher killed when its parent dies: one that blocks SIGTERM is hard to end."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, unblocked)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _without_option(arguments: Sequence[str], ranks: int) -> list[str]:
    """Arguments without ``-n N``, which must be there once and by itself, so that the ranks start no others."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    found = [index for index, argument in enumerate(arguments[:end]) if re.fullmatch(r"-n\d*", argument)]
    if len(found) != 1:
        raise SettingError("-n", ranks, f"write it once and apart from other options: -n {ranks}")
    after = found[0] + (2 if arguments[found[0]] == "-n" else 1)
    return [*arguments[: found[0]], *arguments[after:]]


def run(
    ranks: Annotated[int, count("Number of ranks.", "-n")],
    script: Annotated[str, typer.Argument(help="A Python script, or with -m a module.", metavar="SCRIPT")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script: all that follows it.", metavar="ARGUMENT")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as in python -m.")] = False,
) -> None:
    """Run a Python script on several ranks: hybridnn run -n 4 script.py."""
    package = script.partition(".")[0]
    # Python with -m searches the working folder, too.
    if module and not (package and (find_spec(package) or PathFinder.find_spec(package, [os.getcwd()]))):
        raise SettingError("-m", script, "there is no such module")
    if not module and not Path(script).is_file():
        raise SettingError("SCRIPT", script, "there is no such file")
    replace_by_ranks(ranks, [*(["-m"] if module else []), script, *(arguments or ())])
