"""Selection of the tests that are not run every time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from selection import third_of

PROGRAM = """
import pytest
@pytest.mark.sweep
@pytest.mark.parametrize("case", range(30))
def test_case(case): pass
def test_always(): pass
"""
OF_NODES = "import pytest\n@pytest.mark.cluster\ndef test_nodes(): pass\n"


def test_drawn_cases_and_all_other_tests_run(tmp_path: Path) -> None:
    (tmp_path / "test_made.py").write_text(PROGRAM)
    for number in range(6):
        (tmp_path / f"test_nodes_{number}.py").write_text(OF_NODES)
    command = [sys.executable, "-m", "pytest", "-p", "selection", "-c", "/dev/null", "--rootdir=.", "-v", "--third"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([*command, "--seed=1a"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    ran = {line.split()[0] for line in done.stdout.splitlines() if " PASSED " in line}
    cases = {f"test_made.py::test_case[{case}]" for case in range(30)}
    of_nodes = {f"test_nodes_{number}.py::test_nodes" for number in (2, 5)}
    assert ran == {case for case in cases if third_of(case, 0x1A)} | {"test_made.py::test_always"} | of_nodes
    assert "a third of the drawn tests: --seed=1a" in done.stdout


@pytest.mark.parametrize("seed", [0, 739_000, int("ea81f90" * 5, 16)])
def test_every_name_is_in_the_third_of_one_of_three_seeds(seed: int) -> None:
    assert all(sum(third_of(f"case {case}", seed + day) for day in range(3)) == 1 for case in range(100))
    assert 20 <= sum(third_of(f"case {case}", seed) for case in range(100)) <= 46
