"""Tables that are refused: the advice of every kind, and the settings that solve it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from hybridnn.config.settings import load_settings
from hybridnn.data import ArrayRows, Dataset, TableOptions, load_file
from hybridnn.runs.table_check import check_table
from hybridnn.data.table_problems import options_text
from hybridnn.errors import DataError, HybridnnError
from reference.own_tables import rows, table

ONE_HOT = TableOptions(categories="one-hot")


def x_of(data: Dataset) -> NDArray[Any]:
    assert isinstance(data.train, ArrayRows)
    return data.train.x


def classes_of(data: Dataset) -> tuple[str, ...]:
    assert data.encoding is not None
    return data.encoding.classes


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "odd cells": (
        rows("a,y", *["#,p"] * 9, "n.a.,q"),
        "a: 10 of 100 cells are no numbers .'n.a.' in rows 10, 20, 30, ….; if 'n.a.'",
    ),
    "odd targets": (
        rows("a,y", *["#,#.5"] * 9, "#,?"),
        "y: 10 of 100 cells are no numbers .'.' in rows 10, 20, 30, ….; if ",
    ),
    "two readings": (
        rows("a;y", "1,018;p", "700;q"),
        "'1,018' may be read in two ways; set data.thousands = \",\" if it separates thousands, or data.dec",
    ),
    "points before three digits": (
        rows("a,y", "1.018,p", "700,q", ",p"),
        "'1.018' may be read in two ways, .2. missing values in a",
    ),
    "numbers alone with such points": (rows("a,b,y", "1,2.500,p", "2,90,q"), "'2.500' may be read in two ways"),
    "all points before three digits": (rows("a;y", "30.000;p", "31.100;q"), "'30.000' may be read in two ways; set"),
    "infinite numbers": (
        rows("a,y", "inf,p", "7,q", "-inf,p", "1,p"),
        "infinite values in a .'inf' in rows 1, 5, 9, …, '-inf' in rows .*; if 'inf', '-inf' stand for missing values",
    ),
    "infinite targets": (rows("a,y", "7,inf", "7,1.5"), "infinite values in y .*data.missing_targets"),
    "a date that is unknown": (
        rows("a,y", *(f"2021-03-{n},p" for n in range(10, 19)), "unknown,q"),
        "a: 10 of 100 cells are no dates as 2020-12-31 .'unknown' in rows 10, .*; if 'unknown' stands for a missing va",
    ),
    "versions": (
        rows("a,y", "1.0.0,p", "1.0.2,q", "2.1.0,q"),
        "a: no cell is a date as 2020-12-31 .'1.0.0' in rows 1, .*; if these are versions or codes, add the column to",
    ),
    "points among decimal commas": (
        rows("a;b;y", *(f"{n},{n};{n};p" for n in range(11, 20)), "48.137;7,5;q", "48.2061;8;p"),
        "a: most cells are numbers with decimal commas, but not '48.137' in rows 10, .*, '48.2061' in rows 11, .*;",
    ),
    "points among decimal commas in a table of points": (
        rows("a;b;y", *(f"{n},{n};{n}.25;p" for n in range(11, 20)), "48.2061;7.5;q"),
        "a: most cells are numbers with decimal commas, but not '48.2061' in rows 10, .*; correct these",
    ),
    "a unit": (rows("a,y", "5 km,p", "7.5 km,q"), "if 'km' is a unit, remove it from the column"),
    "many odd cells": (rows("a,y", "5,p", "7,q", "2,q", "x,q", "z,p"), "if 'x', 'z' stand for missing values, add"),
    "percent signs": (rows("a,y", "5%,p", "7%,q"), "must have no percent signs"),
    "parentheses": (
        rows("a,y", "(0.5),p", "7,q"),
        "must have no parentheses: write a minus sign if they stand for one",
    ),
    "underscores": (rows("a,y", "1_000,p", "7,q"), "must have no underscores: remove them, or add the column to"),
    "commas and points in two columns": (rows("a;b;y", "0,5;1.5;p", "2,5;0.5;q"), "then none in the table has a point"),
    "an odd cell among dates to predict": (
        rows("a,y", *(f"{n},2020-01-{n}" for n in range(10, 31)), "9,soon", times=1),
        "y: 1 of 22 cells are no dates as 2020-12-31 .'soon' in row 22.; if 'soon' stands for a missing value",
    ),
    "currency": (rows("a,y", "€5,p", "€7,q"), "must have no currency signs"),
    "currency in letters": (rows("a,y", "CHF 5.50,p", "Fr. 7'200.50,q"), "must have no currency signs"),
    "a row of totals": (rows("a,y", "5,p", "7,q") + "Total,p\n", "'Total' in row 21.; remove the last row from the"),
    "spaces of thousands": (rows("a,y", "1\u00a0200,p", "7,q"), 'set data.thousands = " " if they separate thousands'),
    "labels that differ": (rows("a,y", "#,name #", times=20), "different texts in .* a class needs several rows"),
    "None": (
        rows("a,y", "1,None", "2,Major", "3,Minor"),
        "if 'None' is a class, set data.missing_words = \"not None\"",
    ),
    "several words": (
        rows("a,y", "1,null", "2,Major", "3,nan", "4,Minor"),
        "if 'null', 'nan' are classes, set data.missing_words = .\"not null\", \"not nan\".; else only inputs",
    ),
    "numbers that differ": (
        rows("a,y", "#,1#", times=20),
        "20 different whole numbers in 20 rows; set model.loss to mse",
    ),
    "most numbers of one form": (
        rows("a;y", *(f"1,{n};{'pq'[n % 2]}" for n in range(100, 160))) + "1,5;p\n",
        "'1,100' may be read in two ways",
    ),
    "targets of which many are odd": (rows("a,y", "#,#.5", "#,#.25", "#,?"), "y: 10 of 30 cells are no numbers"),
    "targets in dollars": (rows("a;y", "#;$1,#"), "currency signs"),
    "a header that is text, and names": (rows("a,y", "1,p", "2,q"), "the first line seems to name the columns"),
    "a unit of degrees": (rows("a,y", "5.5°C,p", "7°C,q"), "if '°C' is a unit, remove it from the column"),
    "a first line of data": (
        rows("x,s", "a,s", "b,t"),
        "has it as a cell of this column too: set data.header to false",
    ),
    "a misspelt column": (rows("a,y", "1,p", "2,q"), "no column 'zip', which data.text_columns names"),
    "spaces between columns": (
        rows("a y", "1 p", "2 q"),
        "one column, a y; if ' ' separates columns, set data.separator",
    ),
    "no header": (
        rows("5.1,3.5,setosa", "4.9,3.0,virginica"),
        "the first line seems to hold data .* data.header to false",
    ),
    "no header, and more words than numbers": (
        rows("39,State,Never,White", "50,Private,Married,White", "38,State,Single,Black"),
        "the first line seems to hold data .39, State, Never, White.; set data.header to false",
    ),
    "no header, and words alone": (rows("x,n,o", "x,n,o", "b,n,x"), "the first line seems to hold data .x, n, o."),
    "no header, and equal cells": (
        rows("x,x,n", "b,s,t"),
        "several columns are named 'x'; set data.header to false if",
    ),
    "zeros as header": (rows("0,0,0,7", "1,2,0,4"), "the first line seems to hold data .* data.header to false"),
    "a title": ("Sales of 2020\n" + rows("a,y", "1,p", "2,q"), "if line 2 names the columns, set data.skip_lines = 1"),
    "a title, and a blank line": (
        "Sales of 2020\n\n" + rows("a,y", "#,p", "#,q"),
        "if line 3 names the columns, set data.skip_lines = 2",
    ),
    "comments": (
        "# Sales\n\n# 2020\n" + rows("a,y", "#,p", "#,q"),
        'begin with # are comments, set data.comment = "#"',
    ),
    "a header line again": (
        rows("a,b,y", "1,2,p", "3,4,q") + "a,b,y\n" + rows("a,b,y", "1,2,p"),
        "mine.csv: the header line is repeated in rows 21, 22: remove it there",
    ),
    "a header line with another separator": (rows("a;b;y", "1,2,p", "3,4,q"), "';' separates the names: write"),
    "gzip": (b"\x1f\x8b\x08 and more", "is compressed: unpack it"),
    "a workbook": (b"PK\x03\x04 and more", r"as .xlsx and .ods files are: unpack it, or save the sheet as .csv"),
    "a web page": ("\n<!DOCTYPE html>\n<table>", "is a page of HTML or XML: save the table itself as .csv"),
    "NUL": (rows("a,y", "1,p", "2\0,q"), "line 3: has the character NUL: it is damaged, or data.encoding must name"),
    "marks that are escaped": (
        'a,b,y\n"size",1,p\n"size 5\\" x, long",2,q\n',
        r'line 3: 4 cells, the first row has 3; quotation marks inside cells are written as \\" and must be doubled in',
    ),
    "quoted names": (rows("'a','y'", "1,p", "2,q"), "\"'y'\" differs from it by its quotation marks"),
    "invisible letters": (rows("a,\u200by", "1,p", "2,q"), "differs from it by capitals or invisible letters"),
    "other dates": (
        rows("a,y", "31.12.2020,p", "1.2.2021,q", "2021-02-03,q"),
        "a: 20 of 30 cells are no dates as 2020-12-31 .'31.12.2020' in rows 1, .*; set data.dates to \"day-first\"",
    ),
    "dates of two orders": (
        rows("a,y", "1/2/2020,p", "1/3/2021,q"),
        'no cell is a date as .*; set data.dates to "day-first" for 31/12/2020 or "month-first" for 12/31/2020',
    ),
    "a day that does not exist": (rows("a,y", "2020-02-30,p", "2020-03-01,q"), "10 of 20 .* dates .* .'2020-02-30' in"),
    "two header lines": ("t,p,y\ns,hPa,-\n" + rows("1,2,p", "3,4,q"), "row 1 holds no numbers .'s', 'hPa'. where"),
    "truth values beside numbers": (rows("a,y", "TRUE,p", "0,q", "1,q"), "true and false alone, or 1 and 0 alone"),
    "an empty column": (rows("a,b,y", "1,,p", "2,,q"), "b is empty; leave it out with data.drop_columns"),
    "a value that is read as missing": (
        rows("a,y", "NA,p", "FR,q", "DE,q"),
        "missing values in a .10 rows, NA, first in row 1.",
    ),
    "an id": (rows("a,y", "c#,p", "c#,q", times=20), "40 different values in 40 rows, as of an id"),
    "bytes": (rows("a,y", "größer,p", "b,q").encode("cp1252"), 'set data.encoding = "cp1252" if größer,p is text'),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_table_is_refused_with_advice(kind: str, tmp_path: Path) -> None:
    text, message = REFUSED[kind]
    options = {"a header that is text, and names": {"names": ["b", "y"]}, "a misspelt column": {"text_columns": "zip"}}
    target = "s" if kind == "a first line of data" else "y"
    with pytest.raises(HybridnnError, match=message) as raised:
        load_file(table(tmp_path, text), target, options=TableOptions(**options.get(kind, {})))  # type: ignore[arg-type]
    assert str(raised.value).isprintable()
    assert "one-hot" not in str(raised.value) or kind == "a value that is read as missing"


def test_all_problems_are_named_at_once_with_settings_that_solve_them(tmp_path: Path) -> None:
    text = rows("id,city,age,since,y", "c#,Rome,,2020-01-01,p", "c#,Oslo,30,2021-01-01,q", times=20)
    path = table(tmp_path, text)
    with pytest.raises(DataError, match=r"3 problems: \(1\) text in id .* \(2\) text in city .* \(3\) missing .* age"):
        load_file(path, "y")
    found = check_table(path, "y")
    assert [line.becomes for line in found.columns] == ["?", "?", "input", "input, days since 1970", "target"]
    assert [(line.missing, line.different) for line in found.columns[:3]] == [(0, 40), (0, 2), (20, 1)]
    assert found.settings == {"drop_columns": ["id"], "categories": "one-hot", "missing": "mean"}
    data = load_file(path, "y", options=TableOptions(**found.settings))  # type: ignore[arg-type]
    assert (data.inputs, data.features) == (("city", "age", "since"), 4)


SOLVED = {
    "errors of a spreadsheet": (
        "a,y\n" + 10 * "#DIV/0!,p\n7,q\n1,p\n",
        {"missing_words": ["#DIV/0!"], "missing": "mean"},
    ),
    "infinite numbers": (rows("a,y", "inf,p", "7,q", "1,p"), {"missing_words": ["inf"], "missing": "mean"}),
    "dates in two forms, and a word": (
        rows("a,y", *(f"{n}/3/2021,p" for n in range(10, 18)), "2021-03-01,q", "unknown,q"),
        {"dates": "day-first", "missing_words": ["unknown"], "missing": "mean"},
    ),
    "a usual word among dates": (
        rows("a,y", *(f"2021-03-{n},p" for n in range(10, 18)), "0000-00-00,q", "unknown,q"),
        {"missing_words": ["0000-00-00", "unknown"], "missing": "mean"},
    ),
    "odd cells among decimal targets": (
        rows("a,y", *["#,#.5"] * 9, "#,?"),
        {"missing_words": ["?"], "missing_targets": "drop"},
    ),
    "odd cells among whole targets": (
        rows("a,y", *(f"#,{37 * n}" for n in range(60)), "#,?", times=1),
        {"missing_words": ["?"], "missing_targets": "drop", "model.loss": "mse"},
    ),
    "one word in two columns": (
        rows("a,y", *["#,#.5"] * 9, "?,?"),
        {"missing_words": ["?"], "missing": "mean", "missing_targets": "drop"},
    ),
}


@pytest.mark.parametrize("kind", SOLVED)
def test_settings_that_solve_odd_cells_suffice(kind: str, tmp_path: Path) -> None:
    text, expected = SOLVED[kind]
    path = table(tmp_path, text)
    found = check_table(path, "y")
    assert found.settings == expected
    assert not any("are taken for classes" in note for note in found.notes)
    overrides = ["data.file=a.csv", "data.targets=y", *shlex.split(options_text(found.settings))]
    settings = load_settings(None, [override for override in overrides if override != "--set"])
    data = load_file(path, "y", task=settings.model.task, options=settings.data.table_options)
    assert data.task == ("regression" if "targets" in kind or "columns" in kind else "classification")


def test_classes_of_text_are_no_whole_numbers(tmp_path: Path) -> None:
    text = rows("a,y", *(f"{n},name {n}" for n in range(20)), times=3)
    assert load_file(table(tmp_path, text), "y").warnings == ()


def test_settings_are_typed_as_people_type_them(tmp_path: Path) -> None:
    overrides = ["data.file=a.csv", "data.targets=y", "data.drop_columns=id,since", "data.missing_words=-999"]
    options = load_settings(None, overrides).data.table_options
    assert (options.drop_columns, options.missing_words) == (("id", "since"), ("-999",))
