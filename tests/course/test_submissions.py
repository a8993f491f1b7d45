"""Submissions as students pack them, and what their code may send, print and raise."""

from __future__ import annotations

import io
import json
import socket
import struct
import threading
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from course.made import KIT, course_of, reference_files, submission_zip
from hybridnn.course.answers import first_difference
from hybridnn.course.assignment import load_assignment
from hybridnn.course.batch import ARCHIVE_BYTES, grade_folder, read_outcomes
from hybridnn.course.frames import FrameError, receive_frame
from hybridnn.course.grading import Grader
from hybridnn.course.outcome import Outcome
from hybridnn.course.reports import write_reports
from hybridnn.course.submission import UngradableError, read_submission
from hybridnn.course.work_folder import WorkFolder

A2 = load_assignment("a2")
BOUNDS = "\ndef block_bounds(items, parts, part):\n    "


def files_of(changed: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """Files of a right submission, with text added to some of them."""
    files = reference_files(A2, A2.standard)
    for name, text in (changed or {}).items():
        files[name] += text
    with zipfile.ZipFile(io.BytesIO(submission_zip(A2, A2.standard, files))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def graded(folder: Path, text: str) -> Outcome:
    """Outcome of a submission whose file of the first task has more text."""
    return Grader(course_of(folder, "a2"), A2, "none").grade(packed(files_of({"blocks.py": text})))


def hidden_messages(outcome: Outcome) -> set[str]:
    """Messages of the hidden cases of the first task."""
    return {check.message for check in outcome.tasks[0].checks if check.kind == "hidden"}


def test_files_that_file_managers_add_are_left_out() -> None:
    files = {f"a2/{name}": content for name, content in files_of().items()}
    added = ["__MACOSX/a2/._blocks.py", "a2/.DS_Store", "a2/__pycache__/blocks.cpython-312.pyc", "a2/handout.md"]
    found = read_submission(A2, packed({**files, **dict.fromkeys(added, b"\0")}), [KIT])
    assert set(found.files) == set(A2.files)


def test_a_missing_file_is_named_with_the_files_that_are_there() -> None:
    files = {**files_of(), "Blocks.py": b""}
    del files["blocks.py"]
    with pytest.raises(UngradableError, match=r"^blocks\.py: is missing; .* has Blocks\.py, assignment\.toml"):
        read_submission(A2, packed(files))
    with pytest.raises(UngradableError, match=r"the submission has no file$"):
        read_submission(A2, packed({}))


def test_a_syntax_error_is_named_once() -> None:
    with pytest.raises(UngradableError, match=r"^blocks\.py, line \d+: cannot be parsed: [^(]*$"):
        read_submission(A2, packed(files_of({"blocks.py": "def broken()\n"})))


@pytest.mark.parametrize("name", ["other.py", "a2/b/blocks.py", "handout.md.py", "numpy.py", "__pycache__"])
def test_other_files_are_refused(name: str) -> None:
    with pytest.raises(UngradableError, match="is not a file of a2"):
        read_submission(A2, packed({**files_of(), name: b""}))


def test_files_of_windows_are_read(tmp_path: Path) -> None:
    windows = {name: b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n") for name, content in files_of().items()}
    assert read_submission(A2, packed(windows), [KIT]).files == read_submission(A2, packed(files_of()), [KIT]).files
    for name, content in windows.items():
        (tmp_path / name).write_bytes(content)
    assert not WorkFolder.open(tmp_path).sources()["blocks.py"].startswith("\ufeff")


@pytest.mark.parametrize("count", [300, 900, 2000])
def test_deeply_nested_code_is_refused(count: int) -> None:
    text = f"{BOUNDS}return {' + '.join(['1'] * count)}\n"
    with pytest.raises(UngradableError, match=r"blocks\.py.*(nested|parsed)"):
        read_submission(A2, packed(files_of({"blocks.py": text})))


def test_a_function_may_print_more_than_is_kept(tmp_path: Path) -> None:
    text = "\n_own = block_bounds\n" + BOUNDS + 'print("x" * 200_000)\n    return _own(items, parts, part)\n'
    assert graded(tmp_path / "course", text).points == 100


def test_names_of_exceptions_do_not_tell_hidden_inputs(tmp_path: Path) -> None:
    text = BOUNDS + 'raise type(f"I{items}_{parts}", (Exception,), {})()\n'
    assert hidden_messages(graded(tmp_path / "named", text)) == {"raised an exception of its own"}
    assert hidden_messages(graded(tmp_path / "other", BOUNDS + "return 1 / 0\n")) == {"raised ZeroDivisionError"}


def test_an_array_of_very_many_axes_is_refused_at_once() -> None:
    text = json.dumps({"x": {"__array__": ["float64", [1 << 26] * 100_000]}}).encode()
    one, other = socket.socketpair()
    with one, other:
        sender = threading.Thread(target=one.sendall, args=(struct.pack(">II", len(text), 0) + text,))
        sender.start()
        start = time.process_time()
        with pytest.raises(FrameError, match="not a frame"):
            receive_frame(other)
        assert time.process_time() - start < 2
        sender.join()


def test_an_integer_beyond_all_floats_is_a_wrong_number() -> None:
    difference = first_difference([{"x": 10**400}], [{"x": 1.0}], 1e-9)
    assert difference is not None
    assert difference.where == "x"


def test_reports_have_every_submission_whatever_its_size_and_folder(tmp_path: Path) -> None:
    folder, out = tmp_path / "submissions", tmp_path / "grades"
    (folder / "a").mkdir(parents=True)
    for name in ("a/b.zip", "a-b.zip", "C.ZIP"):
        (folder / name).write_bytes(b"no archive: " + name.encode())
    (folder / "large.zip").write_bytes(bytes(ARCHIVE_BYTES + 1))
    grader = Grader(course_of(tmp_path / "course", "a2"), A2, "none")
    graded = grade_folder(grader, folder, out)
    assert read_outcomes(grader, folder, out) == (graded, [])
    write_reports(A2, graded, out, "hints")
    found = {str(path.relative_to(out / "feedback")) for path in (out / "feedback").rglob("*.md")}
    assert found == {"a/b.md", "a-b.md", "C.md", "large.md"}
