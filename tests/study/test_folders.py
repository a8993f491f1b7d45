"""Reports over several folders of one study."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from hybridnn.errors import DataError, SettingError
from hybridnn.study.cell_table import csv_text
from hybridnn.study.folders import compared_folders, read_folders
from hybridnn.study.report_files import folder_facts, folder_rows, further_tables, point_facts, write_report
from hybridnn.study.results import read_results
from hybridnn.study.scaling import compare_points, strong_lines, warnings_of
from reference.finished_runs import write_run


def _folder(path: Path, factor: float, name: str = "s", missing: int = 0) -> Path:
    """Three repeats on 1, 2 and 4 ranks, each of which takes `factor` times as long."""
    cells = []
    for ranks in (1, 2, 4):
        for repeat, seconds in enumerate((8.0, 9.0, 10.0)):
            cells.append({"id": f"{ranks}-{repeat}", "ranks": ranks, "values": {"ranks": ranks, "repeat": repeat}})
            if ranks != missing:
                hosts = {"processors": [f"CPU of {path.name}"]}
                taken = [factor * seconds / ranks]
                write_run(path / "cells" / f"{ranks}-{repeat}", ranks=ranks, seconds=taken, hosts=hosts)
    about = {"format": 1, "name": name, "description": "", "reduced": False, "cells": cells}
    (path / "study.json").write_text(json.dumps(about))
    return path


def test_equal_points_of_two_folders_are_side_by_side(tmp_path: Path) -> None:
    results = read_folders([_folder(tmp_path / "old", 1), _folder(tmp_path / "new", 0.5, missing=2)])
    assert compared_folders(results) == ("old", "new")
    rows = folder_rows(results)
    assert [row["ranks"] for row in rows] == ["1", "4"]
    assert rows[0]["old: seconds per epoch"].startswith("9 [8, 10]")
    assert rows[0]["new: seconds per epoch"].startswith("4.5 [4, 5]")
    assert rows[0]["new: times as fast"].startswith("2.000 [1.6")
    assert rows[0]["new: test accuracy"] == "0.5"
    (first, _) = folder_facts(results)
    assert first["values"] == {"ranks": 1}
    assert first["times_as_fast"]["new"]["value"] == 2


def test_each_folder_has_its_own_curve_and_base(tmp_path: Path) -> None:
    results = read_folders([_folder(tmp_path / "old", 1), _folder(tmp_path / "new", 0.5)])
    assert [line.name for line in strong_lines(results)] == ["folder old", "folder new"]
    speed_ups = {name: found.speed_up.value for name, found in compare_points(results).items()}
    assert speed_ups["new/4-0"] == speed_ups["old/4-0"] == 4
    assert [point["processors"] for point in point_facts(results)][::3] == [["CPU of old"], ["CPU of new"]]
    assert warnings_of(results) == []  # curves of different processors are what is compared


def test_report_over_folders_has_the_folder_in_every_file(tmp_path: Path) -> None:
    results = read_folders([_folder(tmp_path / "old", 1), _folder(tmp_path / "new", 0.5, missing=2)])
    files = {path.name: path for path in write_report(results, tmp_path / "report")}
    for name in ("tables.md", "tables.tex", "index.html"):
        assert "new: times as fast" in files[name].read_text()
    assert "folder new" in files["curves.csv"].read_text()
    rows = list(csv.DictReader(io.StringIO(csv_text(results))))
    assert len(rows) == 18
    assert {row["outcome"] for row in rows if row["axis.folder"] == "new" and row["axis.ranks"] == "2"} == {"never run"}


def test_one_folder_has_no_comparison(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "old", 1)
    results = read_folders([folder])
    assert results == read_results(folder)
    assert folder_rows(results) == folder_facts(results) == further_tables(results) == []


def test_folders_of_one_name_are_named_by_their_paths(tmp_path: Path) -> None:
    folders = [_folder(tmp_path / name / "s", 1) for name in "ab"]
    assert compared_folders(read_folders(folders)) == tuple(map(str, folders))


def test_folders_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    first, other = _folder(tmp_path / "a", 1), _folder(tmp_path / "b", 1, name="other")
    with pytest.raises(SettingError, match=rf"FOLDER = '{other}': holds another study \(other\) than {first} does"):
        read_folders([first, other])
    with pytest.raises(SettingError, match="must be different folders"):
        read_folders([first, first / ".." / "a"])
    with pytest.raises(DataError, match="is not the folder of a study"):
        read_folders([first, tmp_path / "none"])
