"""What may not be meant in a table: warnings of a training, notes of the check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from data.test_kinds_of_tables import ONE_HOT
from hybridnn.data import TableOptions, load_file
from hybridnn.runs.table_check import check_table
from reference.own_tables import rows, table

DOUBTS = {
    "compact dates": (rows("day,code,y", "20201231,20201231,p", "20210101,20201232,q"), "may be dates: day; dates are"),
    "a sentinel": (
        rows("a,b,y", "17.5,1,p", "18,2,q", "-999,3,p"),
        "a: -999 (10 rows) is far from all other values",
    ),
    "a sentinel among targets": (rows("a,y", "1,17.5", "2,18.25", "3,-999"), "y: -999 (10 rows) is far from all"),
    "leading zeros": (rows("a,y", "01067,p", "80331,q"), "numbers with leading zeros, as codes have: a; data.text_col"),
    "capitals": (rows("a,y", "1,Yes", "2,yes", "3,no"), "y: 'Yes' and 'yes' are two classes, and differ by capitals"),
    "ages": (rows("a,y", *(f"{n},{n}" for n in range(20, 40)), times=3), "y: 20 whole numbers are taken for classes"),
    "numbers of rows": (
        rows("id,a,y", "#,1,p", "#,2,q"),
        "id counts the rows; if it only identifies them, leave it out",
    ),
    "numbers of many digits": (
        rows("tweet,a,y", "1234567890123456789,1,p", "1234567890123456788,2,q"),
        "whole numbers of so many digits that some are lost, as ids have: tweet; data.text_columns makes",
    ),
    "marks that are escaped": (rows("a,city,y", r'1,"a \"b\" c",p', '2,"x",q'), r"written as \" and must be doubled"),
    "numbers of customers": (
        rows("CustomerID,a,y", *(f"{1001 + 37 * n % 100},{n % 3},{'pq'[n % 2]}" for n in range(20)), times=1),
        "CustomerID has another whole number in every row; if it only identifies them, leave it out",
    ),
    "three digits after every point": (
        rows("a,y", *(f"1.{n},{'pq'[n % 2]}" for n in range(100, 160)), times=1),
        "every point stands before three digits, as in '1.100'; set data.thousands = \".\" if it separates",
    ),
    "points of thousands beside decimal commas": (
        rows("a;b;y", *(f"2.{n};{n},5;{'pq'[n % 2]}" for n in range(310, 340)), times=1),
        "a: every cell has a point before three digits, and '2.310' is read as 2310, as other numbers have commas",
    ),
    "decimal commas without quotation marks": (
        rows("a,b,y", *(f"{3 * n + 4},{n % 10},{n % 3},{'pq'[n % 2]}" for n in range(30)), times=1),
        "first cell of every row is left out as a row name; if a number has a decimal comma, quote it or separate",
    ),
    "a row of totals": (
        rows("a,city,y", "1,Rome,p", "2,Oslo,q") + "30,Total,p\n",
        "the last row has 'Total' as city; if it sums up the others, remove it from the file",
    ),
}


QUANTITIES = {
    "2021-05-01,2021-06-01": "2 dates",
    '"3,000","4,500,000"': "the values 3000, 4500000 with separators of thousands",
    "3.0,4.0": "the values 3, 4 with decimal points",
    "3e2,4e2": "the values 300, 400 with exponents",
    '"3,0","4,0"': "the values 3, 4 with decimal commas",
}


@pytest.mark.parametrize("cells", QUANTITIES)
def test_a_warning_says_why_few_values_are_a_regression(cells: str, tmp_path: Path) -> None:
    one, other = re.findall(r'"[^"]*"|[^,]+', cells)
    path = table(tmp_path, rows("a,y", f"7,{one}", f"8,{other}"))
    (warning,) = load_file(path, "y").warnings
    assert f"y has {QUANTITIES[cells]}: a regression" in warning


@pytest.mark.parametrize("kind", DOUBTS)
def test_what_may_not_be_meant_is_a_warning(kind: str, tmp_path: Path) -> None:
    text, message = DOUBTS[kind]
    path = table(tmp_path, text)
    with pytest.warns(UserWarning, match=re.escape(message)) as warned:
        (warning,) = load_file(path, "y", options=ONE_HOT).warnings
    assert ([str(one.message) for one in warned], warned[0].filename) == ([warning], __file__)
    assert warning.partition(": ")[2] in check_table(path, "y", options=ONE_HOT).notes


def test_labels_that_are_left_out_are_a_doubt_unless_that_is_stated(tmp_path: Path) -> None:
    path = table(tmp_path, rows("a,y", "1,null", "2,Major", "3,nan", "4,Minor"))
    for options in ({"missing": "drop"}, {"missing_targets": "drop"}):
        (note,) = check_table(path, "y", options=TableOptions(**options)).notes  # type: ignore[arg-type]
        assert note.startswith(
            "y: 20 rows without a label are left out; if 'null', 'nan' are classes, set data.missing_w"
        )
        stated = TableOptions(**options, missing_words=("nan", "null"))  # type: ignore[arg-type]
        assert check_table(path, "y", options=stated).notes == ()
    alone = check_table(table(tmp_path, rows("a,y", "1,NULL", "2,None")), "y")
    assert "if 'NULL', 'None' are classes" in alone.problems[0].advice
    assert alone.settings == {}


def test_usual_tables_bring_no_warning(tmp_path: Path) -> None:
    text = rows("a,y", *(f"{n + 1},{n % 7},{'pq'[n % 2]}" for n in range(30)), times=1)  # with row names of R
    assert load_file(table(tmp_path, text), "y").warnings == ()
    text = rows("a;b;y", *(f"2.{n};{n},5;{'pq'[n % 2]}" for n in range(310, 340)), "2.000.000;7,5;p", times=1)
    assert load_file(table(tmp_path, text), "y").warnings == ()
    text = rows("a,b,c,n,y", "9,0,0.5,#,p", "99,1,-0.25,#,q", "50,10,99,#,p", "12,11,42,#,q")
    assert load_file(table(tmp_path, text), "y").warnings == ()
    text = rows("height,b,y", *(f"{58 + n},0.{n},{'pq'[n % 2]}" for n in range(15)), times=1)
    assert load_file(table(tmp_path, text), "y").warnings == ()
    text = rows("area,b,city,y", *(f"{17 * n % 101},0.{n},Total,{'pq'[n % 2]}" for n in range(100, 200)), times=1)
    assert load_file(table(tmp_path, text), "y", options=ONE_HOT).warnings == ()
