"""Tables as people have them: what each column is decided to hold, what is refused, and advice that leads on."""

from __future__ import annotations

import shlex
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybridnn.config.settings import load_settings
from hybridnn.data import ArrayRows, Dataset, TableOptions, load_file
from hybridnn.data.table_check import check_table
from hybridnn.data.table_problems import options_text
from hybridnn.data.user_file import load_samples
from hybridnn.errors import DataError, HybridnnError

ONE_HOT = TableOptions(categories="one-hot")


def table(folder: Path, text: str | bytes, name: str = "mine.csv") -> Path:
    content = text if isinstance(text, bytes) else text.encode()
    (folder / name).write_bytes(content)
    return folder / name


def rows(head: str, *patterns: str, times: int = 10) -> str:
    """A table whose rows repeat; ``#`` in a pattern is the number of the row."""
    lines = [pattern.replace("#", str(n)) for n, pattern in enumerate(list(patterns) * times)]
    return "\n".join([head, *lines]) + "\n"


def x_of(data: Dataset) -> NDArray[Any]:
    assert isinstance(data.train, ArrayRows)
    return data.train.x


def classes_of(data: Dataset) -> tuple[str, ...]:
    assert data.encoding is not None
    return data.encoding.classes


# -- what is read ------------------------------------------------------------------------------------------------------

READ: dict[str, tuple[str | bytes, dict[str, Any], list[float]]] = {
    "decimal commas": (rows("a;y", "1,5;p", "2,25;q"), {}, [1.5, 2.25]),
    "decimal commas and points of thousands": (rows("a;b;y", "7,5;1.200;p", "8,5;1.340;q"), {}, [7.5, 1200]),
    "thousands, one without doubt": (rows("a;y", '"1,200.5";p', '"1,250";q'), {}, [1200.5, 1250]),
    "thousands that are stated": (rows("a;y", "1,200;p", "1,250;q"), {"thousands": ","}, [1200, 1250]),
    "spaces of thousands": (rows("a;y", "1\u202f200;p", "1 250;q"), {"thousands": " "}, [1200, 1250]),
    "groups of India": (rows("a;y", "1,00,000;p", "45,000;q"), {}, [100_000, 45_000]),
    "minus of Unicode": (rows("a,y", "\u22124,p", "2,q"), {}, [-4, 2]),
    "dates": (rows("a,y", "1970-01-11,p", "1970-01-02T12:00:00,q"), {}, [10, 1.5]),
    "days first": (rows("a,y", "11.1.1970,p", "2/01/1970 12:00,q"), {"dates": "day-first"}, [10, 1.5]),
    "months first": (rows("a,y", "1/11/1970,p", "1970-01-02 12:00,q"), {"dates": "month-first"}, [10, 1.5]),
    "truth values": (rows("a,y", "TRUE,p", "false,q"), {}, [1, 0]),
    "vertical bars": (rows("a|y", "3|p", "4|q"), {}, [3, 4]),
    "a separator that is stated": (rows("a:y", "3:p", "4:q"), {"separator": ":"}, [3, 4]),
    "spaces": (rows("a   y", "3  p", "4 q"), {"separator": " "}, [3, 4]),
    "Excel's line": ("\ufeffsep=;\r\n" + rows("a;y", "3;p", "4;q"), {}, [3, 4]),
    "commas in names": (rows("size, cm;y", "3;p", "4;q"), {}, [3, 4]),
    "lines before the header": ("made by hand\n\n" + rows("a,y", "3,p", "4,q"), {"skip_lines": 2}, [3, 4]),
    "blank lines before the header": ("\n \n" + rows("a,y", "3,p", "4,q"), {}, [3, 4]),
    "names and trailing separators": (rows("3,p,", "4,q,"), {"names": ["a", "y"]}, [3, 4]),
    "other names and more separators": (rows("b,c,", "3,p,", "4,q,"), {"names": ["a", "y"], "header": True}, [3, 4]),
    "comments": ("% units: m\n" + rows("a,y", "3,p % good", "4,q"), {"comment": "%"}, [3, 4]),
    "UTF-16": (rows("größe;y", "3;p", "4;q").encode("utf-16"), {}, [3, 4]),
    "UTF-16 without a mark": (rows("größe;y", "3;p", "4;q").encode("utf-16-le"), {}, [3, 4]),
    "UTF-16 in the other order": (rows("hoch;y", "3;p", "4;q").encode("utf-16-be"), {}, [3, 4]),
    "Windows-1252": (rows("größe;y", "3;p", "4;q").encode("cp1252"), {"encoding": "cp1252"}, [3, 4]),
    "row names of R": (rows('"","a","y"', '"#",3,"p"', '"#",4,"q"'), {}, [3, 4]),
    "a header that is one short": (rows('"a","y"', '"#",3,"p"', '"#",4,"q"'), {}, [3, 4]),
    "trailing separators": (rows("a,y,", "3,p,", "4,q,"), {}, [3, 4]),
    "trailing separators of rows": (rows("a,y", "3,p,", "4,q,"), {}, [3, 4]),
    "names that are numbers in order": (rows("0,1,y", "3,5,p", "4,6,q"), {}, [3, 5]),
    "a name that is a cell too": (rows("a,p,y", "1,7,p", "2,8,q"), {}, [1, 7]),
}


@pytest.mark.parametrize("kind", READ)
def test_table_is_read(kind: str, tmp_path: Path) -> None:
    text, options, expected = READ[kind]
    data = load_file(table(tmp_path, text), "y", options=TableOptions(**options))
    assert (data.task, classes_of(data)) == ("classification", ("p", "q"))
    x = x_of(data)
    found = x[:2, 0] if x.shape[1] == 1 else x[0]
    np.testing.assert_array_equal(found, expected)


def test_a_table_without_header_line_has_numbered_names(tmp_path: Path) -> None:
    text = rows("5.1,3.5,setosa", "4.9,3.0,virginica")
    data = load_file(table(tmp_path, text), "column 3", options=TableOptions(header=False))
    assert (data.inputs, data.train.samples) == (("column 1", "column 2"), 11)
    data = load_file(table(tmp_path, text), "kind", options=TableOptions(names=["a", "b", "kind"]))
    assert (data.inputs, data.train.samples) == (("a", "b"), 11)


def test_names_are_compared_in_one_form_of_unicode(tmp_path: Path) -> None:
    path = table(tmp_path, rows(unicodedata.normalize("NFD", "größe,übung"), "3,p", "4,q"))
    data = load_file(path, "übung", inputs=[unicodedata.normalize("NFC", "größe")])
    np.testing.assert_array_equal(x_of(data)[:2, 0], [3, 4])


def test_labels_keep_their_text(tmp_path: Path) -> None:
    assert classes_of(load_file(table(tmp_path, rows("a,y", "1,01", "2,02", "3,10")), "y")) == ("01", "02", "10")
    none = table(tmp_path, rows("a,y", "1,None", "2,Major"))
    assert classes_of(load_file(none, "y", options=TableOptions(missing_words="not None"))) == ("Major", "None")
    codes = table(tmp_path, rows("zip,y", "01234,p", "99,q"))
    data = load_file(codes, "y", options=TableOptions(text_columns="zip", categories="one-hot"))
    assert data.encoding is not None
    assert data.encoding.categories == {"zip": ("99", "01234")}


def test_a_target_with_separators_of_thousands_is_a_quantity(tmp_path: Path) -> None:
    data = load_file(table(tmp_path, rows("a;y", "1;2,400", "2;3,600")), "y", options=TableOptions(thousands=","))
    assert (data.task, data.train.y[:2, 0].tolist()) == ("regression", [2400, 3600])  # type: ignore[attr-defined]


def test_words_for_missing_values_are_extended(tmp_path: Path) -> None:
    text = rows("hp,y", "60,p", "-999,q", times=6) + rows("61,q", "?,p")
    options = TableOptions(missing_words=("?", "-999"), missing="mean")
    x = x_of(load_file(table(tmp_path, text), "y", options=options))
    assert (x[:2, 0].tolist(), np.isnan(x).any()) == ([x[0, 0], x[1, 0]], False)
    assert 60 < x[1, 0] < 61


def test_words_may_begin_as_those_that_take_words_out(tmp_path: Path) -> None:
    options = TableOptions(missing_words=("not asked", "not NA"), missing="mean")
    assert {"not asked", "NULL"} <= options.words
    assert not {"asked", "NA", "not NA"} & options.words
    path = table(tmp_path, rows("a,y", "4,p", "not asked,q", "8,q"))
    np.testing.assert_array_equal(x_of(load_file(path, "y", options=options))[:3, 0], [4, 6, 8])


def test_a_word_that_was_added_is_not_called_a_value(tmp_path: Path) -> None:
    path = table(tmp_path, rows("a,y", "Rome,p", "-,q", "Oslo,q"))
    with pytest.raises(DataError, match=r"missing values in a .10 rows, -, first") as raised:
        load_file(path, "y", options=TableOptions(missing_words="-", categories="one-hot"))
    assert "is a value" not in str(raised.value)


def test_a_number_that_stands_for_a_missing_value_does_so_in_every_row(tmp_path: Path) -> None:
    for text, words in (
        (rows("hp,y", "60,p", "-999,q"), "-999"),
        (rows("hp,y", "60,p", "?,q", "-999,p"), ("-999", "?")),
    ):
        options = TableOptions(missing_words=words, missing="mean")
        data = load_file(table(tmp_path, text), "y", options=options)
        assert set(x_of(data)[:, 0]) == {60}
        one = load_samples(table(tmp_path, "hp\n-999\n", "one.csv"), 1, encoding=data.encoding)
        assert one.x.tolist() == [[60]]


def test_what_a_column_holds_is_not_decided_anew(tmp_path: Path) -> None:
    path = table(tmp_path, rows("day,is,code,y", "2020-01-01,True,1.0,p", "2020-01-02,False,beta,q"))
    encoding = load_file(path, "y", options=ONE_HOT).encoding
    assert encoding is not None
    assert encoding.categories == {"code": ("1.0", "beta")}
    assert load_samples(path, 4, ["y"], encoding=encoding).x[0].tolist() == [18262, 1, 1, 0]
    for cells, what in (("2020,True,beta", "date"), ("2020-01-01,7,beta", "truth value")):
        new = table(tmp_path, f"day,is,code\n{cells}\n", "new.csv")
        with pytest.raises(DataError, match=f"no cell is a {what} "):
            load_samples(new, 4, encoding=encoding)


def test_files_with_and_without_a_mark_are_read_alike(tmp_path: Path) -> None:
    text = rows("größe,y", "3,p", "4,q")
    for first, second in (("utf-8", "utf-8-sig"), ("utf-16", "utf-8")):
        encoding = load_file(table(tmp_path, text.encode(first)), "y").encoding
        assert load_samples(table(tmp_path, text.encode(second)), 1, ["y"], encoding=encoding).x[1] == 4


def test_another_separator_and_encoding_than_in_training(tmp_path: Path) -> None:
    training = table(tmp_path, rows("größe,b,y", "3.5,1,p", "4.5,2,q"))
    encoding = load_file(training, "y").encoding
    nameless, names = table(tmp_path, rows("3.5,p,1", "4.5,q,2"), "nameless.csv"), TableOptions(names=("a", "y", "b"))
    for separator in ";\t|,":
        text = rows("b,größe", "1,3.5", "2,4.5").replace(",", separator)
        new = table(tmp_path, text.encode("utf-16"), "new.csv")
        np.testing.assert_array_equal(load_samples(new, 2, encoding=encoding).x[:2], [[3.5, 1], [4.5, 2]])
        with pytest.raises(DataError, match=r"no columns 'größe', 'b', which the inputs need; it has c, d$"):
            load_samples(table(tmp_path, rows("c,d", "1,3.5").replace(",", separator), "new.csv"), 2, encoding=encoding)
        new = table(tmp_path, "1.5,p,2\n2.5,q,3\n".replace(",", separator), "new.csv")
        found = load_samples(new, 2, ["y"], encoding=load_file(nameless, "y", options=names).encoding)
        np.testing.assert_array_equal(found.x, [[1.5, 2], [2.5, 3]])
    other = load_file(training, "y", encoding=encoding)
    assert other.train.samples == 20
    with pytest.raises(
        DataError, match=r"byte 0xf6 \(invalid start byte\); save it as UTF-8 \(iconv -f cp1252 -t utf-8\) if"
    ):
        load_samples(table(tmp_path, rows("b,größe", "1,3").encode("cp1252"), "new.csv"), 2, encoding=encoding)


def test_a_file_in_utf8_for_a_network_of_another_encoding(tmp_path: Path) -> None:
    text = rows("größe;y", "1,5;p", "2,5;q")
    options = TableOptions(encoding="cp1252")
    encoding = load_file(table(tmp_path, text.encode("cp1252")), "y", options=options).encoding
    for name in ("utf-8", "cp1252"):
        one = table(tmp_path, "größe\n7,5\n".encode(name), "one.csv")
        assert load_samples(one, 1, encoding=encoding).x.tolist() == [[7.5]], "a comma in one column separates nothing"


def test_an_empty_last_cell_is_no_row_name_and_no_column(tmp_path: Path) -> None:
    row_names = rows('"a","b","y"', '"#",3,1,"p"', '"#",4,2,"q"')
    encoding = load_file(table(tmp_path, row_names), "y", options=TableOptions(missing="mean")).encoding
    for more in ("", '"8",5,2\n'):
        new = table(tmp_path, f'"a","b"\n"7",5,\n{more}', "new.csv")
        assert load_samples(new, 2, encoding=encoding).x[0].tolist() == [5, 1.5]
    encoding = load_file(table(tmp_path, rows("a,b,y", "1,2,p,", "2,1,q,")), "y").encoding
    assert load_samples(table(tmp_path, "a,b\n7,5,\n", "new.csv"), 2, encoding=encoding).x.tolist() == [[7, 5]]


def test_a_single_row_with_a_row_name_is_read(tmp_path: Path) -> None:
    encoding = load_file(table(tmp_path, rows('"a","y"', '"#",3,"p"', '"#",4,"q"')), "y").encoding
    assert load_samples(table(tmp_path, '"a","y"\n"7",5,"p"\n'), 1, ["y"], encoding=encoding).x == 5


def test_a_quotation_mark_inside_a_name_is_a_letter(tmp_path: Path) -> None:
    data = load_file(table(tmp_path, rows('size in",y', "3,p", "4,q") + '5,"q"\n'), "y")
    assert (data.inputs, data.train.samples) == (('size in"',), 21)


def test_names_replace_those_of_a_header_line(tmp_path: Path) -> None:
    options = TableOptions(header=True, names=("b", "kind"))
    data = load_file(table(tmp_path, rows("a,y", "1,p", "2,q")), "kind", options=options)
    assert (data.inputs, data.train.samples) == (("b",), 20)


@pytest.mark.parametrize(("target", "options"), [("y", {"names": ["y", "a", "b"]}), ("column 1", {"header": False})])
def test_a_file_without_header_line_may_lack_the_target(target: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = table(tmp_path, rows("p,1,2", "q,3,4"))
    encoding = load_file(path, target, options=TableOptions(**options)).encoding
    for text in ("5,6\n", "r,5,6\n", "5,6\n7,8\n"):
        samples = load_samples(table(tmp_path, text, "new.csv"), 2, [target], encoding=encoding)
        np.testing.assert_array_equal(samples.x[0], [5, 6])


def test_a_row_may_lack_its_last_cells_alone_and_among_others(tmp_path: Path) -> None:
    path = table(tmp_path, rows("y,a,b", "p,1", "q,3,4", "q,5,6"))
    encoding = load_file(path, "y", options=TableOptions(missing="mean")).encoding
    for text, row in (("7\n", 0), ("7\n8,9\n", 0), ("8,9\n7\n", 1)):
        samples = load_samples(table(tmp_path, "a,b\n" + text, "new.csv"), 2, encoding=encoding)
        np.testing.assert_array_equal(samples.x[row], [7, 5])


def test_rows_without_target_are_left_out_while_inputs_are_filled(tmp_path: Path) -> None:
    text = rows("a,y", "1,p", ",q", "5,", "3,q", times=3)
    data = load_file(table(tmp_path, text), "y", options=TableOptions(missing="mean", missing_targets="drop"))
    assert data.train.samples == 9
    assert x_of(data)[1, 0] == pytest.approx((3 * 1 + 3 * 5 + 3 * 3) / 9)


def test_unknown_categories_are_all_zero_if_that_is_stated(tmp_path: Path) -> None:
    path = table(tmp_path, rows("city,a,y", "Rome,1,p", "Oslo,2,q"))
    new = table(tmp_path, "city,a\nBern,3\n", "new.csv")
    for options, refused in ((ONE_HOT, True), (TableOptions(categories="one-hot", unknown_categories="zeros"), False)):
        encoding = load_file(path, "y", options=options).encoding
        if refused:
            advice = 'did not have: .Bern. .1 row.; a training with data.unknown_categories = "zeros" allows them'
            with pytest.raises(DataError, match=f"column 'city' has values that the training data {advice}"):
                load_samples(new, 3, encoding=encoding)
        else:
            np.testing.assert_array_equal(load_samples(new, 3, encoding=encoding).x, [[0, 0, 3]])


# -- what is refused ---------------------------------------------------------------------------------------------------

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


# -- predictions -------------------------------------------------------------------------------------------------------

CELLS = {
    "number": st.sampled_from(["1", "2.5", "-3", "1e2", ""]),
    "comma": st.sampled_from(["1,5", "2", "-3,25", ""]),
    "code": st.sampled_from(["01", "1", "x", "K1A"]),
    "truth": st.sampled_from(["True", "False", ""]),
    "date": st.sampled_from(["2020-01-01", "1999-12-31", ""]),
    "label": st.sampled_from(["01", "1", "None?"]),
}


@given(
    kinds=st.lists(st.sampled_from(["number", "comma", "code", "truth", "date"]), min_size=1, max_size=4),
    data=st.data(),
)
def test_a_row_is_encoded_alone_as_among_all_others(
    kinds: list[str], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    lines = data.draw(st.lists(st.tuples(*(CELLS[kind] for kind in kinds), CELLS["label"]), min_size=2, max_size=8))
    head = ";".join([*(f"c{number}" for number in range(len(kinds))), "y"])
    path = table(folder, "\n".join([head, *(";".join(line) for line in lines)]) + "\n")
    try:
        encoding = load_file(path, "y", options=TableOptions(categories="one-hot", missing="mean")).encoding
    except HybridnnError:
        return
    assert encoding is not None
    together = load_samples(path, encoding.features, ["y"], encoding=encoding).x
    for number, line in enumerate(lines):
        one = table(folder, "\n".join([head, ";".join(line)]) + "\n", "one.csv")
        np.testing.assert_array_equal(
            load_samples(one, encoding.features, ["y"], encoding=encoding).x[0], together[number]
        )


def test_kept_columns_come_before_the_predictions(tmp_path: Path) -> None:
    path = table(tmp_path, rows("id,a,city,y", "c#,1,Rome,p", "c#,2,Oslo,q"))
    encoding = load_file(path, "y", options=TableOptions(drop_columns="city"), inputs="a").encoding
    samples = load_samples(path, 1, ["y"], encoding=encoding)
    assert samples.kept(None) == {"id": [f"c{n}" for n in range(20)]}
    dropped = load_file(path, "y", options=TableOptions(drop_columns=("id", "city"))).encoding
    one = load_samples(table(tmp_path, "id,a\nc77,1\n", "one.csv"), 1, encoding=dropped)
    assert one.kept(None) == {"id": ["c77"]}
    number = load_file(table(tmp_path, rows("id,a,y", "7#,1,p", "7#,2,q", times=5), "numbers.csv"), "y").encoding
    assert number is not None
    assert (number.columns, number.key) == (("id", "a"), "id")
    tweets = load_file(table(tmp_path, rows("tweet,a,y", f"{10**18}#,1,p", f"{10**18}#,2,q"), "t.csv"), "y").encoding
    assert load_samples(tmp_path / "t.csv", 2, encoding=tweets).kept(None)["tweet"][:2] == [
        f"{10**18}{n}" for n in (0, 1)
    ]
    area = load_file(table(tmp_path, rows("area,a,y", "9,1,p", "8,2,q", times=5), "areas.csv"), "y").encoding
    assert area is not None
    assert area.key == ""
    assert samples.kept(["city", "y"]) == {"city": ["Rome", "Oslo"] * 10, "y": ["p", "q"] * 10}
    with pytest.raises(DataError, match="no column 'key', which --keep names; it has id, a, city, y"):
        samples.kept(["key"])


def test_commands_that_messages_print_can_be_typed(tmp_path: Path) -> None:
    path = table(tmp_path, rows("my id,a b,y", "c#,,p", "c#,2,q", times=20))
    with pytest.raises(DataError) as raised:
        load_file(path, "y")
    command = str(raised.value).partition("what may solve them: ")[2].partition("; hybridnn")[0]
    overrides = [text for text in shlex.split(command) if text != "--set"]
    options = load_settings(None, ["data.file=a.csv", "data.targets=y", *overrides]).data.table_options
    assert load_file(path, "y", options=options).inputs == ("a b",)


@pytest.mark.parametrize("name", ["MINE.CSV", "mine.tsv", "mine.txt"])
def test_other_names_of_text_files(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(rows("a\tb\ty", "1\t2\tp", "3\t4\tq"))
    np.testing.assert_array_equal(load_file(tmp_path / name, "y").train.x[:2], [[1, 2], [3, 4]])


@pytest.mark.parametrize(("thousands", "number"), [(".", 1018), ("none", 1.018)])
def test_points_are_read_as_stated(thousands: str, number: float, tmp_path: Path) -> None:
    path = table(tmp_path, rows("a,y", "1.018,p", "700,q"))
    found = load_file(path, "y", options=TableOptions(thousands=thousands)).train.x  # type: ignore[arg-type]
    np.testing.assert_array_equal(found[:2], [[number], [700]])
