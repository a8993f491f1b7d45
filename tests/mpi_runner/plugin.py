"""Pytest plugin with the markers ``mpi`` and ``in_process``, the settings and fixtures of the runner."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridnn.comm.mpi import mpirun_settings
from hybridnn.in_process import run_ranks

from .launch import JobResult
from .launch import run_mpi as run_mpi_job
from .outer import MpiJobs, ranks_of
from .rank import RECORDS_FOLDER, RankRecorder
from .slowness import deadline

if TYPE_CHECKING:
    from mpi4py import MPI

USUAL_RANKS = (2, 3)

MOST_QUICK_RANKS = 4
"""In-process tests of more ranks are marked slow."""

CORE = "tests/core/"

UNDER_MPI = re.compile(r"\[(.*-)?np\d+[-\]]")
"""Pattern of the names of tests that were collected for a number of ranks under MPI."""


def _under_mpi(config: pytest.Config) -> bool:
    """Return whether this process is a rank, by the options of pytest-mpi."""
    return bool(config.getoption("--with-mpi", False) or config.getoption("--only-mpi", False))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the settings of the runner."""
    parser.addini("mpi_timeout", "seconds for one test under mpirun, unless it is marked otherwise", default="60")
    parser.addini("mpi_grace", "seconds for a job to start, collect and finish, beside its tests", default="60")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin of a rank or of the outer process."""
    for name, value in mpirun_settings().items():
        os.environ.setdefault(name, value)  # serial tests import MPI too, or start programs that do
    if not _under_mpi(config):
        config.pluginmanager.register(MpiJobs(config))
    elif RECORDS_FOLDER in os.environ:
        from mpi4py import MPI

        folder = Path(os.environ[RECORDS_FOLDER])
        config.option.basetemp = str(folder / f"tmp-{MPI.COMM_WORLD.rank}")  # removed with the job
        config.pluginmanager.register(RankRecorder(config, folder, MPI.COMM_WORLD))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute parallel tests: each file to one process, and all tests under MPI to one, so that few jobs start.

    The whole trainings of `tests/core` are distributed one by one: with them `make test-core` begins in every process.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if UNDER_MPI.search(nodeid):
                return "under MPI"
            return nodeid if nodeid.startswith(CORE) else nodeid.split("::")[0]

    return ByFile(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Multiply the time limit of a test by the slowness when it begins, unless the command line sets a limit."""
    mark = item.get_closest_marker("timeout")
    usual = float(item.config.getini("timeout") or 0)
    if mark is not None:
        seconds = float(mark.args[0] if mark.args else mark.kwargs["timeout"])
        others = {name: value for name, value in mark.kwargs.items() if name != "timeout"}
        item.add_marker(pytest.mark.timeout(deadline(seconds), *mark.args[1:], **others), append=False)
    elif usual and item.config.getoption("timeout") is None and (ranks_of(item) is None or _under_mpi(item.config)):
        item.add_marker(pytest.mark.timeout(deadline(usual)), append=False)
    return (yield)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Collect an ``mpi`` or ``in_process`` test once for each of its numbers of ranks."""
    in_process = metafunc.definition.get_closest_marker("in_process")
    if in_process is not None:
        counts = in_process.kwargs["ranks"]
        metafunc.fixturenames.append("in_process_ranks")
        metafunc.parametrize(
            "in_process_ranks",
            [
                pytest.param(ranks, id=f"{ranks} in process", marks=[pytest.mark.slow] * (ranks > MOST_QUICK_RANKS))
                for ranks in counts
            ],
        )
        return
    mark = metafunc.definition.get_closest_marker("mpi")
    if mark is None:
        return
    unknown = sorted(set(mark.kwargs) - {"ranks", "min_size"})
    if unknown or mark.args:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: mpi takes only ranks=[...] and min_size=, by name")
    least = mark.kwargs.get("min_size", 1)
    counts = [ranks for ranks in mark.kwargs.get("ranks", USUAL_RANKS) if ranks >= least] or [least]
    if "mpi_ranks" not in metafunc.fixturenames:
        metafunc.fixturenames.append("mpi_ranks")
    metafunc.parametrize("mpi_ranks", counts, ids=[f"np{ranks}" for ranks in counts], indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call an ``in_process`` test on all its ranks, in this process."""
    mark = pyfuncitem.get_closest_marker("in_process")
    if mark is None:
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    ranks = pyfuncitem.callspec.params["in_process_ranks"]
    options = {name: value for name, value in mark.kwargs.items() if name != "ranks"}

    def of_rank(comm: Any) -> None:
        pyfuncitem.obj(**given | ({"comm": comm} if "comm" in given else {}))

    run_ranks(ranks, of_rank, **options)
    return True


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that was collected for another number of ranks, in a run that the user started under mpirun."""
    ranks = ranks_of(item)
    if ranks is not None:
        from mpi4py import MPI

        if ranks != MPI.COMM_WORLD.size:
            pytest.skip(f"needs {ranks} ranks")


@pytest.fixture
def mpi_ranks(request: pytest.FixtureRequest) -> int:
    """Return the number of ranks of this test."""
    return request.param


@pytest.fixture
def comm() -> MPI.Intracomm:
    """Return the communicator of all ranks of the test; in a serial test it holds one rank."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


@pytest.fixture
def run_mpi() -> Callable[..., JobResult]:
    """Return ``launch.run_mpi``, for serial tests that start a job."""
    return run_mpi_job
