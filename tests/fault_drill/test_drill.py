"""A short fault drill."""

import importlib
from operator import attrgetter
from pathlib import Path

import pytest

from fault_drill.__main__ import main
from fault_drill.injections import FAULTS
from fault_drill.moments import MOMENTS


@pytest.mark.slow
@pytest.mark.timeout(2500)
def test_short_drill_loses_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["--trials", f"{len(FAULTS)}", "--seed", "3", "--most-ranks", "2", "--folder", str(tmp_path / "drill")]
    code = main([*arguments, "--faults", ",".join(FAULTS)])
    out, err = capsys.readouterr()
    assert code == 0, err
    headings, *_, cells = [line.strip("| ").split(" | ") for line in out.splitlines() if line.startswith("|")]
    counts = dict(zip(headings, cells, strict=True))
    assert [counts[name] for name in ("trials", "named", "ended")] == [f"{len(FAULTS)}"] * 3
    assert [counts[name] for name in ("hangs", "lost", "failed")] == ["0"] * 3
    assert int(counts["injected"]) >= len(FAULTS) - 2, err  # a run may end before its fault
    assert not (tmp_path / "drill").exists()


def test_the_functions_at_whose_calls_faults_are_injected_exist() -> None:
    for module, _, names in (target.partition(":") for moment in MOMENTS.values() for target in moment.targets):
        assert callable(attrgetter(names)(importlib.import_module(module)))
