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
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import inf
from pathlib import Path
from time import monotonic, perf_counter, sleep
from types import FrameType
from typing import Literal

from hybridnn.comm.launcher import ANYWHERE, Placement, RankCommand, rank_command
from hybridnn.comm.threads import THREAD_VARIABLES
from hybridnn.cost import MACHINE_VARIABLE
from hybridnn.cost.machine_file import read_machine
from hybridnn.diagnostics.hosts import MOST_DISTURBANCE, disturbance_text
from hybridnn.errors import INTERRUPTED, DataError, EnvironmentProblem, SettingError, StoppedBySignal
from hybridnn.runs.folder import FolderInUse
from hybridnn.runs.run_files import disturbance_in, run_status
from hybridnn.study.cells import Cell, CellPlan, make_cells
from hybridnn.study.study_file import Study
from hybridnn.study.study_folder import ENDED, SETTINGS, Failure, StudyFolder, reason_of_divergence
from hybridnn.utils.files import read_tail
from hybridnn.utils.processes import REPEAT_SECONDS

WILDCARDS = "*?["
GRACE = 10.0  # seconds between SIGTERM to a launcher and SIGKILL
CHECKPOINT_GRACE = 60.0  # seconds for a run to write a checkpoint before its launcher is sent SIGTERM
MOST_REPEATS = 2  # of a disturbed cell, or one whose launcher does not start
NOT_LAUNCHED = 213  # of Open MPI, which has said why: on a busy machine its server may not start
POLL_SECONDS = 0.02  # between two looks at a process and the signals

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

LIMIT = "limit"  # what ended a cell, if no signal did
WARNING = "SIGUSR1"  # before the time limit of a batch job

Signals = list[str]
"""Names of the signals received so far; an error of the study or of another cell counts as one."""

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

    def on_repeat(self, outcome: CellOutcome, number: int) -> None:
        """Called before a disturbed cell is repeated the first or a later time, in the thread that runs the cell."""

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

    def command(self, cell: Cell, train: TrainCommand = train_command, folder: Path | None = None) -> list[str]:
        """Return the command that runs a cell in its folder or another, or resumes it where the study resumes cells.

        It sets the number of BLAS threads and the machine file on every node and under any launcher. Raises
        `SettingError` if the launcher cannot place the ranks as the cell requires.
        """
        folder = folder or self.folder.cell(cell.id)
        variables = dict.fromkeys(THREAD_VARIABLES, str(cell.placement.threads))
        if self.study.keys.machine is not None:
            variables[MACHINE_VARIABLE] = self.study.keys.machine
        settings = [f"{name}={value}" for name, value in variables.items()]
        resume = ["--resume", "auto"] if self.resumes else []
        program = ["env", *settings, *train(folder / SETTINGS, folder), *resume]
        ranks, placement = cell.ranks, cell.placement
        if self.study.keys.in_process:
            if placement != Placement(threads=placement.threads):
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
    run: StudyRun,
    view: StudyView,
    *,
    limit: float | None = None,
    jobs: int = 1,
    accept_disturbed: bool = False,
    train: TrainCommand = train_command,
) -> list[CellOutcome]:
    """Run the chosen cells that are not finished, `jobs` of them at once; a failed one does not stop the others.

    A run is ended after `limit` seconds, and its cell counts as failed. In a study that compares times, a disturbed
    cell is repeated up to `MOST_REPEATS` times unless `accept_disturbed`; the least disturbed run is kept. Returned are
    the outcomes of the cells that were not finished before; after the warning before the time limit of a batch job
    (SIGUSR1), the last of them are those that were ended. If the next run of the study resumes a cell or continues with
    the next one, raises `StoppedBySignal` after that warning; after SIGINT or SIGTERM `KeyboardInterrupt`, when the
    running cells have been ended.

    Raises `EnvironmentProblem` if the folder cannot be written or the launcher cannot be started, `SettingError` if the
    launcher cannot place the ranks of a cell, or cells that run at once would disturb the times that are compared.
    """
    if jobs > 1 and run.study.keys.compares == "times":
        allowed = "1 for a study that compares times, which cells that run at once disturb (compares = 'training')"
        raise SettingError("--jobs", jobs, allowed)
    repeats = 0 if accept_disturbed or run.study.keys.compares != "times" else MOST_REPEATS
    missing = [cell for cell in run.chosen if not run.folder.has_ended(cell.id)]
    for cell in missing:
        run.command(cell, train)  # refuses a placement that the launcher cannot do, before anything runs
    run.folder.begin(run.study, run.plan)
    view.on_start(len(missing))
    waiting, running = deque(missing), dict[Future[CellOutcome], Cell]()
    outcomes: list[CellOutcome] = []
    ended: list[CellOutcome] = []  # after a signal
    errors: list[BaseException] = []
    # This thread receives the signals, calls the view and starts cells, each of which has a thread of its own.
    with _receiving_signals() as signals, ThreadPoolExecutor(jobs) as pool:
        try:
            while running or (waiting and not signals):
                while waiting and len(running) < jobs and not signals:
                    cell = waiting.popleft()
                    view.on_cell_start(cell)
                    running[pool.submit(_run_cell, run, cell, view, repeats, limit, train, signals)] = cell
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    del running[future]
                    if (error := future.exception()) is not None:
                        errors.append(error)
                        signals.append("an error of another cell")  # ends the other cells
                        continue
                    outcomes.append(future.result())
                    if signals:
                        ended.append(outcomes[-1])
                    view.on_cell_end(outcomes[-1])
        except BaseException:
            signals.append("an error of the study")  # for the end of whose cells the pool waits
            raise
    if errors:
        raise errors[0]
    if signals and signals[0] != WARNING:
        raise KeyboardInterrupt(signals[0])
    if signals:
        _require_end(run, ended or outcomes[-1:], others=bool(waiting))
    return outcomes


def _require_end(run: StudyRun, outcomes: Sequence[CellOutcome], *, others: bool) -> None:
    """After a warning (SIGUSR1), raise `StoppedBySignal` if the next run resumes a cell, or begins the `others`."""
    ended = [outcome for outcome in outcomes if outcome.status not in ENDED]
    if (ended and run.resumes) or (others and not ended):
        cells = [
            f"cell {outcome.cell.id}: {outcome.reason or 'finished before the time limit of its job'}"
            for outcome in (ended or outcomes)[-1:]
        ]
        raise StoppedBySignal("; ".join([*cells, "run the study again to go on"]))


def _run_cell(
    run: StudyRun, cell: Cell, view: StudyView, repeats: int, limit: float | None, train: TrainCommand, signals: Signals
) -> CellOutcome:
    """Run a cell unless another process does, repeat it while it is disturbed, and keep the least disturbed run."""
    try:
        lock = run.folder.lock(cell.id)
    except FolderInUse as busy:
        return CellOutcome(cell, "held", reason=f"{busy.holder} is running it")
    with lock:
        folder = run.folder.cell(cell.id)
        if run.folder.has_ended(cell.id):  # by another process in the meantime
            return _ended(run, cell, folder)
        run.folder.prepare(cell, resume=run.resumes)
        outcome = found = _run_once(run, cell, folder, limit, train, signals, lock.descriptor)
        for number in range(1, 1 + repeats):
            if signals or not outcome.disturbance or found.status not in ENDED:
                break
            view.on_repeat(outcome, number)
            folder = run.folder.prepare(cell, repeat=True)
            found = _run_once(run, cell, folder, limit, train, signals, lock.descriptor)
            is_better = found.status in ENDED and found.disturbance < outcome.disturbance
            run.folder.end_repeat(cell.id, keep=is_better)
            outcome = replace(found if is_better else outcome, seconds=outcome.seconds + found.seconds)
        return outcome


def _run_once(
    run: StudyRun, cell: Cell, folder: Path, limit: float | None, train: TrainCommand, signals: Signals, keep_open: int
) -> CellOutcome:
    """Run a cell in a prepared folder; `keep_open` is as in `_run_process`."""
    start = perf_counter()
    for _ in range(1 + MOST_REPEATS):
        code, ended_by = _run_process(
            run.command(cell, train, folder), folder, limit, keep_open, signals, checkpoint=run.resumes
        )
        if code != NOT_LAUNCHED:
            break
    seconds = perf_counter() - start
    status = run_status(folder)
    if status == "diverged" or (status == "finished" and code == 0):
        return _ended(run, cell, folder, seconds)
    failure, reason = _failure(code, ended_by, limit, folder)
    if folder == run.folder.cell(cell.id):  # of a repeat, nothing is recorded
        run.folder.fail(cell.id, failure, reason)
    return CellOutcome(cell, failure, seconds, reason)


def _ended(run: StudyRun, cell: Cell, folder: Path, seconds: float = 0.0) -> CellOutcome:
    """Outcome of a cell that has a result in a folder."""
    found = disturbance_in(folder) if run.study.keys.compares == "times" else 0.0
    found, disturbed = (found, disturbance_text(found)) if found > MOST_DISTURBANCE else (0.0, "")
    if run_status(folder) == "finished":
        return CellOutcome(cell, "finished", seconds, disturbed, found)
    reason = "; ".join(filter(None, [reason_of_divergence(folder), disturbed]))
    return CellOutcome(cell, "diverged", seconds, reason, found)


def _failure(code: int, ended_by: str, limit: float | None, folder: Path) -> tuple[Failure, str]:
    """Status of a cell that did not finish, and the reason."""
    if ended_by not in ("", LIMIT, WARNING):
        return "interrupted", f"ended by {ended_by}"
    if ended_by == LIMIT:
        failure: Failure = "timed out"
        cause = f"ended after the limit of {limit:g} s"
    elif ended_by == WARNING:
        failure, cause = "timed out", "ended by SIGUSR1, before the time limit of its job"
    else:
        failure = "interrupted" if code in (StoppedBySignal.exit_code, INTERRUPTED) else "failed"
        cause = f"exit code {code}"
    return failure, f"{cause}: {error_line(folder)}"


def error_line(folder: Path) -> str:
    """The most informative line of a failed run's ``stderr.log``.

    The last error line; else the launcher's message about a dead rank; else the last line that is not a rule.
    """
    text = read_tail(folder / STDERR).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    errors = [line for line in lines if ERROR_LINE.match(line)]
    deaths = [" ".join(found[0].split()) for pattern in DEATHS if (found := re.search(pattern, text))]
    return (errors[-1:] or deaths or lines[-1:] or ["it printed no error"])[0]


def _run_process(
    command: Sequence[str], folder: Path, limit: float | None, keep_open: int, signals: Signals, *, checkpoint: bool
) -> tuple[int, str]:
    """Run a command; its exit code, negative for a signal, and what ended it: empty, `LIMIT`, or one of the `signals`.

    Where it can write a `checkpoint`, it is sent SIGUSR1 and given time before it is ended; another signal meanwhile
    shortens the wait. It inherits the descriptor `keep_open`: a lock on it lasts as long as the command.
    """
    for name in (STDOUT, STDERR):
        (folder / name).unlink(missing_ok=True)  # a link would lead to a file elsewhere
    with open(folder / STDOUT, "wb") as out, open(folder / STDERR, "wb") as err:
        try:
            # A session of its own: an interrupt on the terminal reaches this process alone, which then ends the ranks.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, pass_fds=(keep_open,)
            )
        except OSError as error:
            raise EnvironmentProblem(f"{command[0]} cannot be started: {error.strerror}") from error
        if _has_ended(process, inf if limit is None else limit, signals, 0):
            return process.returncode, ""
        ended_by = signals[0] if signals else LIMIT
        if checkpoint:
            process.send_signal(signal.SIGUSR1)  # launchers forward it to the ranks
            _has_ended(process, CHECKPOINT_GRACE, signals, len(signals))
        for kind, grace in ((signal.SIGTERM, GRACE), (signal.SIGKILL, inf)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, kind)
            if _has_ended(process, grace, signals, len(signals)):
                break
        return process.wait(), ended_by


def _has_ended(process: subprocess.Popen[bytes], seconds: float, signals: Signals, known: int) -> bool:
    """Whether a process ends within some seconds, and before there are more than the `known` signals."""
    end = monotonic() + seconds
    while process.poll() is None:
        if len(signals) > known or monotonic() >= end:
            return False
        sleep(POLL_SECONDS)
    return True


@contextlib.contextmanager
def _receiving_signals() -> Iterator[Signals]:
    """Collect SIGINT, SIGTERM and SIGUSR1, which only the main thread can receive."""
    signals: Signals = []
    last = -inf

    def receive(number: int, frame: FrameType | None) -> None:
        nonlocal last
        before, last = last, monotonic()
        if last - before > REPEAT_SECONDS:
            signals.append(signal.Signals(number).name)

    is_main = threading.current_thread() is threading.main_thread()
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1) if is_main else ()
    handlers = {kind: signal.signal(kind, receive) for kind in kinds}
    try:
        yield signals
    finally:
        for kind, handler in handlers.items():
            signal.signal(kind, handler)
