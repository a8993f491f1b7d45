"""Malformed files: every reader, function or command, refuses them in one line that names the file, at once.

A refusal is a `HybridnnError`, which a command prints as its only line, with exit code 2. It changes no file and
allocates little memory.
"""

import contextlib
import ctypes
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tomli_w
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hybridnn.runs.run_files import CONFIG_END
from hybridnn.utils import files
from reference.damaged_files import CONTENT, CUTS, IMPOSSIBLE_NAMES, REPLACEMENTS, changed, mutations, replace
from reference.finished_runs import write_run
from reference.readers import (
    FUNCTIONS,
    QUICK,
    READERS,
    RUN,
    Reader,
    command,
    content,
    possible_refusal,
    refusal,
    run_command,
)


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


WRITTEN = ("train --out NAME -q", f"trace {RUN} --out NAME.svg", f"export {RUN} NAME.npz")
"""Commands that write a file or a folder, and may do so with a newline in its name."""

NAMED = (
    *("train NAME", "train --resume NAME", "train --file NAME", "plan --machine NAME.toml", "export NAME out.npz"),
    *("study run NAME", "study report NAME", "report NAME", "trace NAME", "evaluate NAME", *WRITTEN),
)


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
