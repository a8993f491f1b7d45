"""Tables as people have them: what each column is decided to hold, and predictions that remember it."""

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybridnn.data import Dataset, TableOptions, load_file
from hybridnn.errors import DataError, HybridnnError
from hybridnn.runs.inference import load_samples
from reference.own_tables import rows, table

ONE_HOT = TableOptions(categories="one-hot")


def x_of(data: Dataset) -> NDArray[Any]:
    return data.train.x


def classes_of(data: Dataset) -> tuple[str, ...]:
    return data.encoding.classes


READ: dict[str, tuple[str | bytes, dict[str, Any], list[float]]] = {
    "decimal commas": (rows("a;y", "1,5;p", "2,25;q"), {"decimal": ","}, [1.5, 2.25]),
    "decimal commas and points of thousands": (
        rows("a;b;y", "7,5;1.200;p", "8,5;1.340;q"),
        {"decimal": ",", "thousands": "."},
        [7.5, 1200],
    ),
    "points of thousands": (rows("a;y", "1.018;p", "700;q"), {"thousands": "."}, [1018, 700]),
    "points that are decimal": (rows("a;y", "1.018;p", "700;q"), {"decimal": "."}, [1.018, 700]),
    "points between commas": (rows("a,y", "1.018,p", "700,q"), {}, [1.018, 700]),
    "thousands": (rows("a;y", "1,200;p", "1,250;q"), {"thousands": ","}, [1200, 1250]),
    "spaces of thousands": (rows("a;y", "1 200;p", "1 250;q"), {"thousands": " "}, [1200, 1250]),
    "groups of India": (rows("a;y", "1,00,000;p", "45,000;q"), {"thousands": ","}, [100_000, 45_000]),
    "minus of Unicode": (rows("a,y", "\u22124,p", "2,q"), {}, [-4, 2]),
    "large numbers": (rows("a,y", f"{10**25},p", "2,q"), {}, [1e25, 2]),
    "dates": (rows("a,y", "1970-01-11,p", "1970-01-02T12:00:00,q"), {}, [10, 1.5]),
    "a form of dates": (
        rows("a,y", "11.1.1970,p", "2.01.1970,q"),
        {"parse_dates": ["a"], "date_format": "%d.%m.%Y"},
        [10, 1],
    ),
    "days before months": (
        rows("a,y", "11.1.1970,p", "02/01/1970 12:00,q", "1970-02-01,q"),
        {"parse_dates": ["a"], "dayfirst": True},
        [10, 1.5, 31],
    ),
    "forms of dates by column": (
        rows("a,y", "11 Jan 1970,p", "02 Jan 1970,q"),
        {"parse_dates": ["a"], "date_format": {"a": "%d %b %Y"}},
        [10, 1],
    ),
    "truth values": (rows("a,y", "TRUE,p", "false,q"), {}, [1, 0]),
    "words of truth": (rows("a,y", "yes,p", "no,q"), {"true_values": ["yes"], "false_values": ["no"]}, [1, 0]),
    "vertical bars": (rows("a|y", "3|p", "4|q"), {}, [3, 4]),
    "a separator that is stated": (rows("a:y", "3:p", "4:q"), {"sep": ":"}, [3, 4]),
    "spaces": (rows("a   y", "3  p", "4 q"), {"sep": r"\s+"}, [3, 4]),
    "commas in names": (rows("size, cm;y", "3;p", "4;q"), {}, [3, 4]),
    "lines before the header": ("made by hand\n\n" + rows("a,y", "3,p", "4,q"), {"skiprows": 2}, [3, 4]),
    "blank lines before the header": ("\n \n" + rows("a,y", "3,p", "4,q"), {}, [3, 4]),
    "other names": (rows("b,c", "3,p", "4,q"), {"names": ["a", "y"], "header": 0}, [3, 4]),
    "comments": ("% units: m\n" + rows("a,y", "3,p % good", "4,q"), {"comment": "%"}, [3, 4]),
    "single quotation marks": (rows("'a';'y'", "'3';'p'", "'4';'q'"), {"quotechar": "'"}, [3, 4]),
    "marks that are escaped": (rows('a,"the \\", y",y', "3,3,p", "4,4,q"), {"escapechar": "\\"}, [3, 3]),
    "UTF-16": (rows("größe;y", "3;p", "4;q").encode("utf-16"), {}, [3, 4]),
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
    data = load_file(table(tmp_path, text), "y", options=TableOptions(csv=options))
    assert (data.task, classes_of(data)) == ("classification", ("p", "q"))
    x = x_of(data)
    found = x[: len(expected), 0] if x.shape[1] == 1 else x[0]
    np.testing.assert_array_equal(found, expected)


def test_a_table_without_header_line_has_numbered_names(tmp_path: Path) -> None:
    path = table(tmp_path, rows("5.1,3.5,setosa", "4.9,3.0,virginica"))
    for header in (None, "None"):
        data = load_file(path, "2", options=TableOptions(csv={"header": header}))
        assert (data.inputs, data.train.samples) == (("0", "1"), 11)
    data = load_file(path, "kind", options=TableOptions(csv={"names": ["a", "b", "kind"]}))
    assert (data.inputs, data.train.samples) == (("a", "b"), 11)


def test_names_are_compared_in_one_form_of_unicode(tmp_path: Path) -> None:
    path = table(tmp_path, rows(unicodedata.normalize("NFD", "größe,übung"), "3,p", "4,q"))
    data = load_file(path, "übung", inputs=[unicodedata.normalize("NFC", "größe")])
    np.testing.assert_array_equal(x_of(data)[:2, 0], [3, 4])


def test_labels_keep_their_text(tmp_path: Path) -> None:
    assert classes_of(load_file(table(tmp_path, rows("a,y", "1,01", "2,02", "3,10")), "y")) == ("01", "02", "10")
    none = table(tmp_path, rows("a,y", "1,None", "2,Major"))
    assert classes_of(load_file(none, "y", options=TableOptions(csv={"keep_default_na": False, "na_values": ""}))) == (
        "Major",
        "None",
    )
    codes = table(tmp_path, rows("zip,y", "01234,p", "99,q"))
    data = load_file(codes, "y", options=TableOptions(text_columns="zip", categories="one-hot"))
    assert data.encoding.categories == {"zip": ("99", "01234")}


def test_a_target_with_separators_of_thousands_is_a_quantity(tmp_path: Path) -> None:
    data = load_file(
        table(tmp_path, rows("a;y", "1;2,400", "2;3,600")), "y", options=TableOptions(csv={"thousands": ","})
    )
    assert (data.task, data.train.y[:2, 0].tolist()) == ("regression", [2400, 3600])  # type: ignore[attr-defined]


def test_words_for_missing_values_are_extended(tmp_path: Path) -> None:
    text = rows("hp,y", "60,p", "-999,q", times=6) + rows("61,q", "?,p")
    options = TableOptions(csv={"na_values": ["?", -999]}, missing="mean")
    x = x_of(load_file(table(tmp_path, text), "y", options=options))
    assert (x[:2, 0].tolist(), np.isnan(x).any()) == ([x[0, 0], x[1, 0]], False)
    assert 60 < x[1, 0] < 61


def test_a_number_that_stands_for_a_missing_value_does_so_in_every_row(tmp_path: Path) -> None:
    for text, words in ((rows("hp,y", "60,p", "-999,q"), "-999"), (rows("hp,y", "60,p", "?,q", "-999,p"), "-999,?")):
        options = TableOptions(csv={"na_values": words}, missing="mean")
        data = load_file(table(tmp_path, text), "y", options=options)
        assert set(x_of(data)[:, 0]) == {60}
        one = load_samples(table(tmp_path, "hp\n-999\n", "one.csv"), 1, encoding=data.encoding)
        assert one.x.tolist() == [[60]]


def test_what_a_column_holds_is_not_decided_anew(tmp_path: Path) -> None:
    path = table(tmp_path, rows("day,is,code,y", "2020-01-01,True,1.0,p", "2020-01-02,False,beta,q"))
    encoding = load_file(path, "y", options=ONE_HOT).encoding
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
    nameless, names = (
        table(tmp_path, rows("3.5,p,1", "4.5,q,2"), "nameless.csv"),
        TableOptions(csv={"names": ["a", "y", "b"]}),
    )
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
    with pytest.raises(DataError, match=r"not a text file in UTF-8 .*byte 0xf6"):
        load_samples(table(tmp_path, rows("b,größe", "1,3").encode("cp1252"), "new.csv"), 2, encoding=encoding)


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


@pytest.mark.parametrize(("target", "options"), [("y", {"names": ["y", "a", "b"]}), ("0", {"header": None})])
def test_a_file_without_header_line_may_lack_the_target(target: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = table(tmp_path, rows("p,1,2", "q,3,4"))
    encoding = load_file(path, target, options=TableOptions(csv=options)).encoding
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


def test_unknown_categories_are_refused(tmp_path: Path) -> None:
    encoding = load_file(table(tmp_path, rows("city,a,y", "Rome,1,p", "Oslo,2,q")), "y", options=ONE_HOT).encoding
    new = table(tmp_path, "city,a\nBern,3\n", "new.csv")
    with pytest.raises(DataError, match=r"column 'city' has values that the training data did not have: .Bern. .1 row"):
        load_samples(new, 3, encoding=encoding)


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
    decimal=st.sampled_from(".,"),
)
def test_a_row_is_encoded_alone_as_among_all_others(
    kinds: list[str], data: st.DataObject, decimal: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    lines = data.draw(st.lists(st.tuples(*(CELLS[kind] for kind in kinds), CELLS["label"]), min_size=2, max_size=8))
    head = ";".join([*(f"c{number}" for number in range(len(kinds))), "y"])
    path = table(folder, "\n".join([head, *(";".join(line) for line in lines)]) + "\n")
    try:
        options = TableOptions(categories="one-hot", missing="mean", csv={"decimal": decimal, "na_values": "2"})
        encoding = load_file(path, "y", options=options).encoding
    except HybridnnError:
        return
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
    assert (number.columns, number.key) == (("id", "a"), "id")
    tweets = load_file(table(tmp_path, rows("tweet,a,y", f"{10**16}#,1,p", f"{10**16}#,2,q"), "t.csv"), "y").encoding
    assert load_samples(tmp_path / "t.csv", 2, encoding=tweets).kept(None)["tweet"][:2] == [
        f"{10**16}{n}" for n in (0, 1)
    ]
    area = load_file(table(tmp_path, rows("area,a,y", "9,1,p", "8,2,q", times=5), "areas.csv"), "y").encoding
    assert area.key == ""
    assert samples.kept(["city", "y"]) == {"city": ["Rome", "Oslo"] * 10, "y": ["p", "q"] * 10}
    with pytest.raises(DataError, match="no column 'key', which --keep names; it has id, a, city, y"):
        samples.kept(["key"])


@pytest.mark.parametrize("name", ["MINE.CSV", "mine.tsv", "mine.txt"])
def test_other_names_of_text_files(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(rows("a\tb\ty", "1\t2\tp", "3\t4\tq"))
    np.testing.assert_array_equal(load_file(tmp_path / name, "y").train.x[:2], [[1, 2], [3, 4]])
