"""Tables of strange cells, sizes and names: read, or refused in one line."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.readers import CSV, FUNCTIONS, content, load, possible_refusal, refusal, sample


def test_a_table_that_is_larger_than_the_memory(folder: Path) -> None:
    path = CSV(folder)
    os.truncate(path, 1 << 40)  # of zeros, which take no space
    for name in ("csv to train on", "csv to predict from"):
        message = refusal(FUNCTIONS[name], path, measured=True)
        assert "has the character NUL, which no text has" in message


def test_a_table_of_more_columns_than_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridnn.data.table_file.MOST_COLUMNS", 3)
    path = content("mine.csv", "a,b,c,y\n1,2,3,p\n4,5,6,q\n")(folder)
    message = refusal(FUNCTIONS["csv to train on"], path, measured=True)
    assert "4 columns are more than 3, which a table may have; store numbers as arrays in an .npz file" in message


MANY = ",".join(f"c{number}" for number in range(600))
CELL_TEXTS: dict[str, tuple[str | bytes, str]] = {
    "a long cell": (f"a,y\n{'z' * 100_000},1\n2,2\n", "text in a"),
    "a name of two lines": ('"a\nb",c\n1,2\n', r"no column 'y', which data.targets names; it has 'a\nb', c"),
    "a long name": (f"{'a' * 200_000},y\n1,0\n2,1\n", "is not a text file of columns"),
    "NUL": ("a,y\n1,2\n" * 50_000 + "\0\0,1\n", "has the character NUL, which no text has"),
    "bytes far from the beginning": (b"a,y\n" + b"1,0\n" * 20_000 + b"\xff,1\n", "is not a text file in UTF-8"),
    "many names": (f"{MANY},y\n1,0\n", "600 problems: (1) c2 is empty"),
    "many other names": (f"{MANY}\n{'1,' * 599}0\n", "and 588 more"),
}


@pytest.mark.parametrize("kind", CELL_TEXTS)
def test_a_table_with_strange_cells(kind: str, folder: Path) -> None:
    text, reason = CELL_TEXTS[kind]
    message = refusal(FUNCTIONS["csv to train on"], content("mine.csv", text)(folder))
    assert reason in message
    assert 0 < len(message) < 1000


CELLS = st.one_of(
    st.sampled_from(["", "nan", "1e999", "-0", "1_0", '"', "a", "y", " y ", "\ufeff", "1" * 5000, "٣", "0x1", "1e5"]),
    st.text(max_size=5),
)


@given(rows=st.lists(st.lists(CELLS, max_size=4), max_size=4), end=st.sampled_from(["\n", "\r", "\r\n"]))
def test_tables_of_any_cells(rows: list[list[str]], end: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "mine.csv"
    text = end.join([",".join(row) for row in rows])
    for start in ("", f"a,b,y{end}"):
        path.write_text(start + text, encoding="utf-8", errors="surrogatepass", newline="")
        for read in (load, sample):
            with possible_refusal(path):
                read(path)
