"""Study runner: runs the missing cells of a study, one after the other or several at once, as child processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf
from pathlib import Path
from time import monotonic, perf_counter
from types import FrameType
from typing import Literal

from hybridnn.comm.hosts import MOST_DISTURBANCE, disturbance_text
from hybridnn.comm.launcher import ANYWHERE, RankCommand, rank_command
from hybridnn.comm.threads import THREAD_VARIABLES
from hybridnn.cost import MACHINE_VARIABLE
from hybridnn.cost.machine_file import read_machine
from hybridnn.errors import INTERRUPTED, DataError, EnvironmentProblem, SettingError, StoppedBySignal
from hybridnn.runs.folder import FolderInUse
from hybridnn.runs.run_files import disturbance_in, run_status
from hybridnn.study.cells import Cell, CellPlan, make_cells
from hybridnn.study.study_file import Study
from hybridnn.study.study_folder import ENDED, SETTINGS, Failure, StudyFolder
from hybridnn.utils.files import read_tail

WILDCARDS = "*?["
GRACE = 10.0  # seconds between SIGTERM to a launcher and SIGKILL
CHECKPOINT_GRACE = 60.0  # seconds for a run to write a checkpoint before its launcher is sent SIGTERM
MOST_REPEATS = 2  # of a disturbed cell, or one whose launcher does not start
NOT_LAUNCHED = 213  # of Open MPI, which has said why: on a busy machine its server may not start
POLL_SECONDS = 0.05  # between two looks at a process and the signals, where cells run at once
TWICE_SECONDS = 1.0  # interval within which a repeated signal is ignored: a batch system may send it twice

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

Signals = list[KeyboardInterrupt]
"""Signals received so far, in order: `_Warned` for SIGUSR1."""

TrainCommand = Callable[[Path, Path], list[str]]  # ``train(settings_file, folder)`` returns the command that trains


@dataclass(frozen=True)
class CellOutcome:
    """Outcome of running a cell; `status` is as in `CellState`, or ``"held"``: another process is running it."""

    cell: Cell
    status: Literal["finished", "diverged", "failed", "timed out", "interrupted", "held"]
    seconds: float = 0.0
    reason: str = ""
    disturbance: float = 0.0  # `LoadRecord.disturbance`, if it is above `MOST_DISTURBANCE` and times are compared


class StudyView:
    """What `run_study` calls; the methods do nothing. The trainings are processes with callbacks of their own."""

    def on_start(self, cells: int) -> None:
        """Called first, with the number of missing cells."""

    def on_cell_start(self, cell: Cell) -> None:
        """Called before a cell."""

    def on_cell_end(self, outcome: CellOutcome) -> None:
        """Called when a cell has ended or is held by another process."""


def default_folder(study: Study) -> Path:
    """Default folder of a study; the reduced study has a folder of its own."""
    return Path("runs") / "studies" / (study.keys.name + "-reduced" * study.reduced)


def train_command(settings: Path, folder: Path) -> list[str]:
    """Return the command that trains with a settings file into a folder, with this Python and package."""
    quoted = str(folder).replace("\\", "\\\\").replace('"', '\\"')
    return [sys.executable, "-m", "hybridnn", "train", str(settings), "--set", f'output.folder="{quoted}"']


@dataclass(frozen=True)
class StudyRun:
    """A checked study, ready for `run_study`; `chosen` are the cells to run, unless they are finished."""

    study: Study
    plan: CellPlan
    chosen: tuple[Cell, ...]
    folder: StudyFolder
    launcher: RankCommand | None  # None of ranks in one process that no launcher starts

    def command(self, cell: Cell, train: TrainCommand = train_command) -> list[str]:
        """Return the command that runs a cell, or resumes it where the study resumes cells.

        It sets the number of BLAS threads and the machine file on every node and under any launcher. Raises
        `SettingError` if the launcher cannot place the ranks as the cell requires.
        """
        folder = self.folder.cell(cell.id)
        variables = dict.fromkeys(THREAD_VARIABLES, str(cell.placement.threads))
        if self.study.keys.machine is not None:
            variables[MACHINE_VARIABLE] = self.study.keys.machine
        settings = [f"{name}={value}" for name, value in variables.items()]
        resume = ["--resume", "auto"] if self.resumes else []
        program = ["env", *settings, *train(folder / SETTINGS, folder), *resume]
        ranks, placement = cell.ranks, cell.placement
        if self.study.keys.in_process:
            if not placement.is_free:
                raise SettingError("in_process", True, "ranks of one process cannot be placed on nodes and cores")
            program += ["--in-process", str(ranks)]
            ranks, placement = 1, ANYWHERE
        return program if self.launcher is None else self.launcher(ranks, program, placement)

    @property
    def resumes(self) -> bool:
        """Whether an interrupted cell resumes from its newest checkpoint."""
        return self.study.keys.interrupted == "resume"


def plan_study(
    study: Study, folder: Path, launcher: str | None = None, only: str | None = None, cell: int | None = None
) -> StudyRun:
    """Choose the cells to run, and check everything that can be checked without running.

    Kept are the cells whose id matches the pattern `only`, or contains it if it has no wildcard; with `cell`, only the
    one of that number, from 0.

    Raises `SettingError` if no cell can run or matches, the folder has another study, or the launcher lacks
    ``{ranks}``; `DataError` for missing data, or a missing or invalid machine file, `EnvironmentProblem` for a missing
    launcher.
    """
    plan = make_cells(study)
    chosen = plan.cells
    if cell is not None:
        if not 0 <= cell < len(chosen):
            raise SettingError("--cell", cell, f"must be 0 to {len(chosen) - 1}")
        chosen = (chosen[cell],)
    if only is not None:
        pattern = only if any(wildcard in only for wildcard in WILDCARDS) else f"*{only}*"
        first, number = chosen[0].id, len(chosen)
        chosen = tuple(cell for cell in chosen if fnmatchcase(cell.id, pattern))
        if not chosen:
            raise SettingError("--only", only, f"matches no cell; the first of {number} is {first}")
    for file in dict.fromkeys(cell.settings.data.file for cell in chosen):
        if file is not None and not Path(file).is_file():
            raise DataError(f"data.file = {file!r}: no such file")
    cells = StudyFolder(folder)
    cells.check(study, plan)
    if study.keys.machine is not None:
        read_machine(study.keys.machine)
    in_process = study.keys.in_process
    most_ranks = 1 if in_process else max(cell.ranks for cell in chosen)
    command = None if in_process and launcher is None else rank_command(launcher, most_ranks)
    return StudyRun(study, plan, chosen, cells, command)


def run_study(
    run: StudyRun, view: StudyView, *, limit: float | None = None, jobs: int = 1, train: TrainCommand = train_command
) -> list[CellOutcome]:
    """Run the chosen cells that are not finished, `jobs` of them at once; a failed one does not stop the others.

    A cell is ended after `limit` seconds and counts as failed. Returned are the outcomes of the cells that were not
    finished before; after the warning before the time limit of a batch job (SIGUSR1), the last of them are those that
    were ended. If the next run of the study resumes a cell or continues with the next one, raises `StoppedBySignal`
    after that warning; after SIGINT or SIGTERM `KeyboardInterrupt`, when the running cells have been ended.

    Raises `EnvironmentProblem` if the folder cannot be written or the launcher cannot be started, `SettingError` if the
    launcher cannot place the ranks of a cell, or cells that run at once would disturb the times that are compared.
    """
    if jobs > 1 and run.study.keys.compares == "times":
        allowed = "1 for a study that compares times, which cells that run at once disturb (compares = 'training')"
        raise SettingError("--jobs", jobs, allowed)
    missing = [cell for cell in run.chosen if not run.folder.has_ended(cell.id)]
    for cell in missing:
        run.command(cell, train)  # refuses a placement that the launcher cannot do, before anything runs
    run.folder.begin(run.study, run.plan)
    view.on_start(len(missing))
    if jobs > 1:
        return _run_at_once(run, view, missing, jobs, lambda cell, signals: _run_cell(run, cell, limit, train, signals))
    outcomes = []
    for number, cell in enumerate(missing, 1):
        view.on_cell_start(cell)
        outcome, warned = _run_cell(run, cell, limit, train)
        outcomes.append(outcome)
        view.on_cell_end(outcome)
        if warned:
            _require_end(run, [outcome], others=number < len(missing))
            break
    return outcomes


def _require_end(run: StudyRun, outcomes: Sequence[CellOutcome], *, others: bool) -> None:
    """After a warning (SIGUSR1), raise `StoppedBySignal` if the next run of the study has something to continue.

    That are the cells that were ended, if the study resumes cells, or the `others` that have not begun, if none was.
    """
    ended = [outcome for outcome in outcomes if outcome.status not in ENDED]
    if (ended and run.resumes) or (others and not ended):
        outcome = (ended or outcomes)[-1]
        reason = outcome.reason or "finished before the time limit of its job"
        raise StoppedBySignal(f"cell {outcome.cell.id}: {reason}; run the study again to go on")


def _run_at_once(
    run: StudyRun,
    view: StudyView,
    missing: Sequence[Cell],
    jobs: int,
    run_cell: Callable[[Cell, Signals], tuple[CellOutcome, bool]],
) -> list[CellOutcome]:
    """Run `jobs` cells at once, each in a thread; this one receives the signals, calls the view and starts cells."""
    waiting, running = deque(missing), dict[Future[tuple[CellOutcome, bool]], Cell]()
    outcomes: list[CellOutcome] = []
    signals: Signals = []
    errors: list[BaseException] = []
    with ThreadPoolExecutor(jobs) as pool, _raising_signals() as raise_from_now_on:
        while running or (waiting and not signals):
            try:
                raise_from_now_on()
                while waiting and len(running) < jobs and not signals:
                    cell = waiting.popleft()
                    view.on_cell_start(cell)
                    running[pool.submit(run_cell, cell, signals)] = cell
                ended = wait(running, return_when=FIRST_COMPLETED).done
            except KeyboardInterrupt as received:
                signals.append(received)
                continue
            except BaseException:
                signals.append(KeyboardInterrupt("an error of the study"))  # for which the pool would wait
                raise
            for future in ended:
                del running[future]
                if (error := future.exception()) is not None:
                    errors.append(error)
                    signals.append(KeyboardInterrupt("an error of another cell"))  # ends the other cells
                    continue
                outcomes.append(future.result()[0])
                view.on_cell_end(outcomes[-1])
    if errors:
        raise next((error for error in errors if not isinstance(error, KeyboardInterrupt)), errors[0])
    if signals and not isinstance(signals[0], _Warned):
        raise signals[0]
    if signals:
        _require_end(run, outcomes, others=bool(waiting))
    return outcomes


def _run_cell(
    run: StudyRun, cell: Cell, limit: float | None, train: TrainCommand, signals: Signals | None = None
) -> tuple[CellOutcome, bool]:
    """Run a cell unless another process does; returns its outcome, and whether a warning (SIGUSR1) came.

    In a study that compares times, it is repeated up to `MOST_REPEATS` times while it is disturbed.

    `signals` are those that the main thread receives, where this is another one.
    """
    try:
        lock = run.folder.lock(cell.id)
    except FolderInUse as busy:
        return CellOutcome(cell, "held", reason=f"{busy.holder} is running it"), False
    with lock:
        if run.folder.has_ended(cell.id):  # by another process in the meantime
            return _ended(run, cell), False
        for repeat in range(1 + MOST_REPEATS):
            # Nothing of a disturbed run is kept, or it would be resumed at its end.
            run.folder.prepare(cell, resume=run.resumes and repeat == 0)
            outcome, warned = _run_once(run, cell, limit, train, signals, lock.descriptor)
            if warned or not outcome.disturbance:
                break
        return outcome, warned


def _run_once(
    run: StudyRun, cell: Cell, limit: float | None, train: TrainCommand, signals: Signals | None, keep_open: int
) -> tuple[CellOutcome, bool]:
    """Run a prepared cell; returns as `_run_cell`, and takes `keep_open` as `run_process` does."""
    folder, start = run.folder.cell(cell.id), perf_counter()
    try:
        for _ in range(1 + MOST_REPEATS):
            code, ended_by = run_process(
                run.command(cell, train), folder, limit, keep_open, checkpoint=run.resumes, signals=signals
            )
            if code != NOT_LAUNCHED:
                break
    except KeyboardInterrupt as stop:
        run.folder.fail(cell.id, "interrupted", f"ended by {stop.args[0] if stop.args else 'SIGINT'}")
        raise
    seconds = perf_counter() - start
    status = run_status(folder)
    if status == "diverged" or (status == "finished" and code == 0):
        return _ended(run, cell, seconds), ended_by == "warning"
    failure, cause = _failure(code, ended_by, limit)
    reason = f"{cause}: {error_line(folder)}"
    run.folder.fail(cell.id, failure, reason)
    return CellOutcome(cell, failure, seconds, reason), ended_by == "warning"


def _ended(run: StudyRun, cell: Cell, seconds: float = 0.0) -> CellOutcome:
    """Outcome of a cell that has a result."""
    state = run.folder.state(cell.id)
    status: Literal["finished", "diverged"] = "diverged" if state.status == "diverged" else "finished"
    found = disturbance_in(run.folder.cell(cell.id)) if run.study.keys.compares == "times" else 0.0
    if found <= MOST_DISTURBANCE:
        return CellOutcome(cell, status, seconds, state.reason)
    reason = "; ".join(filter(None, [state.reason, disturbance_text(found)]))
    return CellOutcome(cell, status, seconds, reason, found)


def _failure(code: int, ended_by: str, limit: float | None) -> tuple[Failure, str]:
    """Status of a cell that did not finish, and the cause."""
    if ended_by == "limit":
        return "timed out", f"ended after the limit of {limit:g} s"
    if ended_by == "warning":
        return "timed out", "ended by SIGUSR1, before the time limit of its job"
    is_interrupted = code in (StoppedBySignal.exit_code, INTERRUPTED)
    return "interrupted" if is_interrupted else "failed", f"exit code {code}"


def error_line(folder: Path) -> str:
    """The most informative line of a failed run's ``stderr.log``.

    The last error line; else the launcher's message about a dead rank; else the last line that is not a rule.
    """
    text = read_tail(folder / STDERR).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    errors = [line for line in lines if ERROR_LINE.match(line)]
    deaths = [" ".join(found[0].split()) for pattern in DEATHS if (found := re.search(pattern, text))]
    return (errors[-1:] or deaths or lines[-1:] or ["it printed no error"])[0]


def run_process(
    command: Sequence[str],
    folder: Path,
    limit: float | None,
    keep_open: int,
    *,
    checkpoint: bool = False,
    signals: Signals | None = None,
) -> tuple[int, Literal["", "limit", "warning"]]:
    """Run a command to its end; its output goes to ``stdout.log`` and ``stderr.log`` in `folder`, which exists.

    It is ended after `limit` seconds; where it can write a `checkpoint`, it is sent SIGUSR1 and given time first. The
    command inherits the file descriptor `keep_open`: a lock on it lasts as long as the command, even if this process is
    killed. In another thread than the main one, `signals` are those that the latter receives. Raises
    `EnvironmentProblem` if the command cannot be started.

    Returns the exit code, negative for a signal, and what ended it: its time limit, or SIGUSR1 before the time limit of
    the batch job; empty if it ended by itself. After SIGINT or SIGTERM and the end of the command, raises
    `KeyboardInterrupt` with the signal's name. Another signal meanwhile shortens the wait.
    """
    for name in (STDOUT, STDERR):
        (folder / name).unlink(missing_ok=True)  # a link would lead to a file elsewhere
    with (
        _raising_signals() as raise_from_now_on,
        open(folder / STDOUT, "wb") as out,
        open(folder / STDERR, "wb") as err,
    ):
        try:
            # A session of its own: an interrupt on the terminal reaches this process alone, which then ends the ranks.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, pass_fds=(keep_open,)
            )
        except OSError as error:
            raise EnvironmentProblem(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            raise_from_now_on()
            # With a limit Python polls; without, it might handle a signal only after the process's end.
            return _wait(process, inf if limit is None else limit, signals), ""
        except subprocess.TimeoutExpired:
            return _end(process, signals, checkpoint=checkpoint), "limit"
        except _Warned:
            return _end(process, signals, checkpoint=checkpoint), "warning"
        except BaseException:
            _end(process, signals, checkpoint=checkpoint)
            raise


def _wait(process: subprocess.Popen[bytes], seconds: float, signals: Signals | None, known: int = 0) -> int:
    """Wait for the end of a process, and return its exit code.

    Raises `subprocess.TimeoutExpired` after `seconds`, and the first of the `signals` beyond those that are `known`.
    """
    if signals is None:
        return process.wait(seconds)
    end = monotonic() + seconds
    while len(signals) <= known:
        try:
            return process.wait(max(0.0, min(POLL_SECONDS, end - monotonic())))
        except subprocess.TimeoutExpired:
            if monotonic() >= end:
                raise
    raise type(signals[known])(*signals[known].args)


class _Warned(KeyboardInterrupt):
    """SIGUSR1: the warning before the time limit of a batch job."""


@contextlib.contextmanager
def _raising_signals() -> Iterator[Callable[[], None]]:
    """Raise `KeyboardInterrupt` on SIGINT, SIGTERM and SIGUSR1, in the main thread alone, so that the run is ended.

    A signal that arrives before the call of the yielded function is raised by it: an exception in the middle of
    ``Popen`` would leave a process that nothing ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    last, starts = -inf, True
    early: list[KeyboardInterrupt] = []

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal last
        before, last = last, monotonic()
        if last - before <= TWICE_SECONDS:
            return
        error = (_Warned if number == signal.SIGUSR1 else KeyboardInterrupt)(signal.Signals(number).name)
        if not starts:
            raise error
        early.append(error)

    def raise_from_now_on() -> None:
        nonlocal starts
        starts = False
        if early:
            raise early.pop()

    handlers = {kind: signal.signal(kind, stop) for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield raise_from_now_on
    finally:
        for kind, handler in handlers.items():
            signal.signal(kind, handler)


def _end(process: subprocess.Popen[bytes], signals: Signals | None, *, checkpoint: bool) -> int:
    """End a process group: with SIGUSR1 if it shall write a checkpoint, SIGTERM, and at last SIGKILL."""
    if checkpoint:
        process.send_signal(signal.SIGUSR1)  # launchers forward it to the ranks
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            _wait(process, CHECKPOINT_GRACE, signals, len(signals or ()))
    for kind, grace in ((signal.SIGTERM, GRACE), (signal.SIGKILL, inf)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            return _wait(process, grace, signals, len(signals or ()))
    return process.wait()
