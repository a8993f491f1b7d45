"""Submissions as students pack them, and what their code may send, print and raise."""

from __future__ import annotations

import io
import json
import socket
import struct
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from course.tests.made import KIT, course_of, reference_files, submission_zip
from hybridnn.errors import DataError
from hybridnn_course import isolation
from hybridnn_course.answers import Answer, answer_digest, first_difference
from hybridnn_course.assignment import Case
from hybridnn_course.carrier import Worker
from hybridnn_course.case_file import CASES
from hybridnn_course.checks import check_task
from hybridnn_course.execution import MachineError
from hybridnn_course.frames import FrameError, receive_frame, send_frame
from hybridnn_course.submission import CODE_BYTES, UngradableError, read_submission
from hybridnn_course.work_folder import MANIFEST, Manifest, WorkFolder, open_handed_out, write_files
from hybridnn_course_staff import reading
from hybridnn_course_staff.assignment import load_assignment
from hybridnn_course_staff.batch import ARCHIVE_BYTES, grade_folder
from hybridnn_course_staff.grading import Grader
from hybridnn_course_staff.handing_out import start_files
from hybridnn_course_staff.reading import read_in_time
from hybridnn_course_staff.reports import write_reports
from hybridnn_course_staff.task_key import TaskKey
from mpi_runner.slowness import deadline

A2 = load_assignment("a2")
BOUNDS = "def block_bounds(items, parts, part):\n    "


def files_of() -> dict[str, bytes]:
    """Files of a right submission."""
    with zipfile.ZipFile(io.BytesIO(submission_zip(A2, A2.standard, reference_files(A2, A2.standard)))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


@pytest.mark.parametrize("folder", ["", "a2/", "home/mia/a2/", "a2\\"])
@pytest.mark.parametrize(
    ("added", "flag"),
    [
        (["__MACOSX/a2/._blocks.py", ".DS_Store", "__pycache__/blocks.cpython-312.pyc", "handout.md"], ""),
        (["résumé.txt", ".vscode/settings.json", "../grader.py", "/etc/cron.d/x", "old/blocks.py"], "further files"),
        (["numpy.py"], "numpy.py"),
    ],
)
def test_files_that_are_no_part_of_it_are_left_out(folder: str, added: list[str], flag: str) -> None:
    names = [name if name.startswith(("/", "__MACOSX")) else f"{folder}{name}" for name in added]
    files = {f"{folder}{name}": content for name, content in files_of().items()}
    found = read_submission(A2, packed({**files, **dict.fromkeys(names, b"\0")}), [KIT])
    assert found.files == read_submission(A2, packed(files_of()), [KIT]).files
    assert [flag in one for one in found.flags] == [True] * bool(flag)


def test_a_missing_file_is_named_with_the_files_that_are_there() -> None:
    files = {**files_of(), "Blocks.py": b""}
    del files["blocks.py"]
    with pytest.raises(UngradableError, match=r"^blocks\.py: is missing; .* has Blocks\.py, assignment\.toml"):
        read_submission(A2, packed(files))
    with pytest.raises(UngradableError, match=r"the submission has no file$"):
        read_submission(A2, packed({}))


def _link(archive: zipfile.ZipFile) -> None:
    info = zipfile.ZipInfo("blocks.py")
    info.external_attr = 0o120777 << 16
    archive.writestr(info, "/etc/passwd")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("write", "reason"),
    [
        pytest.param(_link, "links", id="link"),
        pytest.param(lambda archive: archive.writestr("blocks.py", "x = 1"), "is there twice", id="twice"),
        pytest.param(
            lambda archive: [archive.writestr(f"{n}.txt", "") for n in range(10_001)],
            "more than 10,000 files",
            id="many",
        ),
    ],
)
def test_other_archives_are_refused(write: Callable[[zipfile.ZipFile], None], reason: str) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files_of().items():
            archive.writestr(name, content)
        write(archive)
    with pytest.raises(UngradableError, match=reason):
        read_submission(A2, stream.getvalue())


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archives_of_other_methods_than_deflate_are_refused(method: int, tmp_path: Path) -> None:
    path = tmp_path / "a2.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in {**files_of(), CASES: b"cases"}.items():
            archive.writestr(name, content)
    with pytest.raises(UngradableError, match=r"not a readable zip file: .* another method than deflate$"):
        read_submission(A2, path.read_bytes())
    with pytest.raises(DataError, match=r"not a readable zip file: .* another method than deflate$"):
        open_handed_out(path)


NESTED = f"{BOUNDS}return {' + '.join(['1'] * 900)}\n".encode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"def block_bounds(:", r"line 1: cannot be parsed: [^(]*$"),
        (b"\xff\xfe", "not text in UTF-8"),
        (b"x = " + b"(" * 5000 + b")" * 5000, "cannot be parsed"),
        (b"x = '\\N{" + b"a" * 10 + b"}'", "cannot be parsed"),
        (b"#" * (300 << 10), "larger than"),
        (b"a=b;" * 10_000, "more than 20,000 statements"),
        (b"x = 1\0", "cannot be parsed"),
        (NESTED, "nested|parsed"),
    ],
    ids=["syntax", "encoding", "brackets", "escape", "size", "statements", "null", "nested"],
)
def test_files_that_are_no_programs_are_refused(text: bytes, reason: str) -> None:
    with pytest.raises(UngradableError, match=rf"^blocks\.py.*({reason})"):
        read_submission(A2, submission_zip(A2, A2.standard, {"blocks.py": text}))


def test_reading_has_a_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions in functions, as many as may be; and a parser that does not end."""
    nested = "".join(f"{' ' * level}def f{level}():\n" for level in range(90)) + " " * 90 + "a=b+1;" * 1_500 + "\n"
    start = time.process_time()
    assert read_in_time(A2, packed({**files_of(), "blocks.py": nested.encode()})).files["blocks.py"] == nested
    assert time.process_time() - start < 5  # of this process, which only waits

    def endless(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr(reading, "READ_SECONDS", 1)
    monkeypatch.setattr(reading, "read_submission", endless)
    with pytest.raises(UngradableError, match="takes more than 1 s"):
        read_in_time(A2, b"")


def test_reading_has_a_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "read_submission", lambda *_: bytes(2 * reading.READ_BYTES))
    with pytest.raises(UngradableError, match="takes more than 512 MiB of memory"):
        read_in_time(A2, b"")
    monkeypatch.setattr(isolation, "MEMORY_LEFT", 1 << 60)  # of this machine, which may then have refused it
    with pytest.raises(MachineError, match="has no memory"):
        read_in_time(A2, b"")


def test_what_is_compared_with_the_reference_is_never_a_reason_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{BOUNDS}return f\"{{'\u00a0'.join(map(str, range(3)))}}\"\n"
    archive = packed({**files_of(), "blocks.py": text.encode()})
    assert read_in_time(A2, archive).files["blocks.py"] == text
    monkeypatch.setattr(reading, "copied_functions", lambda *_: 1 / 0)
    flag = "not compared with the reference and the library: ZeroDivisionError"
    assert read_in_time(A2, archive).flags[-1] == flag


def test_two_folders_of_the_assignment_are_refused() -> None:
    both = {f"{folder}/{name}": content for folder in ("a2", "a2 (1)") for name, content in files_of().items()}
    with pytest.raises(UngradableError, match=r"several folders of the assignment: a2 \(1\)/, a2/; hand in one"):
        read_submission(A2, packed(both))
    inside = {f"a2/{name}": content for name, content in {**files_of(), MANIFEST: files_of()[MANIFEST]}.items()}
    assert read_submission(A2, packed({**inside, f"a2/old/{MANIFEST}": b""})).files


def test_the_student_of_what_cannot_be_graded_is_known(tmp_path: Path) -> None:
    files = files_of()
    files[MANIFEST] = files[MANIFEST].replace(b'student = ""', b'student = "fay"')
    del files["blocks.py"]
    outcome = Grader(course_of(tmp_path, "a2"), A2, "none").grade(packed(files))
    assert (outcome.gradable, outcome.student) == (False, "fay")


def test_newer_syntax_than_that_of_the_grader_is_refused_at_home() -> None:
    text = f"{BOUNDS}\n    match items:\n        case _:\n            return 0, 0\n".encode()
    archive = packed({**files_of(), "blocks.py": text})
    assert read_submission(A2, archive, python="3.10").files
    with pytest.raises(UngradableError, match=r"blocks\.py, line \d+: cannot be parsed: .*3\.10"):
        read_submission(A2, archive, python="3.9")


def test_files_of_windows_are_read(tmp_path: Path) -> None:
    windows = {name: b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n") for name, content in files_of().items()}
    assert read_submission(A2, packed(windows), [KIT]).files == read_submission(A2, packed(files_of()), [KIT]).files
    start = start_files(A2, Manifest(assignment="a2", variant=A2.standard))
    write_files(tmp_path, {**start, **windows})
    assert not WorkFolder.open(tmp_path).sources()["blocks.py"].startswith("\ufeff")


RIGHT = f"""{BOUNDS}print("x" * 200_000)
    size, longer = divmod(items, parts)
    first = part * size + min(part, longer)
    return first, first + size + (part < longer)
"""


SENDING = f"""{BOUNDS}import json, os
    data = json.dumps({{{{"failure": ["{{0}}" + "{{1}}" * (1 + items % 9), ""]}}}}).encode()
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, len(data).to_bytes(4, "big") + bytes(4) + data)
        except OSError:
            pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RIGHT, ""),
        (f'{BOUNDS}raise type(f"I{{items}}_{{parts}}", (Exception,), {{}})()\n', "raised an exception"),
        (f"{BOUNDS}return 1 / 0\n", "raised an exception"),
        (SENDING.format("deadlock in ", "send"), "deadlock"),
        (SENDING.format("", "x"), "failed"),
    ],
)
def test_what_hidden_cases_print_and_raise_does_not_tell_their_inputs(text: str, message: str) -> None:
    """A function may print more than is kept, and the names of its exceptions are not shown."""
    key = TaskKey(A2, A2.task("bounds"), A2.standard, b"a key of 16 byte")
    with Worker(A2, {"blocks.py": text, "gradient.py": ""}, limit=deadline(10)) as worker:
        checks = check_task(worker, key, whole=False).checks
    assert {(check.message, check.passed) for check in checks if check.kind == "hidden"} == {(message, not message)}


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


def test_very_many_arrays_are_refused_by_both_sides() -> None:
    one, other = socket.socketpair()
    with one, other:
        with pytest.raises(FrameError, match="more than 1,000 arrays"):
            send_frame(one, {"x": [np.zeros(0)] * 1001})
        text = json.dumps({"x": [{"__array__": ["bool", [0]]}] * 1001}).encode()
        one.sendall(struct.pack(">II", len(text), 0) + text)
        with pytest.raises(FrameError, match="more than 1,000 arrays"):
            receive_frame(other)


def test_values_in_values_are_compared_or_refused() -> None:
    """Whatever their depth: functions of values are recursive."""
    one, other = socket.socketpair()
    with one, other:
        for levels in (*range(20, 40), *range(100, 1000, 50)):
            text = b'{"x": ' + b"[" * levels + b"]" * levels + b"}"
            one.sendall(struct.pack(">II", len(text), 0) + text)
            try:
                outputs = receive_frame(other)
            except FrameError:
                assert levels >= 32
                continue
            answer = Answer(outputs=(outputs,))
            assert first_difference(answer.outputs, [{"x": 1.0}], 1e-9) is not None
            assert answer_digest(answer, answer, b"", with_traffic=True)


def test_code_that_takes_more_bytes_in_messages_is_run() -> None:
    a6 = load_assignment("a6")
    files = dict.fromkeys(a6.files, "#" + "\1" * (CODE_BYTES - 1))
    with Worker(a6, files, limit=deadline(10)) as worker:
        failure = worker.run(a6.task("distance"), Case("", ({"stages": 1, "minibatches": 1},)), a6.standard).failure
    assert failure is not None
    assert failure.kind == "no function"


def test_large_values_are_compared_without_their_texts() -> None:
    own = {"x": [["y" * 1000] * 100] * 1_000}
    start = time.process_time()
    difference = first_difference([own], [{"x": [["y" * 1000] * 100] * 999 + [["z"]]}], 1e-9)
    assert difference is not None
    assert len(difference.text) < 1000
    assert time.process_time() - start < deadline(10)


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
    write_reports(A2, graded, out, "hints")
    found = {str(path.relative_to(out / "feedback")) for path in (out / "feedback").rglob("*.md")}
    assert found == {"a/b.md", "a-b.md", "C.md", "large.md"}
