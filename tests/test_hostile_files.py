"""Malformed files: every reader, function or command, refuses them in one line that names the file, at once.

A refusal is a `HybridnnError`, which a command prints as its only line, with exit code 2. It changes no file and
allocates little memory.
"""

import contextlib
import ctypes
import io
import json
import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace as with_changes
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hybridnn.runs.run_files import CONFIG_END
from hybridnn.utils import files
from reference.damaged_files import (
    CONTENT,
    CUTS,
    IMPOSSIBLE_NAMES,
    REPLACEMENTS,
    Malicious,
    changed,
    mutations,
    replace,
)
from reference.finished_runs import write_run
from reference.readers import (
    CSV,
    FOLDER,
    FUNCTIONS,
    LABELS,
    QUICK,
    READERS,
    RUN,
    Reader,
    X,
    command,
    content,
    load,
    possible_refusal,
    refusal,
    run_command,
    sample,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which becomes the current one."""
    (tmp_path / FOLDER).mkdir()
    monkeypatch.chdir(tmp_path / FOLDER)
    return tmp_path / FOLDER


@contextlib.contextmanager
def permissions_of_a_user() -> Iterator[None]:
    """Let the modes of files apply to this thread even if it runs as root."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, rights = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()  # version 3; this thread
    libc.capget(header, rights)
    effective = rights[0]
    rights[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    libc.capset(header, rights)
    try:
        yield
    finally:
        rights[0] = effective
        libc.capset(header, rights)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", READERS)
def test_anything_but_a_file_that_may_be_read(name: str, folder: Path) -> None:
    reader = READERS[name]
    path = reader.write(folder)
    if name in FUNCTIONS:
        assert refusal(reader, path) == ""
    for kind in REPLACEMENTS:
        reason = replace(path, kind)
        if kind in reader.accepts:
            assert refusal(reader, path) == "", kind
            continue
        # Threads of pyarrow may crash while Python's tracer of memory starts or stops.
        message = refusal(reader, path, measured=reader.language != "parquet")
        assert message, kind
        assert reader.reason + reason in message or not reader.reason, kind
    replace(path, "nothing")
    path.touch(mode=0)
    with permissions_of_a_user():
        message = refusal(reader, path)
    assert "Permission denied" in message or "not readable" in message or (message and name == "export, history")


NAMED = (
    "train NAME",
    "train --resume NAME",
    "train --out NAME -q",
    "train --file NAME",
    "plan --machine NAME.toml",
    "study run NAME",
    "study report NAME",
    "report NAME",
    "trace NAME",
    f"trace {RUN} --out NAME.svg",
    "evaluate NAME",
    f"export {RUN} NAME.npz",
    "export NAME out.npz",
)
WRITTEN = ("train --out NAME -q", f"trace {RUN} --out NAME.svg", f"export {RUN} NAME.npz")
"""Commands that write a file or a folder, and may do so with a newline in its name."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", [name for name, reader in FUNCTIONS.items() if reader.takes_name])
def test_a_name_that_no_file_has(name: str, folder: Path) -> None:
    reader = FUNCTIONS[name]
    suffix = reader.write(folder).suffix
    (folder / "file").touch()
    for start, reason in IMPOSSIBLE_NAMES.items():
        message = refusal(reader, folder / f"{start}{suffix}")
        assert reason in message or "no such" in message, (start, message)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("arguments", NAMED)
def test_a_command_with_a_name_that_no_file_has(arguments: str, folder: Path) -> None:
    write_run(folder / RUN)
    (folder / "file").touch()
    for name in IMPOSSIBLE_NAMES:
        if name != "a\nb" or arguments not in WRITTEN:
            reader = command("", *(argument.replace("NAME", name) for argument in arguments.split()))
            assert refusal(reader, Path(name)), name


LONG_TEXT = b'"' + b"x" * 900_000 + b'"'
JSON_TEXTS: dict[bytes, str] = {
    b"[" * 10_000: "recursion limit",
    b'{"a":' * 10_000: "recursion limit",
    b"[" * 150 + b"]" * 150: "nested more than 100 deep",
    b"1" * 5_000: "out of range",
    b"[1, 9223372036854775808]": "an integer of more than 64 bits",
    b"1e999": "not finite",
    b"NaN": "expected value",
    b'"\\ud800"': "escape",
    b"\xff": "expected value",
    b"\xef\xbb\xbf{}": "expected value",
    '{"a": 1}'.encode("utf-16"): "expected value",
    b'{"a": 1': "EOF",
    b"\0" * 100: "expected value",
    b"": "EOF",
}
TOML_TEXTS: dict[bytes, str] = {
    b"a = " + b"[" * 10_000: "is not valid TOML: nested too deep",
    b"a = " + b"{a=" * 10_000: "is not valid TOML: nested too deep",
    b".".join([b"a"] * 500) + b" = 1": "is not valid TOML: nested more than 100 deep",
    b".".join([b"a"] * 300_000) + b" = 1": "is not valid TOML: a line with too many dots",
    b"a = " + b"1" * 5_000: "is not valid TOML: ",
    b"a = 0x" + b"f" * 5_000: "is not valid TOML: an integer of more than 64 bits",
    b"a = 9223372036854775808": "is not valid TOML: an integer of more than 64 bits",
    b"a = 1\na = 2": "is not valid TOML: ",
    b"\xef\xbb\xbf\xef\xbb\xbfa = 1": "is not valid TOML: ",
    b"\xff": "is not text in UTF-8: ",
    "a = 1".encode("utf-16"): "is not text in UTF-8: ",
    b"\0" * 100: "is not valid TOML: ",
    b"# " + b"x" * (64 << 20): "cannot be read: larger than 67,108,864 bytes",
}
"""Texts that no reader of the language accepts, and the reason in the error of the parser."""

ODD_TEXTS = {
    "json": [b"[" * 90 + b"]" * 90, b"9" * 18, LONG_TEXT, b"[]", b"{}", b"null"],
    "toml": [b"a = " + b"[" * 90 + b"]" * 90, b"a = 9999999", b"a = " + LONG_TEXT, b"a = nan", b"[[a]]"],
}
"""Texts that a parser accepts, and a reader of a file of the library refuses."""


def language_of(name: str) -> str:
    return {"lines": "json"}.get(FUNCTIONS[name].language, FUNCTIONS[name].language)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if language_of(name) in ODD_TEXTS])
def test_a_text_that_no_reader_accepts(name: str, folder: Path) -> None:
    reader = FUNCTIONS[name]
    path = reader.write(folder)
    valid = path.read_bytes()
    texts = JSON_TEXTS if language_of(name) == "json" else TOML_TEXTS
    for text, reason in texts.items():
        path.write_bytes(text)
        message = refusal(reader, path)
        assert message, text[:40]
        if name in ("json", "toml"):
            assert reason in message
            assert "is not valid JSON: " in message or name == "toml"
    if name in ("json", "toml"):
        return
    for text in ODD_TEXTS[language_of(name)]:
        for odd in (text, text + b"\n" + valid):
            path.write_bytes(odd)
            assert refusal(reader, path), text[:40]
    for text in (*texts, *ODD_TEXTS[language_of(name)]):
        path.write_bytes(valid + text)
        refusal(reader, path)  # the last table of a file may be one that takes any key


def documents(reader: Reader, valid: bytes, every: int) -> Iterator[bytes]:
    """The file with one value changed; only every `every`-th of these files."""
    text = valid.decode()
    if reader.language == "toml":
        end = CONFIG_END if text.endswith(CONFIG_END) else ""
        for document in mutations(files.parse_toml(text), every):
            with contextlib.suppress(TypeError):  # TOML has no null
                yield (tomli_w.dumps(document) + end).encode(errors="surrogatepass")
        return
    lines = text.splitlines() if reader.language == "lines" else [text]
    for number, line in enumerate(lines):
        for document in mutations(json.loads(line), every):
            yield "\n".join([*lines[:number], json.dumps(document), *lines[number + 1 :], ""]).encode()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", list(FUNCTIONS)[list(FUNCTIONS).index("settings") :])
def test_a_wrong_value(name: str, folder: Path) -> None:
    reader = FUNCTIONS[name]
    path = reader.write(folder)
    every = 3 if settings.default.max_examples > 100 else 7
    outcomes = []
    for text in documents(reader, path.read_bytes(), every):  # no common factor with the number of wrong values
        path.write_bytes(text)
        outcomes.append(refusal(reader, path))
    assert any(outcomes)
    assert not all(outcomes)  # some values may stand there


LAYOUT, FORWARD = ("otherData", "layout"), ("traceEvents", 1)
NO_FILE_HAS: dict[str, list[tuple[tuple[Any, ...], list[Any], str]]] = {
    "trace": [
        (LAYOUT, [None, []], ""),
        ((*LAYOUT, "stages"), [[], [[1]], [[1, 0]], 3], ""),
        ((*LAYOUT, "method"), ["jump", None], ""),
        ((*FORWARD, "tid"), [2, -1, "0"], ""),
        ((*FORWARD, "cat"), ["else"], ""),
        ((*FORWARD, "ts"), [-1, "now", float("inf"), float("nan")], ""),
        ((*FORWARD, "dur"), [-0.5, None], ""),
        ((*FORWARD, "args"), [None, []], ""),
        ((*FORWARD, "args", "instruction"), ["jump", ["forward"]], ""),
        ((*FORWARD, "args", "minibatch"), [1.5, -1], ""),
        ((*FORWARD, "args", "microbatch"), [-2], ""),
        ((*FORWARD, "args", "chunk"), [True], ""),
        (("otherData", "complete_since_us"), ["x"], ""),
    ],
    "history": [  # of a header, a prediction, measured steps, a step and two epochs
        ((0, "ranks"), [0, None, "abc"], r"history\.jsonl"),
        ((1,), [{"kind": "prediction", "machine": "x"}], ": not .*seconds_per_step: "),
        ((1, "seconds_per_epoch"), ["abc"], ": not .*seconds_per_epoch: "),
        ((1, "parts"), [None], ": not .*parts: "),
        ((2, "instructions"), [{"forward": "x"}], r": not .*instructions\.forward: "),
        ((2, "seconds_per_step"), [0], ": not .*measured steps without time"),
        ((4, "epoch"), [0, None, "abc"], r"history\.jsonl"),
        ((4, "step"), [0, None, "abc"], r"history\.jsonl"),
    ],
}
"""Places in a file, values that none has there, and a pattern of the message."""


@pytest.mark.parametrize("name", NO_FILE_HAS)
def test_a_value_that_no_file_has(name: str, folder: Path) -> None:
    reader = FUNCTIONS[name]
    path = reader.write(folder)
    lines = path.read_text().splitlines()
    for place, values, pattern in NO_FILE_HAS[name]:
        for value in values:
            if reader.language == "lines":
                records = changed([json.loads(line) for line in lines], place, value)
                path.write_text("".join(json.dumps(record) + "\n" for record in records))
            else:
                path.write_text(json.dumps(changed(json.loads(lines[0]), place, value)))
            message = refusal(reader, path)
            assert message, (place, value)
            assert re.search(pattern, message), (place, value, message)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_random_damage(name: str, folder: Path) -> None:
    reader = FUNCTIONS[name]
    path = reader.write(folder)
    valid = path.read_bytes()
    damages = {name: how for name, how in (CUTS | CONTENT).items() if "array" not in name or path.suffix == ".npz"}
    if path.suffix in (".npz", ".parquet") or name == "bytes":
        damages = {name: how for name, how in damages.items() if name != "an integer of 5,000 digits"}
    refused = 0
    for number in range(2 * settings.default.max_examples):
        random = Random(number)
        path.write_bytes(valid)
        random.choice(list(damages.values()))(path, random)
        refused += refusal(reader, path) != ""
    assert refused or reader.language == "bytes"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=VALUES)
def test_json_is_read_as_python_reads_it(value: Any) -> None:
    text = json.dumps(value)
    if "\\ud" in text:  # lone surrogates, which are not text, and pairs, which Python writes so
        text = json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()
    assert files.parse_json(text) == json.loads(text)


@given(content=st.binary(max_size=200))
@example(content=b"a = 1979-05-27")
def test_any_bytes_are_read_as_python_reads_them_or_refused(content, tmp_path_factory) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    for read, reference in (
        (files.read_json, json.loads),
        (files.read_toml, lambda data: files.tomllib.loads(data.decode())),
    ):
        with possible_refusal(path):
            assert read(path) == reference(content)


def test_resuming_what_is_no_run(folder: Path) -> None:
    content("a-file", "text")(folder)
    os.mkfifo(folder / "a-fifo")
    (folder / "empty").mkdir()
    (folder / "other").mkdir()
    content("config.toml", "[tool]\n")(folder / "other")
    for name in ("nothing", "a-file", "a-fifo", "empty", "other"):
        for more in ((), ("--set", "training.epochs=9")):
            message = refusal(command("", "train", "--resume", name, *more), folder / name)
            assert message == f"--resume = {name!r}: is not a run folder"


@pytest.mark.parametrize("kind", ["a file", "a link to itself"])
def test_a_file_in_place_of_a_folder(kind: str, folder: Path) -> None:
    train = ("train", "--data", "synthetic", "--epochs", "1", "-q")
    for file, arguments in {
        "one": (*train, "--out", "one"),
        "two": (*train, "--out", "two/run"),
        "three/checkpoints": (*train, "--out", "three"),
        "four": (*train, "--out", "four", "--resume", "auto"),
        "five/checkpoints": (*train, "--out", "five", "--resume", "auto"),
        "six": ("study", "run", "laugier-figure-5", "--out", "six", "--reduced"),
    }.items():
        path = folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_text("x") if kind == "a file" else path.symlink_to(path.name)
        code, err = run_command(*arguments)
        assert (code, len(err.splitlines())) == (2, 1), err
        assert file.partition("/")[0] in err


@pytest.mark.parametrize("name", ["weights.npz", "config.toml", "learning_curve.svg", "standardization.npz"])
def test_a_folder_in_place_of_a_file(name: str, folder: Path) -> None:
    (folder / RUN / name).mkdir(parents=True)
    code, err = run_command(*QUICK, "--set", "data.standardize=true", "--out", RUN)
    assert (code, len(err.splitlines())) == (2, 1), err
    assert err.startswith("Error: ")


def npy(header: str, payload: bytes = b"") -> bytes:
    """An ``.npy`` file with any header."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + payload


def header(shape: object, descr: str = "<f8") -> str:
    return f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}"


def archive(path: Path, x_train: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    """An ``.npz`` file with sound labels and these bytes as ``x_train``."""
    labels = io.BytesIO()
    np.save(labels, LABELS)
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("x_train.npy", x_train)
        file.writestr("y_train.npy", labels.getvalue())
    return path


def changed_inside(path: Path) -> None:
    np.savez_compressed(path, x_train=np.random.default_rng(0).normal(size=(200, 3)), y_train=np.arange(200) % 3)
    changed = bytearray(path.read_bytes())
    changed[500:600] = b"\xff" * 100
    path.write_bytes(changed)


BEYOND = 0xFFFFFF00
"""Size of a member, its header of 128 bytes included, that the directory of an archive and that header agree on."""


def in_directory(field: int, value: bytes) -> Callable[[Path], None]:
    """A function that changes an entry of the archive's central directory."""

    def change(path: Path) -> None:
        archive(path, npy(header((BEYOND - 128,), "|u1").ljust(128 - 11), b"\0" * 64))
        changed = bytearray(path.read_bytes())
        entry = changed.index(b"PK\x01\x02") + field
        changed[entry : entry + len(value)] = value
        path.write_bytes(changed)

    return change


def claims(text: str, method: int = zipfile.ZIP_STORED, payload: bytes = X.tobytes()) -> Callable[[Path], object]:
    return lambda path: archive(path, npy(text, payload), method)


SIZES = struct.pack("<II", BEYOND, BEYOND)  # compressed, and not
# Newer versions of Python, and older ones that are patched, know where an entry ends and compare it with the next.
OVERLAP = "Overlapped entries" if hasattr(zipfile.ZipInfo, "_end_offset") else "4,294,966,912 bytes; the file holds "
OBJECTS = np.array([Malicious()], dtype=object)
UNREADABLE = "cannot read x_train: "
ARCHIVES: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: path.write_bytes(npy(header((4, 3)), X.tobytes())), "not an .npz file (numpy.savez writes them)"),
    (lambda path: path.write_bytes(b"PK\x03\x04 not really"), "not an .npz file"),
    (lambda path: np.savez(path, x_train=OBJECTS, y_train=LABELS), f"{UNREADABLE}Object arrays"),
    (changed_inside, UNREADABLE),
    (in_directory(10, b"\x63"), "That compression method is not supported"),
    (in_directory(8, b"\x01"), " is encrypted"),
    (in_directory(20, SIZES), OVERLAP),
    (claims(header((4, 3)), zipfile.ZIP_BZIP2), "compressed by method 12"),  # which may expand without limit
    (claims(header((4, 3)), zipfile.ZIP_LZMA), "compressed by method 14"),
    (lambda path: archive(path, b"\x93NUMPY\3\0\x10\0\0\0" + b" " * 16), "array format 3.0 is not that of plain"),
    (claims(header((10**6, 10**6))), "claims shape (1000000, 1000000) of float64, 8,000,000,000,000 bytes"),
    (claims(header((10**6, 10**6)), zipfile.ZIP_DEFLATED), "claims shape (1000000, 1000000) of float64"),
    (claims(header((2**40, 2**40))), "claims shape (1099511627776, 1099511627776)"),
    (claims(header((-4, -3))), "claims shape (-4, -3)"),
    (claims(header((4, 3), "|O")), "Object arrays cannot be loaded"),
    (claims(header((2**70, 0)), payload=b""), UNREADABLE),
    (claims(header("(" * 4000 + ")" * 4000)), UNREADABLE),
    (claims(header("4" * 5000)), UNREADABLE),
    (claims(header((4, 3), "no such type")), UNREADABLE),
    (claims(header((4, 3)) + " " * 60_000), UNREADABLE),
]
"""Archives that hold no plain arrays, or not what they claim, and the reason in the message."""


@pytest.mark.parametrize("name", ["npz", "npz to train on", "npz to predict from"])
def test_an_archive_that_holds_no_plain_arrays(name: str, folder: Path) -> None:
    for write, reason in ARCHIVES:
        write(folder / "mine.npz")
        assert reason in refusal(FUNCTIONS[name], folder / "mine.npz", measured=True)
    assert not (folder / "ran").exists()


def test_an_archive_that_expands_beyond_the_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(folder / "mine.npz", x_train=np.zeros((1000, 1000)), y_train=np.arange(1000) % 2)
    assert (folder / "mine.npz").stat().st_size < 20_000
    monkeypatch.setattr(files, "memory_bytes", lambda: 1 << 22)
    for name in ("npz", "npz to train on", "npz to predict from"):
        reader = with_changes(FUNCTIONS[name], memory=1 << 22)
        message = refusal(reader, folder / "mine.npz", measured=True)
        assert "cannot read the file: its arrays take 8,0" in message
        assert "and this machine has 4,194,304" in message


def test_names_of_arrays_in_a_message_are_short(folder: Path) -> None:
    with zipfile.ZipFile(folder / "mine.npz", "w") as file:
        for number in range(500):
            file.writestr(f"{number}\n{'x' * 300}", npy(header((1,)), b"\0" * 8))
    message = refusal(FUNCTIONS["npz to train on"], folder / "mine.npz")
    assert "and 488 more" in message
    assert len(message) < 2000


@given(
    start=st.binary(max_size=300),
    text=st.binary(max_size=200)
    | st.builds(
        lambda shape, descr: header(tuple(shape), descr).encode(),
        st.lists(st.integers(-(2**65), 2**65), max_size=4),
        st.sampled_from(["<f8", "|u1", "<U0", "|V0", "<c16", "|b1", "<M8[s]", "|O", "<f2", ">i8", "<U100000000"]),
    ),
    method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
)
@example(start=b"", text=b"", method=zipfile.ZIP_STORED)
def test_arrays_of_any_bytes(start: bytes, text: bytes, method: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "mine.npz"
    for array in (start, npy("")[:8] + struct.pack("<H", len(text)) + text + start):
        archive(path, array, method)
        with possible_refusal(path):
            load(path)


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
