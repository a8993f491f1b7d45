"""The fault drill: a short drill, and the drawing of its trials."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from fault_drill.__main__ import main
from fault_drill.injections import FAULTS
from fault_drill.moments import MOMENTS
from fault_drill.selection import EVERY_FAULT, KIND_OF, SHARES, draw
from fault_drill.trials import Trial

DRILLED = (*FAULTS, "sys.exit(3)", "endless loop", "no evaluation", "labels", "equal")


@pytest.mark.slow
@pytest.mark.timeout(2500)
def test_short_drill_loses_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["--trials", f"{len(DRILLED)}", "--seed", "3", "--most-ranks", "2", "--folder", str(tmp_path / "drill")]
    code = main([*arguments, "--faults", ",".join(DRILLED)])
    out, err = capsys.readouterr()
    assert code == 0, err
    headings, *_, cells = [line.strip("| ").split(" | ") for line in out.splitlines() if line.startswith("|")]
    counts = dict(zip(headings, cells, strict=True))
    assert [counts[name] for name in ("trials", "named", "ended")] == [f"{len(DRILLED)}"] * 3
    assert [counts[name] for name in ("hangs", "silent", "lost", "failed")] == ["0"] * 4
    assert int(counts["injected"]) >= len(DRILLED) - 2, err  # a run may end before its fault
    assert not (tmp_path / "drill").exists()


def test_seed_and_number_determine_a_trial_all_faults_are_drawn_and_their_moments_exist() -> None:
    number = 5 * sum(SHARES.values())
    drawn = [draw(5, index) for index in range(number)]
    assert drawn == [draw(5, index) for index in range(number)]
    assert drawn != [draw(6, index) for index in range(number)]
    assert {trial.fault for trial in drawn} == set(EVERY_FAULT)
    kinds = [KIND_OF[trial.fault] for trial in drawn]
    assert {kind: kinds.count(kind) for kind in kinds} == {kind: 5 * share for kind, share in SHARES.items()}
    for trial in (trial for trial in drawn if isinstance(trial, Trial)):
        assert trial.fault in [injection.fault for injection in trial.injections]
        for injection, recipe in zip(trial.injections, trial.recipes, strict=False):
            assert injection.rank < recipe.ranks
            assert not (MOMENTS[injection.moment].first_rank and injection.rank)
            assert recipe.launched or injection.target != "launcher"
    for module, _, names in (target.partition(":") for moment in MOMENTS.values() for target in moment.targets):
        found: Any = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
        assert callable(found)
