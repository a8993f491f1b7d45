"""Pieces of `make gpu-day`: how they end, and what is kept of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest

from benchmarks import gpu_pieces
from benchmarks.gpu_pieces import Piece, run_piece
from mpi_runner.slowness import deadline

ROOT = Path(__file__).parents[2]
LONG = deadline(30)
PYTEST = ("-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider", "-v", "--junitxml={results}")


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(holds: Callable[[], bool]) -> None:
    last = monotonic() + deadline(20)
    while not holds():
        assert monotonic() < last
        sleep(0.02)


def test_a_piece_ends_at_its_limit_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_pieces, "GRACE", 0.2)
    child = tmp_path / "child"
    text = (
        "import signal, subprocess, sys, time\n"
        "for name in (signal.SIGTERM, signal.SIGABRT): signal.signal(name, signal.SIG_IGN)\n"
        "process = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(child)!r}, 'w').write(str(process.pid)); print('waits', flush=True); time.sleep(600)"
    )
    found = run_piece(Piece("slow", ("-c", text), deadline(3)), tmp_path / "log")
    assert found["outcome"] == "out of time"
    assert found["output"][0] == "waits"
    wait_until(lambda: not runs(int(child.read_text())))


def test_a_program_that_waits_leaves_its_stack_and_its_results(tmp_path: Path) -> None:
    text = (
        "import sys, time\nopen(sys.argv[1], 'w').write('{\"device\": 1}')\nprint('not flushed')\n"
        "def waits_for_ever(): time.sleep(600)\nwaits_for_ever()"
    )
    found = run_piece(Piece("slow", ("-c", text, "{results}"), deadline(3)), tmp_path / "log")
    assert found["outcome"] == "out of time"
    assert found["figures"] == {"device": 1}
    assert "not flushed" in found["output"]
    assert "in waits_for_ever" in "\n".join(found["output"])
    assert "in waits_for_ever" in (tmp_path / "log").read_text()


def test_tests_that_are_ended_keep_what_was_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether pytest handles SIGTERM or cannot, because C code waits. The test that was ended has not passed."""
    monkeypatch.setattr(gpu_pieces, "GRACE", deadline(1))
    tests = tmp_path / "test_some.py"
    for handler in ("lambda *_: pytest.exit('ended')", "signal.SIG_IGN"):
        tests.write_text(
            "import signal, time, pytest\ndef test_a(): pass\n@pytest.mark.skip\ndef test_b(): pass\n"
            "def test_c(): assert False\n"
            f"def test_d():\n    signal.signal(signal.SIGTERM, {handler})\n    time.sleep(600)\n"
        )
        found = run_piece(Piece("tests", (*PYTEST, str(tests)), deadline(4)), tmp_path / "log")
        assert found["outcome"] == "out of time"
        figures = found["figures"]
        assert (figures["passed"], sum(figures["skipped"].values())) == (1, 1)
        assert next(name.rpartition("::")[2] for name in figures["failed"] + figures["errors"]) == "test_c"
        assert "test_d" in "\n".join(found["output"])
    assert "in test_d" in "\n".join(found["output"])


DAY = """
import signal, sys
from pathlib import Path
from benchmarks.gpu_day import run_day
from benchmarks.gpu_pieces import Piece
signal.signal(signal.SIGTERM, signal.default_int_handler)
child = Path(sys.argv[1], "child")
text = f"import os, sys, time; open(sys.argv[1], 'w').write('[1]'); print('half'); " \\
       f"open({str(child)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
pieces = [Piece("long", ("-c", text, "{results}"), 900), Piece("next", ("-c", "pass"), 900)]
run_day(pieces, Path(sys.argv[1]), "GPU")
"""


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGKILL])
def test_a_day_that_is_ended_leaves_no_piece_and_tells_of_it(tmp_path: Path, name: signal.Signals) -> None:
    from benchmarks.gpu_day import read_state

    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    command = [sys.executable, "-c", DAY, str(tmp_path)]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.DEVNULL) as day:
        child = tmp_path / "child"
        wait_until(lambda: child.exists() and child.read_text() != "")
        day.send_signal(name)
        day.wait(deadline(30))
    wait_until(lambda: not runs(int(child.read_text())))
    state = read_state(tmp_path / "gpu-day.json")
    found = state["devices"]["GPU"]
    assert [(key, piece["outcome"]) for key, piece in found.items()] == [("long", "interrupted")]
    assert "half" in (tmp_path / "gpu-day.log").read_text()
    if name == signal.SIGTERM:
        assert found["long"]["figures"] == [1]
    else:
        assert state["seconds"] >= 900, "the time of a piece counts if nobody could measure it"


def test_results_that_are_missing_or_damaged_are_failures(tmp_path: Path) -> None:
    assert run_piece(Piece("none", ("-c", "pass"), LONG), tmp_path / "log")["outcome"] == "failed"
    text = "import sys; open(sys.argv[1], 'w').write('{')"
    found = run_piece(Piece("half", ("-c", text, "{results}"), LONG), tmp_path / "log")
    assert found["outcome"] == "failed"
    assert "cannot be read" in found["output"][-1]


def test_tests_are_counted_by_what_they_tell(tmp_path: Path) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text(
        "import pytest\nimport numpy as np\n@pytest.fixture\ndef broken(): raise OSError\n"
        "def test_passes(): pass\ndef test_wrong(): assert 1 == 2\n"
        "def test_wrong_array(): np.testing.assert_array_equal([1], [2])\n"
        "def test_lacks(): import no_such_module\ndef test_fixture(broken): pass\n"
        "@pytest.mark.skip(reason='none')\ndef test_skipped(): pass\n"
    )
    found = run_piece(Piece("tests", (*PYTEST, str(tests)), LONG), tmp_path / "log")
    assert found["outcome"] == "failed"
    figures = found["figures"]
    assert (figures["passed"], figures["skipped"]) == (1, {"none": 1})
    ends = {end: [name.rpartition("::")[2] for name in figures[end]] for end in ("failed", "errors")}
    assert ends == {"failed": ["test_wrong", "test_wrong_array"], "errors": ["test_lacks", "test_fixture"]}


def test_a_program_around_python_is_used(tmp_path: Path) -> None:
    text = "import os, sys; open(sys.argv[1], 'w').write(os.environ['AROUND'])"
    found = run_piece(Piece("around", ("-c", text, "{results}"), LONG, program=("env", "AROUND=3")), tmp_path / "log")
    assert found["figures"] == 3
