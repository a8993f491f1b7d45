"""The package for Gradescope and its results, in a root laid out as Gradescope documents it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from course.tests.gradescope_cases import OUTCOME, RULES, GradescopeResults, package_of, reference, unpack
from course.tests.made import allow_kit
from hybridnn.cli.main import main
from hybridnn.errors import DataError, SettingError
from hybridnn_course.outcome import Outcome
from hybridnn_course.submission import read_submission
from hybridnn_course.work_folder import make_archive
from hybridnn_course_staff.gradescope import UNFINISHED, autograde, build_package, gradescope_results
from hybridnn_course_staff.grading import Grader
from hybridnn_course_staff.installed import installed_wheels
from hybridnn_course_staff.term import KEY, Course, create_course
from mpi_runner.slowness import deadline

ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="Gradescope grades as root, to switch users")


@pytest.fixture
def course(tmp_path: Path) -> Course:
    create_course(tmp_path / "course", "Spring 2027", ["a2"])
    return allow_kit(tmp_path / "course")


def executable(path: Path, text: str = f'exec "{sys.executable}" -m hybridnn "$@"') -> Path:
    """A script; by default the command hybridnn as it would be installed, with this interpreter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def environment(**settings: object) -> dict[str, str]:
    """Variables of Gradescope."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": paths, **{name: str(value) for name, value in settings.items()}}


def root_of(course: Course, tmp_path: Path, **changed: str) -> Path:
    """The folders of Gradescope after its image was built and the reference arrived, with other text of some files."""
    base = tmp_path / "root/autograder"
    unpack(course, base / "source")
    (base / "run_autograder").write_bytes((base / "source/run_autograder").read_bytes())
    (base / "run_autograder").chmod(0o755)
    (base / "submission").mkdir()
    for name, text in {**reference(course), **changed}.items():
        (base / "submission" / name).write_text(text)
    metadata = {"id": 123456, "assignment": {"group_size": None}, "users": [{"email": "one@example.com", "id": 1234}]}
    (base / "submission_metadata.json").write_text(json.dumps(metadata))
    return base.parent


def results_of(root: Path) -> GradescopeResults:
    return GradescopeResults.model_validate_json((root / "autograder/results/results.json").read_text())


# -- results ----------------------------------------------------------------------------------------------------------


def test_results_are_as_documented() -> None:
    results = GradescopeResults.model_validate(gradescope_results(OUTCOME))
    assert results.score == 88
    assert sum(test.score for test in results.tests) == results.score
    assert sum(test.max_score for test in results.tests) == 100
    assert [test.number for test in results.tests] == ["1.1", "1.2", "1.3", "1.4", "2.1"]
    assert [test.status for test in results.tests] == ["failed"] * 4 + ["passed"]
    assert results.tests[0].tags == ["gradient", "public", "average-of-averages"]
    assert results.tests[0].output.count("Which number is the same") == 1
    assert results.stdout_visibility == "hidden"
    (entry,) = results.leaderboard
    assert (entry.name, entry.value, entry.order) == ("gradient: virtual time / allowed", 1.25, "asc")
    later = gradescope_results(OUTCOME, "after_due_date")["tests"]
    assert [test["visibility"] for test in later] == ["visible", "after_due_date", "visible", "visible", "visible"]


def test_messages_cannot_end_their_quotation() -> None:
    output = gradescope_results(OUTCOME)["tests"][0]["output"]
    quoted = re.search(r"\n(`{4,})\n(.*?)\n\1\n", output, re.DOTALL)
    assert quoted is not None
    assert "<b>not</b> quoted" in quoted[2]
    assert not {"\x1b", "\x00"} & set(output)


def test_only_the_staff_sees_flags(course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, log = root_of(course, tmp_path), io.StringIO()
    monkeypatch.setattr(Grader, "grade", lambda *_, **__: OUTCOME)
    autograde(root, out=log, isolation="none")
    assert "ctypes" in log.getvalue()
    assert "ctypes" not in results_of(root).model_dump_json()


# -- packages ---------------------------------------------------------------------------------------------------------


def test_packages_are_the_same_bytes_again(course: Course) -> None:
    assert package_of(course) == package_of(course)


def test_only_the_owner_reads_the_key(course: Course, tmp_path: Path) -> None:
    (key,) = unpack(course, tmp_path / "package").rglob(KEY)
    assert key.stat().st_mode & 0o777 == 0o600
    assert bytes.fromhex(key.read_text()) == course.key


def test_make_writes_the_package_with_its_options(course: Course, tmp_path: Path) -> None:
    command = ["course", "make", "a2", "--course", str(course.folder), "--gradescope", "--pip", RULES]
    command += ["--out", str(tmp_path), "--hidden-cases", "after_due_date"]
    with pytest.raises(SystemExit, match="0"):
        main(command)
    a2 = course.assignment("a2")
    assert (tmp_path / "a2-gradescope.zip").read_bytes() == build_package(course, a2, RULES, "after_due_date")
    with pytest.raises(SettingError, match="after_published"):
        build_package(course, a2, RULES, "soon")


def test_other_folders_and_instructions_are_refused(course: Course, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        autograde(tmp_path / "nothing")
    root = root_of(course, tmp_path)
    (root / "autograder/source/autograde.json").write_text('{"assignment": "a2", "hidden_cases": "soon"}')
    with pytest.raises(DataError, match=r"autograde\.json: hidden_cases"):
        autograde(root)


def test_wheels_have_every_package_and_right_digests() -> None:
    files = {}
    for name, content in installed_wheels().items():
        assert name.endswith("-py3-none-any.whl")
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            found = {entry: archive.read(entry) for entry in archive.namelist()}
        record = next(entry for entry in found if entry.endswith("RECORD"))
        rows = list(csv.reader(found[record].decode().splitlines()))
        assert {row[0] for row in rows} == set(found)
        for entry, digest, _ in rows:
            if entry != record:
                own = base64.urlsafe_b64encode(hashlib.sha256(found[entry]).digest()).rstrip(b"=").decode()
                assert digest == f"sha256={own}"
        files |= found
    assert {
        *("hybridnn/datasets/digits.npz", "hybridnn/hpc_jobs/train.sbatch", "hybridnn/py.typed"),
        *("hybridnn_course_staff/assignments/a2_batch/handout.md", "hybridnn_course/cli/app.py"),
    } <= set(files)


@pytest.mark.slow
def test_wheels_install(tmp_path: Path) -> None:
    for name, content in installed_wheels().items():
        (tmp_path / name).write_bytes(content)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    wheels = [tmp_path / name for name in installed_wheels()]
    subprocess.run([*pip, "--target", tmp_path / "site", *wheels], check=True, cwd=tmp_path)
    code = "import hybridnn_course_staff.assignments as a; print(a.__path__[0])\n"
    code += "from hybridnn.cli.main import main; main(['course', 'new', 'term', 'a2', '--term', 'T'])"
    run = subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-B", "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert run.stdout.splitlines()[0] == str(tmp_path / "site/hybridnn_course_staff/assignments")
    assert (tmp_path / "term/course.toml").exists()


# -- jobs of Gradescope -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_root
def test_gradescope_installs_and_grades(course: Course, tmp_path: Path) -> None:
    root = root_of(course, tmp_path)
    base, tools, log = root / "autograder", tmp_path / "tools", tmp_path / "pip.txt"
    target = tmp_path / "opt"
    venv = f'mkdir -p "$3/bin" && cp {tools}/pip {tools}/hybridnn "$3/bin"'
    executable(tools / "python3", f'[ "$1" = -c ] || {{ {venv}; }}')
    solutions = target / "lib/python3.11/site-packages/hybridnn_course_staff"
    executable(tools / "pip", f'echo "$@" > {log}; mkdir -p {solutions}')
    executable(tools / "hybridnn")
    settings = environment(HYBRIDNN_ENVIRONMENT=target, PATH=f"{tools}:/usr/bin:/bin")
    subprocess.run(["bash", base / "source/setup.sh"], env=settings, check=True, cwd=tmp_path)
    assert log.read_text().split() == ["install", "--no-cache-dir", RULES]
    assert [path.stat().st_mode & 0o077 for path in (base / "source", solutions)] == [0, 0]

    run = subprocess.run([base / "run_autograder"], env=settings, cwd=base, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert results_of(root).score == 100
    assert all(test.status == "passed" for test in results_of(root).tests)
    assert "one@example.com" in run.stdout
    for folder in ("source", "results", "submission"):
        assert (base / folder).stat().st_mode & 0o007 == 0


@pytest.mark.slow
@needs_root
def test_a_job_that_is_killed_or_not_installed_has_results(course: Course, tmp_path: Path) -> None:
    root = root_of(course, tmp_path, **{"blocks.py": "while True:\n    pass\n"})
    base, settings = root / "autograder", environment(HYBRIDNN_ENVIRONMENT=tmp_path / "opt")
    assert subprocess.run([base / "run_autograder"], env=settings, capture_output=True).returncode != 0
    assert results_of(root).score == 0
    executable(tmp_path / "opt/bin/hybridnn")
    path, seen, end = base / "results/results.json", set[int](), time.monotonic() + deadline(60)
    path.unlink()
    with subprocess.Popen([base / "run_autograder"], env=settings, start_new_session=True) as process:
        while len(seen) < 2:  # the script writes results, and the command anew before it grades
            assert process.poll() is None
            assert time.monotonic() < end
            seen |= {path.stat().st_ino} if path.exists() else set()
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    assert (results_of(root).score, results_of(root).output) == (0, UNFINISHED)


def graded(root: Path) -> list[tuple[Any, str]]:
    """Data and student that the grader is given."""
    found: list[tuple[Any, str]] = []
    autograde(root, out=io.StringIO(), grade=lambda *given: found.append(given[2:]) or OUTCOME)
    return found


def test_the_first_user_of_a_group_is_the_student(course: Course, tmp_path: Path) -> None:
    """Without the metadata, nobody is; where every student has a variant, that is an error."""
    root = root_of(course, tmp_path)
    path = root / "autograder/submission_metadata.json"
    path.write_text(json.dumps({"users": [{"email": "b@example.com"}, {"email": "a@example.com"}]}))
    assert [student for _, student in graded(root)] == ["a@example.com"]
    path.unlink()
    assert [student for _, student in graded(root)] == [""]
    settings = root / "autograder/source/course/course.toml"
    settings.write_text(f"per_student = true\n{settings.read_text()}".replace("per_student = false", ""))
    with pytest.raises(DataError, match="who the student is"):
        graded(root)


def test_results_are_written_last(course: Course, tmp_path: Path) -> None:
    root = root_of(course, tmp_path)
    path = root / "autograder/results/results.json"

    def grade(*_: object) -> Outcome:
        assert results_of(root).output == UNFINISHED
        path.unlink()
        path.symlink_to(tmp_path / "elsewhere")  # what a submission would need other rights for
        return OUTCOME

    autograde(root, out=io.StringIO(), grade=grade)
    assert not path.is_symlink()
    assert not (tmp_path / "elsewhere").exists()
    assert results_of(root).score == 88


# -- submissions ------------------------------------------------------------------------------------------------------


def _add_files(folder: Path) -> None:
    (folder / "handout.md").write_text("")
    (folder / ".git").mkdir()


def _put_into_a_folder(folder: Path) -> None:
    (folder / "__MACOSX").mkdir()
    (folder / "home/mia/a2").mkdir(parents=True)
    for path in [path for path in folder.iterdir() if path.is_file()]:
        path.rename(folder / "home/mia/a2" / path.name)
    (folder / "résumé.txt").write_text("of mia")


def _pack(folder: Path) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in files:
        (folder / name).unlink()
    (folder / "a2.zip").write_bytes(make_archive(files))


@pytest.mark.parametrize("change", [_add_files, _put_into_a_folder, _pack])
def test_submissions_are_found(course: Course, tmp_path: Path, change: Callable[[Path], None]) -> None:
    root = root_of(course, tmp_path)
    change(root / "autograder/submission")
    ((data, _),) = graded(root)
    if change is _pack:
        assert data == (root / "autograder/submission/a2.zip").read_bytes()
    else:
        read = read_submission(course.assignment("a2"), data)
        assert set(read.files) == {"blocks.py", "gradient.py"}
        assert ["résumé.txt" in flag for flag in read.flags] == [True] * (change is _put_into_a_folder)


def _link_to_the_key(folder: Path) -> None:
    (folder / "blocks.py").unlink()
    (folder / "blocks.py").symlink_to(folder.parent / "source/course" / KEY)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_link_to_the_key, "links are not allowed"),
        (lambda folder: os.truncate(folder / "blocks.py", 1 << 21), "larger than"),
    ],
)
def test_links_and_large_files_are_refused(
    course: Course, tmp_path: Path, change: Callable[[Path], None], reason: str
) -> None:
    root = root_of(course, tmp_path)
    change(root / "autograder/submission")
    assert graded(root) == []
    assert reason in results_of(root).output
