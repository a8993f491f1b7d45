"""Tools for a student's own computer: one case in a debugger.

They run the student's code in this process, with all ranks of a case as ranks of one process.
"""

from __future__ import annotations

import importlib.util
import inspect
import pdb
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from hybridnn.errors import DataError, HybridnnError, SettingError
from hybridnn.in_process import run_ranks
from hybridnn.in_process.mpi_interface import Comm
from hybridnn_course.answers import Values
from hybridnn_course.assignment import Case, Function, Task
from hybridnn_course.execution import ALPHA, BETA, describe_error, make_group
from hybridnn_course.work_folder import WorkFolder


class StudentCodeError(HybridnnError):
    """The student's function raised an exception."""

    exit_code = 1


class RanksDebugger(pdb.Pdb):
    """Python's debugger with a command ``ranks``: what every rank waits for."""

    def __init__(self, comm: Comm) -> None:
        super().__init__()
        self._comm = comm

    def stop_in(self, function: Function, *args: Any, **kwargs: Any) -> Any:
        """Call a function, or run through a generator, and stop at its first line."""
        result: Any = function(*args, **kwargs) if inspect.isgeneratorfunction(function) else None
        self.reset()
        sys.settrace(self.trace_dispatch)
        try:
            return list(result) if result is not None else function(*args, **kwargs)
        finally:
            sys.settrace(None)

    def do_restart(self, arg: str) -> bool | None:
        """restart: not available; leave with q, and start again."""
        self.message("leave with q, and start again")
        return None

    do_run = do_restart

    def do_ranks(self, _: str) -> None:
        """ranks: print what every rank waits for."""
        waiting = self._comm.engine.waiting()
        for rank in range(self._comm.engine.size):
            state = "; ".join(waiting.get(rank, ())) or ("here" if rank == self._comm.rank else "can continue")
            self.message(f"rank {rank}: {state}")


def load_function(work: WorkFolder, task: Task) -> Function:
    """The student's function, imported from its file."""
    path = (work.folder / task.file).resolve()
    name = path.stem
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    sys.path.insert(0, str(work.folder))
    module: ModuleType = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except SyntaxError as error:
        raise DataError(f"{path}, line {error.lineno}: cannot be parsed: {error.msg}") from None
    except Exception as error:
        raise StudentCodeError(describe_error(error, set(work.paths().values()))) from None
    function: Function | None = getattr(module, task.function, None)
    if function is None:
        raise DataError(f"{path}: has no function {task.function}")
    return function


def choose_case(work: WorkFolder, task: Task, number: int | None, ranks: int | None) -> tuple[int, Case]:
    """The public case of a number (from 1), or the first one of some ranks; by default of most ranks; and its index."""
    cases = work.key(task).public
    if number is not None:
        if not 1 <= number <= len(cases):
            raise SettingError("--case", number, f"{task.name} has the public cases 1 to {len(cases)}")
        return number - 1, cases[number - 1]
    fitting = [(index, case) for index, case in enumerate(cases) if ranks is None or case.ranks == ranks]
    if not fitting:
        known = ", ".join(sorted({str(case.ranks) for case in cases}))
        raise SettingError("--ranks", ranks, f"{task.name} has public cases on {known} ranks")
    return max(fitting, key=lambda found: found[1].ranks)


def debug_case(work: WorkFolder, task: Task, case: Case, rank: int) -> None:
    """Run a case, and stop at the first line of the student's function on one rank."""
    if not 0 <= rank < case.ranks:
        raise SettingError("--rank", rank, f"the case has the ranks 0 to {case.ranks - 1}")
    function = load_function(work, task)

    def debugged(comm: Comm) -> Function:
        debugger = RanksDebugger(comm)

        def call(*args: Any, **kwargs: Any) -> Any:
            return debugger.stop_in(function, *args, **kwargs)

        return call

    _run_case(work, task, case, lambda comm: debugged(comm) if comm.rank == rank else function)


def _run_case(work: WorkFolder, task: Task, case: Case, function_of: Callable[[Any], Function]) -> Any:
    def program(comm: Any) -> Values:
        group = make_group(comm) if task.operations else None
        return task.call(function_of(comm), case.inputs[comm.rank], group, work.variant)

    with student_errors(work):
        return run_ranks(case.ranks, program, alpha=ALPHA, beta=BETA)


@contextmanager
def student_errors(work: WorkFolder) -> Iterator[None]:
    """Raise `StudentCodeError`, with the lines of the student's code, for what it raises."""
    try:
        yield
    except HybridnnError:
        raise
    except Exception as error:
        raise StudentCodeError(describe_error(error, set(work.paths().values()))) from None


def folder_of(path: Path | None) -> WorkFolder:
    """The student's folder: the given one, or the current one."""
    return WorkFolder.open(path if path is not None else Path.cwd())
