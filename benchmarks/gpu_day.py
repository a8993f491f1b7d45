"""Everything that is to be measured on a GPU, in pieces that take less than ten minutes each.

``python3 -m benchmarks.gpu_day`` runs the tests of the GPU code and its benchmarks beside PyTorch. Every piece is a
program of its own with a time limit; if it fails, the next one runs. After each piece, the results are written to
``gpu-day.json``, and their tables, the chart and the verdicts to ``gpu-day.md`` and ``gpu-day.png``. Another call
continues with the pieces that have not run, then repeats those that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any
from xml.etree import ElementTree

from benchmarks.cases import GPU_CASES
from benchmarks.gpu_kernels import RESULTS
from benchmarks.gpu_report import write_report
from benchmarks.gpu_training import LARGE, PRECISIONS
from hybridnn.errors import DataError, EnvironmentProblem
from hybridnn.kernels.cupy_loading import load_cupy

GRACE = 10.0
"""Seconds between SIGTERM, on which `mpirun` ends its ranks, and SIGKILL."""

SHOWN_LINES = 15
"""Last lines of the output of a piece that failed, kept with its result."""

PYTEST = ("-m", "pytest", "-c", os.devnull, "--rootdir", ".", "-o", "timeout=300", "-o", "mpi_timeout=300")
GPU_TESTS = (*PYTEST, "-p", "no:cacheprovider", "-q", "-rs", "-m", "gpu", "tests/gpu")

State = dict[str, Any]


@dataclass(frozen=True)
class Piece:
    """A program that writes a file of results.

    Attributes
    ----------
    name : str
        Its key in ``gpu-day.json``.
    arguments : tuple of str
        Of Python; ``{results}`` stands for the path of the file.
    seconds : float
        Time limit.
    """

    name: str
    arguments: tuple[str, ...]
    seconds: float

    @property
    def is_test(self) -> bool:
        """Whether the results are those of pytest, in JUnit's XML, instead of JSON."""
        return any("--junitxml" in argument for argument in self.arguments)


def pieces_of_the_day() -> list[Piece]:
    """The tests, the kernels, and every network in every precision that `benchmarks.gpu_training` measures."""
    tests = (*GPU_TESTS, "--junitxml={results}")
    training = "-m", "benchmarks.gpu_training", "--json", "{results}"
    return [
        Piece("tests of kernels", (*tests, "-k", "test_gpu_kernels"), 540),
        Piece("tests of training", (*tests, "-k", "test_gpu_training"), 540),
        Piece("kernels", ("-m", "benchmarks.gpu_kernels", "--json", "{results}"), 300),
        *(
            Piece(f"{case.name}, {precision}", (*training, "--case", case.name, "--precision", precision), 420)
            for case in GPU_CASES
            for precision in PRECISIONS
            if precision == PRECISIONS[0] or max(case.sizes) >= LARGE
        ),
        Piece("tests of transports", (*tests, "-k", "test_gpu_transports"), 540),
    ]


def run_day(pieces: Sequence[Piece], folder: Path, seconds: float) -> State:
    """Run the pieces that are not done, those that failed last.

    Parameters
    ----------
    folder : Path
        Folder of ``gpu-day.json``, which names what is done, and of the report.
    seconds : float
        A piece is started if its limit ends within this time from now; the first one always is.

    Returns
    -------
    dict
        Contents of ``gpu-day.json``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = read_state(folder / "gpu-day.json")
    found = state["pieces"]
    waiting = [piece for piece in pieces if found.get(piece.name, {}).get("outcome") != "done"]
    start = monotonic()
    for number, piece in enumerate(sorted(waiting, key=lambda piece: piece.name in found)):
        if number and monotonic() - start + piece.seconds + GRACE > seconds:
            print(
                f"{piece.name}: not started, it may take {piece.seconds:.0f} s; run the same command again", flush=True
            )
            continue
        print(f"{piece.name}: running, at most {piece.seconds:.0f} s", flush=True)
        found[piece.name] = run_piece(piece, folder / "gpu-day.log")
        print(f"{piece.name}: {found[piece.name]['outcome']}, {found[piece.name]['seconds']:.0f} s", flush=True)
        _write_state(state, folder / "gpu-day.json")
        write_report(state, [piece.name for piece in pieces], folder)
    return state


def read_state(path: Path) -> State:
    """Results of earlier calls; those of none if there is no file. Raises `DataError` if it cannot be read."""
    if not path.exists():
        return {"pieces": {}}
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(state["pieces"], dict):
            return dict(state)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise DataError(f"{path} is damaged: remove it, or start anew with --fresh")


def _write_state(state: State, path: Path) -> None:
    """Replace the file at once: the machine may be taken away at any time."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def run_piece(piece: Piece, log: Path) -> dict[str, Any]:
    """Run a piece, and append its output to `log`.

    Returns
    -------
    dict
        ``outcome``, "done", "failed" or "out of time"; ``seconds``, ``date``; ``figures``, its results if it wrote
        any; ``output``, the last lines if it was not done.
    """
    start = monotonic()
    with TemporaryDirectory() as folder:
        results, output = Path(folder, "results"), Path(folder, "output")
        with output.open("wb") as stream:
            command = [sys.executable, *(text.replace("{results}", str(results)) for text in piece.arguments)]
            code = _run_in_time(command, stream, piece.seconds)
        figures, problem = _figures_of(piece, results)
        text = output.read_text(encoding="utf-8", errors="replace") + problem
    with log.open("a", encoding="utf-8") as stream_of_all:
        stream_of_all.write(f"== {piece.name}\n{text}\n")
    outcome = "out of time" if code is None else "failed" if code or problem else "done"
    return {
        "outcome": outcome,
        "seconds": round(monotonic() - start, 1),
        "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        **({"figures": figures} if figures is not None else {}),
        **({"output": text.splitlines()[-SHOWN_LINES:]} if outcome != "done" else {}),
    }


def _run_in_time(command: Sequence[str], stream: Any, seconds: float) -> int | None:
    """Exit code of a program; None if it had to be ended, with all programs that it started."""
    process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        return None
    except BaseException:
        _end(process)
        raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the programs of a process group; what remains after `GRACE` seconds is killed."""
    for which in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, which)
            process.wait(GRACE)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _figures_of(piece: Piece, results: Path) -> tuple[Mapping[str, Any] | None, str]:
    """Results that a piece wrote, and a text if they cannot be read."""
    try:
        return (_counts_of_tests(results) if piece.is_test else json.loads(results.read_text(encoding="utf-8"))), ""
    except FileNotFoundError:
        return None, "\nno results were written"
    except (ValueError, ElementTree.ParseError) as error:
        return None, f"\nthe results cannot be read: {error}"


def _counts_of_tests(path: Path) -> dict[str, Any]:
    """Number of tests that passed and were skipped, and the names of those that failed, in JUnit's XML."""
    tests = list(ElementTree.parse(path).iter("testcase"))
    failed = [test for test in tests if test.find("failure") is not None or test.find("error") is not None]
    skipped = [test for test in tests if test.find("skipped") is not None]
    return {
        "passed": len(tests) - len(failed) - len(skipped),
        "skipped": len(skipped),
        "failed": [f"{test.get('classname')}::{test.get('name')}" for test in failed],
    }


def main() -> None:
    """Run what is left of the day; exit code 1 if a piece failed or was not started."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no piece that may take longer")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier calls")
    arguments = parser.parse_args()
    pieces = pieces_of_the_day()
    try:
        load_cupy()
        if arguments.fresh:
            (arguments.results / "gpu-day.json").unlink(missing_ok=True)
        state = run_day(pieces, arguments.results, arguments.seconds)
    except (DataError, EnvironmentProblem) as problem:
        print(problem, file=sys.stderr)
        sys.exit(problem.exit_code)
    print((arguments.results / "gpu-day.md").read_text(encoding="utf-8"))
    sys.exit(any(state["pieces"].get(piece.name, {}).get("outcome") != "done" for piece in pieces))


if __name__ == "__main__":
    main()
