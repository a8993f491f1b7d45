"""Warnings on cells that ran on different hardware, and on machine files that do not fit it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hybridnn.runs.run_files import RunRecord, read_run
from hybridnn.study.hardware import hardware_warnings, prediction_warnings
from reference.finished_runs import prediction_line, write_run


@pytest.mark.parametrize(
    ("hosts", "warning"),
    [
        ({"processors": ["Other CPU"]}, "processors: Some CPU (1 cell); Other CPU (1 cell)"),
        ({"cores": [4]}, "numbers of cores on a node: 8 (1 cell); 4 (1 cell)"),
        ({"blas": "mkl 2"}, "BLAS libraries: openblas 1 (1 cell); mkl 2 (1 cell)"),
        ({"names": ["n2"], "binding": "1 core per rank: 0", "launcher": "mpirun"}, None),
    ],
)
def test_cells_of_a_curve_must_have_run_on_the_same_hardware(
    tmp_path: Path, hosts: dict[str, Any], warning: str | None
) -> None:
    runs = [read_run(write_run(tmp_path / "a")), read_run(write_run(tmp_path / "b", hosts=hosts))]
    expected = [] if warning is None else [f"cells of one curve ran with different {warning}"]
    assert hardware_warnings([runs]) == expected
    assert hardware_warnings([[run] for run in runs]) == []


def _predicted(tmp_path: Path, ranks: int, **changes: Any) -> RunRecord:
    line = prediction_line(0.1, **changes)
    return read_run(write_run(tmp_path / str(ranks), ranks=ranks, lines=[line]))


def test_machine_file_of_fewer_ranks_is_named(tmp_path: Path) -> None:
    runs = [_predicted(tmp_path, ranks, calibrated_ranks=2) for ranks in (1, 2, 8)]
    assert prediction_warnings(runs[:2]) == []
    warning = "the machine file laptop was calibrated on 2 ranks: predictions for 8 are extrapolated"
    assert prediction_warnings(runs) == [warning]


def test_machine_file_of_another_processor_is_named(tmp_path: Path) -> None:
    assert prediction_warnings([_predicted(tmp_path, 1, processor="Some CPU")]) == []
    found = prediction_warnings([_predicted(tmp_path, 2, processor="Old CPU")])
    assert found == ["the machine file laptop is of another processor: Old CPU, not Some CPU"]
    assert prediction_warnings([_predicted(tmp_path, 3)]) == []
