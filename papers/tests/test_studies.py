"""The studies of the papers: their cells, and what their short forms need."""

from __future__ import annotations

from math import inf

from hybridnn.study.cells import make_cells
from hybridnn.study.study_file import load_study, ready_studies


def test_ready_studies_are_those_of_the_paper() -> None:
    assert set(ready_studies()) >= {"laugier-figure-5", "laugier-figure-6", "laugier-figure-7"}
    for name in ("laugier-figure-5", "laugier-figure-6"):
        plan = make_cells(load_study(name))
        assert {cell.values["width"] for cell in plan.cells} == {32, 64, 128, 256, 512, 1024}
        assert {cell.ranks for cell in plan.cells} == {1, 2, 4, 8, 16, 32}
        assert not plan.skipped
        assert all(cell.settings.training.epochs == 10 for cell in plan.cells)
        assert all(cell.settings.training.batch_size == 100 for cell in plan.cells)
    # The grids of p = 2^k ranks are k + 1: 3 + 4 + 5 + 6 for 4 to 32; two data sets, two variants, two depths.
    plan = make_cells(load_study("laugier-figure-7"))
    assert sum(cell.values["repeat"] == 1 for cell in plan.cells) == 2 * 4 * 18
    assert {cell.settings.model.hidden[0] for cell in plan.cells} == {512}


def test_reduced_ready_studies_need_no_network_and_two_cores() -> None:
    for name in ready_studies():
        cells = make_cells(load_study(name, reduced=True)).cells
        assert {cell.settings.data.name for cell in cells} <= {"synthetic", "digits"}
        assert max(cell.ranks for cell in cells) <= 11
        assert len(cells) <= 120
    assert sum(load_study(name, reduced=True).keys.minutes or inf for name in ready_studies()) <= 60


def test_table_1_is_timed_with_barriers_where_a_method_has_them() -> None:
    for reduced in (False, True):
        plan = make_cells(load_study("kang-table-1", reduced=reduced))
        with_barriers = {cell.values["method"]: set[bool]() for cell in plan.cells}
        for cell in plan.cells:
            with_barriers[cell.values["method"]].add(cell.settings.parallel.barriers)
        assert with_barriers == {"sequential": {False}, "ddg": {False, True}, "fr": {False, True}, "pipedream": {False}}
        assert all("parallel.barriers: false with" in reason for reason in plan.skipped.values())
