"""Packages and results for grading platforms, in roots laid out as the platforms document them."""

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
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from course.made import allow_kit, reference_files
from course.platform_results import (
    AutolabScores,
    GradescopeResults,
    PrairieLearnResults,
    autolab_feedback,
)
from hybridnn.course import platforms
from hybridnn.course.grading import Grader
from hybridnn.course.outcome import CheckOutcome, Outcome, TaskOutcome
from hybridnn.course.platforms import AUTOGRADERS, PLATFORMS, Kit, autograde, build_package
from hybridnn.course.platforms.autolab import problem_name
from hybridnn.course.platforms.gradescope import gradescope_results
from hybridnn.course.platforms.installed import PACKAGES, installed_wheel
from hybridnn.course.platforms.kit import yaml_text
from hybridnn.course.platforms.prairielearn import LARGEST, prairielearn_results
from hybridnn.course.platforms.texts import LONGEST, UNFINISHED
from hybridnn.course.term import KEY, Course, create_course
from hybridnn.course.work_folder import handed_out_files, make_archive
from hybridnn.errors import DataError, EnvironmentProblem, SettingError
from mpi_runner.slowness import deadline

ROOT = Path(__file__).parents[2]
RULES = "hybridnn==0.1.0"  # what pip installs, so that packages of these tests have no wheel
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="platforms grade as root, to switch users")

WRONG = CheckOutcome(
    name="10 samples",
    kind="public",
    points=1,
    possible=4,
    message="```\n<b>not</b> quoted\x1b[31m\x00",
    hint="Which number is the same on all ranks?",
    mistake="average-of-averages",
)
OUTCOME = Outcome(
    assignment="a2",
    term="Spring 2027",
    student="one@example.com",
    variant={"axis": "choice"},
    tasks=(
        TaskOutcome(
            name="gradient",
            checks=(
                CheckOutcome(name="one rank", kind="public", points=4, possible=4),
                WRONG,
                CheckOutcome(name="hidden case 1", kind="hidden", points=0, possible=6, message="wrong outputs"),
                CheckOutcome(name="virtual time", kind="budget", points=3, possible=4, ratio=1.25),
                CheckOutcome(name="digits", kind="whole", points=0, possible=2, not_tried=True),
            ),
        ),
        TaskOutcome(name="bounds", checks=(CheckOutcome(name="12 items", kind="public", points=80, possible=80),)),
    ),
    flags=("gradient.py imports ctypes",),
)
UNGRADABLE = Outcome(assignment="a2", gradable=False, reason="blocks.py: is missing")


@pytest.fixture
def course(tmp_path: Path) -> Course:
    create_course(tmp_path / "course", "Spring 2027", ["a2"])
    return allow_kit(tmp_path / "course", "atexit", "os", "pathlib")


def reference(course: Course) -> dict[str, str]:
    """The reference solution as a submission."""
    assignment = course.assignment("a2")
    files = handed_out_files(course, assignment) | reference_files(assignment, course.variant(assignment))
    return {name: files[name] for name in ("assignment.toml", *assignment.files)}


def kit_of(course: Course, **settings: Any) -> Kit:
    return Kit(course, course.assignment("a2"), **{"requirement": RULES, **settings})


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def unpack(platform: str, kit: Kit, folder: Path) -> Path:
    """The package, unpacked with the modes of its files."""
    package = build_package(platform, kit)
    folder.mkdir(parents=True)
    archive = folder.parent / package.name
    archive.write_bytes(package.content)
    if archive.suffix == ".tar":
        subprocess.run(["tar", "xf", archive, "-C", folder], check=True)
    else:
        with zipfile.ZipFile(archive) as opened:
            for entry in opened.infolist():
                os.chmod(opened.extract(entry, folder), entry.external_attr >> 16 & 0o777)
    return folder


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def installed_command(path: Path) -> Path:
    """The command hybridnn as it would be installed, with this interpreter."""
    return executable(path, f'exec {sys.executable} -m hybridnn "$@"')


def environment(**settings: object) -> dict[str, str]:
    """Variables of a platform: its make is not started by another make, as these tests may be."""
    paths = os.pathsep.join(path for path in sys.path if path)
    inherited = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return {**inherited, "PYTHONPATH": paths, **{name: str(value) for name, value in settings.items()}}


# -- results ----------------------------------------------------------------------------------------------------------


def test_gradescope_results_are_as_documented() -> None:
    results = GradescopeResults.model_validate(gradescope_results(OUTCOME))
    assert results.score == 88
    assert sum(test.score for test in results.tests) == results.score
    assert sum(test.max_score for test in results.tests) == 100
    assert [test.number for test in results.tests] == ["1.1", "1.2", "1.3", "1.4", "2.1"]
    assert [test.status for test in results.tests] == ["failed"] * 4 + ["passed"]
    assert results.tests[0].tags == ["gradient", "public", "average-of-averages"]
    assert results.tests[0].output.count("Which number is the same") == 1
    assert results.stdout_visibility == "hidden"
    assert results.leaderboard[0].model_dump() == {
        "name": "gradient: virtual time / allowed",
        "value": 1.25,
        "order": "asc",
    }


def test_students_of_gradescope_see_no_flags_and_the_staff_does(course: Course, tmp_path: Path) -> None:
    root, log = gradescope_root(course, tmp_path, reference(course)), io.StringIO()
    autograde("gradescope", root, out=log, grade=lambda *_: OUTCOME)
    assert "ctypes" not in (root / "autograder/results/results.json").read_text()
    assert "ctypes" in log.getvalue()


def test_the_staff_reads_where_namespaces_are_missing(
    course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, log = gradescope_root(course, tmp_path, reference(course)), io.StringIO()
    monkeypatch.setattr(platforms, "missing_protection", lambda mode: f"{mode}: no namespaces")
    monkeypatch.setattr(Grader, "grade", lambda *_, **__: OUTCOME)
    autograde("gradescope", root, out=log, isolation="none")
    assert "look at: none: no namespaces" in log.getvalue()
    assert "no namespaces" not in (root / "autograder/results/results.json").read_text()


def test_messages_cannot_end_their_quotation() -> None:
    output = gradescope_results(OUTCOME)["tests"][0]["output"]
    quoted = re.search(r"\n(`{4,})\n(.*?)\n\1\n", output, re.DOTALL)
    assert quoted is not None
    assert "<b>not</b> quoted" in quoted[2]
    assert "\x1b" not in output
    assert "\x00" not in output


def test_hidden_cases_of_gradescope_can_wait_for_the_due_date() -> None:
    tests = gradescope_results(OUTCOME, "after_due_date")["tests"]
    assert [test["visibility"] for test in tests] == ["visible", "after_due_date", "visible", "visible", "visible"]


def test_prairielearn_results_are_as_documented() -> None:
    results = PrairieLearnResults.model_validate(prairielearn_results(OUTCOME))
    assert results.score == pytest.approx(0.88)
    assert sum(test.points for test in results.tests) == 88
    assert "Which number is the same" in results.tests[0].message
    ungradable = PrairieLearnResults.model_validate(prairielearn_results(UNGRADABLE))
    assert not ungradable.gradable
    assert "blocks.py: is missing" in ungradable.format_errors[0]
    with pytest.raises(ValidationError):
        PrairieLearnResults.model_validate({"gradable": True})


@pytest.mark.parametrize("character", ["\x01", "\U0001f980", '"', "\ud800"])
def test_results_stay_below_the_limit_of_prairielearn(character: str) -> None:
    check = WRONG.model_copy(update={"message": character * 10**5})
    task = TaskOutcome(name="gradient", checks=(check,) * 20)
    content = json.dumps(prairielearn_results(OUTCOME.model_copy(update={"tasks": (task,) * 5})), ensure_ascii=False)
    assert len(content.encode()) < LARGEST
    assert len(content) > 50 * LONGEST


def test_larger_results_are_an_error(course: Course, tmp_path: Path) -> None:
    task = TaskOutcome(name="gradient", checks=(WRONG.model_copy(update={"message": "x" * 10**5}),) * 1000)
    root = prairielearn_root(course, tmp_path, reference(course))
    with pytest.raises(EnvironmentProblem, match="PrairieLearn takes"):
        autograde("prairielearn", root, grade=lambda *_: OUTCOME.model_copy(update={"tasks": (task,)}))
    assert json.loads((root / "grade/results/results.json").read_text())["gradable"] is False


# -- packages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", PLATFORMS)
def test_packages_are_the_same_bytes_again(course: Course, platform: str) -> None:
    assert build_package(platform, kit_of(course)) == build_package(platform, kit_of(course))


@pytest.mark.parametrize("platform", AUTOGRADERS)
def test_only_the_owner_reads_the_key(course: Course, tmp_path: Path, platform: str) -> None:
    unpacked = unpack(platform, kit_of(course), tmp_path / "package")
    for archive in unpacked.rglob("autograde.tar"):
        subprocess.run(["tar", "xf", archive, "-C", archive.parent], check=True)
    keys = list(unpacked.rglob(KEY))
    assert len(keys) == 1
    assert keys[0].stat().st_mode & 0o777 == 0o600
    assert bytes.fromhex(keys[0].read_text()) == course.key


def test_package_of_github_has_no_key(course: Course, tmp_path: Path) -> None:
    unpacked = unpack("github", kit_of(course), tmp_path / "package")
    for path in unpacked.rglob("*"):
        assert path.name != KEY
        assert path.is_dir() or course.key.hex().encode() not in path.read_bytes()


@pytest.mark.parametrize("platform", ["autolab", "prairielearn", "github"])
def test_variants_of_students_need_a_platform_that_names_them(tmp_path: Path, platform: str) -> None:
    course = create_course(tmp_path / "course", "Spring 2027", ["a2"], per_student=True)
    with pytest.raises(SettingError, match="who the student is"):
        build_package(platform, kit_of(course))


def test_make_writes_packages_with_its_options(course: Course, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hybridnn", "course", "make", "a2", "--course", course.folder]
    command += ["--for", "gradescope, prairielearn", "--pip", RULES, "--image", "us/grader", "--out", tmp_path]
    subprocess.run([*command, "--hidden-cases", "after_due_date"], env=environment(), check=True, capture_output=True)
    kit = kit_of(course, image="us/grader", hidden_cases="after_due_date")
    for platform in ("gradescope", "prairielearn"):
        package = build_package(platform, kit)
        assert (tmp_path / package.name).read_bytes() == package.content
    with pytest.raises(SettingError, match="after_published"):
        kit_of(course, hidden_cases="soon")


def test_unknown_platforms_are_refused(course: Course, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="gradescope"):
        build_package("moodle", kit_of(course))
    with pytest.raises(SettingError, match="gradescope"):
        autograde("moodle", tmp_path)
    with pytest.raises(SettingError, match=r"its workflow runs `hybridnn course check`"):
        autograde("github", tmp_path)


def test_wheel_has_every_package_and_right_digests() -> None:
    name, content = installed_wheel()
    assert name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {entry: archive.read(entry) for entry in archive.namelist()}
    record = next(entry for entry in files if entry.endswith("RECORD"))
    rows = list(csv.reader(files[record].decode().splitlines()))
    assert {row[0] for row in rows} == set(files)
    for entry, digest, _ in rows:
        if entry != record:
            own = base64.urlsafe_b64encode(hashlib.sha256(files[entry]).digest()).rstrip(b"=").decode()
            assert digest == f"sha256={own}"
    mapped = re.search(r"MAPPED = \{(.*?)\}", (ROOT / "setup.py").read_text(encoding="utf-8"))
    assert mapped is not None
    assert set(re.findall(r'"(hybridnn\.\w+)":', mapped[1])) | {"hybridnn"} == set(PACKAGES)
    for needed in ("hybridnn/datasets/digits.npz", "hybridnn/assignments/a2_batch/handout.md", "hybridnn/py.typed"):
        assert needed in files


def test_wheel_installs(tmp_path: Path) -> None:
    name, content = installed_wheel()
    (tmp_path / name).write_bytes(content)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", tmp_path / "site", tmp_path / name], check=True, cwd=tmp_path)
    code = "import hybridnn.datasets, hybridnn.assignments as a; print(a.__path__[0])"
    run = subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-B", "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert run.stdout.strip() == str(tmp_path / "site/hybridnn/assignments")


def test_yaml_is_read_back() -> None:
    yaml = pytest.importorskip("yaml")
    value = {"a": {"b": "c: d", "e": 1.5, "f": True}, "g": [{"h": "x", "i": {"j": 2}}, {"k": ["l", "m"]}], "n": "o\np"}
    assert yaml.safe_load(yaml_text(value)) == {**value, "n": "o\np\n"}


# -- Gradescope -------------------------------------------------------------------------------------------------------


def gradescope_root(course: Course, tmp_path: Path, submission: dict[str, str], **settings: Any) -> Path:
    """The folders of Gradescope after its image was built and a submission arrived."""
    base = tmp_path / "root/autograder"
    unpack("gradescope", kit_of(course, **settings), base / "source")
    (base / "run_autograder").write_bytes((base / "source/run_autograder").read_bytes())
    (base / "run_autograder").chmod(0o755)
    write(base / "submission", submission)
    metadata = {
        "id": 123456,
        "created_at": "2027-02-01T14:22:32.365935-07:00",
        "assignment": {"due_date": "2027-02-02T23:00:00.000000-07:00", "group_size": None, "id": 25828},
        "submission_method": "upload",
        "users": [{"email": "one@example.com", "id": 1234, "name": "Student User"}],
        "previous_submissions": [],
    }
    (base / "submission_metadata.json").write_text(json.dumps(metadata))
    return base.parent


@needs_root
def test_gradescope_installs_and_grades(course: Course, tmp_path: Path) -> None:
    root = gradescope_root(course, tmp_path, reference(course))
    base, tools, log = root / "autograder", tmp_path / "tools", tmp_path / "pip.txt"
    target = tmp_path / "opt"
    venv = f'mkdir -p "$3/bin" && cp {tools}/pip {tools}/hybridnn "$3/bin"'
    executable(tools / "python3", f'[ "$1" = -c ] || {{ {venv}; }}')
    executable(tools / "pip", f'echo "$@" > {log}')
    installed_command(tools / "hybridnn")
    settings = environment(HYBRIDNN_ENVIRONMENT=target, PATH=f"{tools}:/usr/bin:/bin")
    subprocess.run(["bash", base / "source/setup.sh"], env=settings, check=True, cwd=tmp_path)
    assert log.read_text().split() == ["install", "--no-cache-dir", RULES]
    assert base.joinpath("source").stat().st_mode & 0o077 == 0

    run = subprocess.run([base / "run_autograder"], env=settings, cwd=base, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    results = GradescopeResults.model_validate_json((base / "results/results.json").read_text())
    assert results.score == 100
    assert all(test.status == "passed" for test in results.tests)
    assert "one@example.com" in run.stdout
    for folder in ("source", "results", "submission"):
        assert (base / folder).stat().st_mode & 0o007 == 0


@needs_root
def test_gradescope_killed_after_a_second_has_results(course: Course, tmp_path: Path) -> None:
    endless = {**reference(course), "blocks.py": "while True:\n    pass\n"}
    root = gradescope_root(course, tmp_path, endless)
    base = root / "autograder"
    installed_command(tmp_path / "opt/bin/hybridnn")
    settings = environment(HYBRIDNN_ENVIRONMENT=tmp_path / "opt")
    process = subprocess.Popen([base / "run_autograder"], env=settings, start_new_session=True)
    time.sleep(1)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    results = GradescopeResults.model_validate_json((base / "results/results.json").read_text())
    assert results.score == 0
    assert results.output == UNFINISHED


def test_gradescope_that_is_not_installed_has_results(course: Course, tmp_path: Path) -> None:
    base = gradescope_root(course, tmp_path, reference(course)) / "autograder"
    settings = {**os.environ, "HYBRIDNN_ENVIRONMENT": str(tmp_path / "nothing")}
    assert subprocess.run([base / "run_autograder"], env=settings, capture_output=True).returncode != 0
    assert GradescopeResults.model_validate_json((base / "results/results.json").read_text()).score == 0


def test_gradescope_names_the_first_user_of_a_group(course: Course, tmp_path: Path) -> None:
    root, found = gradescope_root(course, tmp_path, reference(course)), []
    path = root / "autograder/submission_metadata.json"
    path.write_text(json.dumps({"users": [{"email": "b@example.com"}, {"email": "a@example.com"}]}))
    autograde("gradescope", root, out=io.StringIO(), grade=lambda *given: found.append(given[3]) or OUTCOME)
    path.unlink()
    autograde("gradescope", root, out=io.StringIO(), grade=lambda *given: found.append(given[3]) or OUTCOME)
    assert found == ["a@example.com", ""]


def test_variants_of_students_need_the_metadata(tmp_path: Path) -> None:
    course = create_course(tmp_path / "course", "Spring 2027", ["a2"], per_student=True)
    root = gradescope_root(course, tmp_path, {})
    autograde("gradescope", root, out=io.StringIO(), grade=lambda *_: OUTCOME)
    (root / "autograder/submission_metadata.json").unlink()
    with pytest.raises(DataError, match="who the student is"):
        autograde("gradescope", root, grade=lambda *_: OUTCOME)


def test_results_are_written_last(course: Course, tmp_path: Path) -> None:
    root = gradescope_root(course, tmp_path, reference(course))
    path = root / "autograder/results/results.json"

    def grade(*_: object) -> Outcome:
        assert json.loads(path.read_text())["output"] == UNFINISHED
        path.unlink()
        path.symlink_to(tmp_path / "elsewhere")  # what a submission would need other rights for
        return OUTCOME

    autograde("gradescope", root, out=io.StringIO(), grade=grade)
    assert not path.is_symlink()
    assert not (tmp_path / "elsewhere").exists()
    assert GradescopeResults.model_validate_json(path.read_text()).score == 88


# -- submissions ------------------------------------------------------------------------------------------------------


def given_data(course: Course, tmp_path: Path, change: Callable[[Path], None]) -> tuple[list[Any], Path]:
    """What the grader is given after a change of the folder of the submission."""
    root, found = gradescope_root(course, tmp_path, reference(course)), []
    change(root / "autograder/submission")
    autograde("gradescope", root, out=io.StringIO(), grade=lambda *given: found.append(given[2]) or OUTCOME)
    return found, root / "autograder/results/results.json"


def test_other_files_are_left_out(course: Course, tmp_path: Path) -> None:
    def change(folder: Path) -> None:
        (folder / "handout.md").write_text("")
        (folder / ".git").mkdir()

    found, _ = given_data(course, tmp_path, change)
    assert sorted(found[0]) == ["assignment.toml", "blocks.py", "gradient.py"]


def test_files_may_lie_in_a_folder(course: Course, tmp_path: Path) -> None:
    def change(folder: Path) -> None:
        (folder / "__MACOSX").mkdir()
        (folder / "a2").mkdir()
        for path in [path for path in folder.iterdir() if path.is_file()]:
            path.rename(folder / "a2" / path.name)

    found, _ = given_data(course, tmp_path, change)
    assert sorted(found[0]) == ["assignment.toml", "blocks.py", "gradient.py"]


def test_an_archive_is_a_submission(course: Course, tmp_path: Path) -> None:
    archive = make_archive(reference(course))

    def change(folder: Path) -> None:
        for path in folder.iterdir():
            path.unlink()
        (folder / "a2.zip").write_bytes(archive)

    assert given_data(course, tmp_path, change)[0] == [archive]


def test_links_to_the_key_are_refused(course: Course, tmp_path: Path) -> None:
    def change(folder: Path) -> None:
        (folder / "blocks.py").unlink()
        (folder / "blocks.py").symlink_to(folder.parent / "source/course" / KEY)

    found, results = given_data(course, tmp_path, change)
    assert found == []
    assert "links are not allowed" in json.loads(results.read_text())["output"]


def test_large_files_are_refused(course: Course, tmp_path: Path) -> None:
    found, results = given_data(course, tmp_path, lambda folder: os.truncate(folder / "blocks.py", 1 << 21))
    assert found == []
    assert "larger than" in json.loads(results.read_text())["output"]


@pytest.mark.parametrize("platform", AUTOGRADERS)
def test_folders_of_no_platform_are_refused(tmp_path: Path, platform: str) -> None:
    with pytest.raises(DataError, match="no such folder"):
        autograde(platform, tmp_path)


def test_errors_of_the_command_have_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hybridnn", "course", "autograde", "--platform", "gradescope", "--root", tmp_path]
    run = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert run.returncode == 2
    assert len(run.stderr.strip().splitlines()) == 1


def test_packages_of_another_platform_are_refused(course: Course, tmp_path: Path) -> None:
    root = gradescope_root(course, tmp_path, reference(course))
    (root / "autograder").rename(root / "grade")
    (root / "grade/source").rename(root / "grade/tests")
    (root / "grade/submission").rename(root / "grade/student")
    with pytest.raises(DataError, match="for gradescope, not for prairielearn"):
        autograde("prairielearn", root)


# -- PrairieLearn -----------------------------------------------------------------------------------------------------


def prairielearn_root(course: Course, tmp_path: Path, submission: dict[str, str]) -> Path:
    """The folders of PrairieLearn in the container of a grading job."""
    package = unpack("prairielearn", kit_of(course), tmp_path / "package")
    base = tmp_path / "root/grade"
    base.mkdir(parents=True)
    (package / "questions/a2/tests").rename(base / "tests")
    write(base / "student", submission)
    write(base / "data", {"data.json": json.dumps({"variant_seed": 123, "params": {}})})
    (base / "serverFilesCourse").mkdir()
    return base.parent


@needs_root
def test_prairielearn_grades_and_keeps_the_key(course: Course, tmp_path: Path) -> None:
    root = prairielearn_root(course, tmp_path, reference(course))
    key = root / "grade/tests/course" / KEY
    read = f"pathlib.Path({str(key)!r}).read_bytes()"
    spy = f"import pathlib\ndef block_bounds(*_):\n    raise ValueError({read})\nminibatches = block_bounds\n"
    (root / "grade/student/blocks.py").write_text(spy)
    info = json.loads((tmp_path / "package/questions/a2/info.json").read_text())
    options = info["externalGradingOptions"]
    assert info["gradingMethod"] == "External"
    assert 120 < options["timeout"] <= 600
    entry = options["entrypoint"].split(" ")
    installed_command(tmp_path / "hybridnn")
    command = [tmp_path / "hybridnn", *entry[1:], "--root", root]
    run = subprocess.run(command, env=environment(), cwd="/", capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    results = PrairieLearnResults.model_validate_json((root / "grade/results/results.json").read_text())
    assert results.score == pytest.approx(0.65)
    assert {test.points for test in results.tests[:4]} == {0}
    assert "Error" in results.tests[0].output
    assert course.key.hex() not in results.model_dump_json()


def test_prairielearn_takes_no_attempt_for_bad_submissions(course: Course, tmp_path: Path) -> None:
    files = reference(course)
    del files["gradient.py"]
    root = prairielearn_root(course, tmp_path, files)
    command = [sys.executable, "-m", "hybridnn", "course", "autograde", "--platform", "prairielearn"]
    command += ["--root", str(root), "--isolation", "none"]
    subprocess.run(command, env=environment(), check=True, capture_output=True)
    results = PrairieLearnResults.model_validate_json((root / "grade/results/results.json").read_text())
    assert not results.gradable
    assert "gradient.py: is missing" in results.format_errors[0]


def test_prairielearn_killed_while_it_grades_has_results(course: Course, tmp_path: Path) -> None:
    root = prairielearn_root(course, tmp_path, {**reference(course), "blocks.py": "while True:\n    pass\n"})
    command = [sys.executable, "-m", "hybridnn", "course", "autograde", "--platform", "prairielearn"]
    command += ["--root", str(root), "--isolation", "none"]
    process = subprocess.Popen(command, env=environment(), start_new_session=True)
    path = root / "grade/results/results.json"
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    results = PrairieLearnResults.model_validate_json(path.read_text())
    assert not results.gradable
    assert results.format_errors == [UNFINISHED]


def test_question_of_prairielearn_names_its_files(course: Course, tmp_path: Path) -> None:
    question = unpack("prairielearn", kit_of(course), tmp_path / "package") / "questions/a2"
    html = (question / "question.html").read_text(encoding="utf-8")
    assert 'file-names="assignment.toml,blocks.py,gradient.py"' in html
    for name in re.findall(r'pl-file-download file-name="([^"]+)"', html):
        assert (question / "clientFilesQuestion" / name).is_file()


# -- Autolab ----------------------------------------------------------------------------------------------------------


def autolab_job(course: Course, tmp_path: Path, submission: dict[str, str]) -> tuple[Path, Path]:
    """The folder of the assessment, and that of a job of Autolab."""
    unpacked = unpack("autolab", kit_of(course), tmp_path / "package")
    assert [path.name for path in unpacked.iterdir()] == ["a2"]  # one folder, named after the assessment
    job = tmp_path / "job"
    job.mkdir()
    (job / "Makefile").write_bytes((unpacked / "a2/autograde-Makefile").read_bytes())
    (job / "autograde.tar").write_bytes((unpacked / "a2/autograde.tar").read_bytes())
    (job / "a2.zip").write_bytes(make_archive(submission))
    return unpacked / "a2", job


def run_job(job: Path, hybridnn: Path) -> list[str]:
    run = subprocess.run(["make"], cwd=job, env=environment(HYBRIDNN=hybridnn), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.rstrip().splitlines()


@needs_root
def test_autolab_grades_and_the_grader_prints_last(course: Course, tmp_path: Path) -> None:
    forged = '{"scores": {"bounds": 1000}}'
    cheat = f"import atexit, os\natexit.register(print, {forged!r})\nos.write(1, b'{forged}\\n')\n"
    files = reference(course)
    assessment, job = autolab_job(course, tmp_path, {**files, "gradient.py": cheat + files["gradient.py"]})
    lines = run_job(job, installed_command(tmp_path / "hybridnn"))
    scores = AutolabScores.model_validate_json(lines[-1]).scores
    assert scores == {"bounds": 20, "minibatches": 15, "gradient": 30, "buckets": 12, "reducer": 23}
    stages = autolab_feedback(json.loads(lines[-2]))
    assert list(stages) == ["1. bounds", "2. minibatches", "3. gradient", "4. buckets", "5. reducer"]
    assert forged not in lines
    yaml = pytest.importorskip("yaml")
    settings = yaml.safe_load((assessment / "a2.yml").read_text(encoding="utf-8"))
    assert {problem["name"]: problem["max_score"] for problem in settings["problems"]} == scores
    for name in (settings["general"]["handout"], settings["general"]["writeup"]):
        assert (assessment / name).is_file()


def test_autolab_grades_as_root_where_its_image_allows_it(course: Course, tmp_path: Path) -> None:
    _, job = autolab_job(course, tmp_path, reference(course))
    hybridnn = executable(tmp_path / "hybridnn", 'echo "$SUDO $@"')
    executable(tmp_path / "bin/sudo", 'shift; [ "$1" != -l ] || exit 0; SUDO=root exec "$@"')
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    run = subprocess.run(
        ["make"], cwd=job, env=environment(HYBRIDNN=hybridnn, PATH=path), capture_output=True, text=True, check=True
    )
    assert run.stdout.endswith("\nroot course autograde --platform autolab\n")


def test_autolab_always_has_scores(course: Course, tmp_path: Path) -> None:
    _, job = autolab_job(course, tmp_path, reference(course))
    lines = run_job(job, executable(tmp_path / "hybridnn", "kill -9 $$"))
    assert set(AutolabScores.model_validate_json(lines[-1]).scores.values()) == {0}
    assert UNFINISHED in lines


@needs_root
def test_autolab_killed_after_a_second_has_scores(course: Course, tmp_path: Path) -> None:
    _, job = autolab_job(course, tmp_path, {**reference(course), "blocks.py": "while True:\n    pass\n"})
    settings = environment(HYBRIDNN=installed_command(tmp_path / "hybridnn"))
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(["make"], cwd=job, env=settings, stdout=output, start_new_session=True)
    time.sleep(deadline(1))
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    lines = (tmp_path / "output").read_text().rstrip().splitlines()
    scores = AutolabScores.model_validate_json(lines[-1]).scores
    assert scores == {task.name: 0 for task in course.assignment("a2").tasks}
    assert "did not finish" in lines[-2]


def test_autolab_shows_why_a_submission_cannot_be_graded(course: Course, tmp_path: Path) -> None:
    _, job = autolab_job(course, tmp_path, reference(course))
    subprocess.run(["tar", "xf", "autograde.tar"], cwd=job, check=True)
    (job / "a2.zip").write_bytes(b"nothing")
    out = io.StringIO()
    autograde("autolab", job, isolation="none", out=out)
    lines = out.getvalue().rstrip().splitlines()
    assert set(AutolabScores.model_validate_json(lines[-1]).scores.values()) == {0}
    assert "zip" in autolab_feedback(json.loads(lines[-2]))["Submission"]["can be graded"]["hint"]


def test_autolab_can_read_the_names_of_problems() -> None:
    for name in ("ring: part 1", 'the "ring"', "a\\b"):
        line = json.dumps({"scores": {problem_name(name): 1.5}})
        quoted_again = re.sub(r"([a-zA-Z0-9]+):", r'"\1":', line)  # as Autolab does it before it parses the line
        assert json.loads(quoted_again) == json.loads(line)


def test_autolab_needs_one_archive(course: Course, tmp_path: Path) -> None:
    _, job = autolab_job(course, tmp_path, reference(course))
    subprocess.run(["tar", "xf", "autograde.tar"], cwd=job, check=True)
    (job / "b.zip").write_bytes(b"")
    with pytest.raises(DataError, match="has 2 files"):
        autograde("autolab", job)


def test_image_of_autolab_allows_the_command_of_its_jobs(course: Course, tmp_path: Path) -> None:
    assessment, job = autolab_job(course, tmp_path, reference(course))
    docker = (assessment / "image/Dockerfile").read_text(encoding="utf-8")
    allowed = re.search(r"NOPASSWD: ([^']+)'", docker)
    assert allowed is not None
    with tarfile.open(job / "autograde.tar") as archive:
        script = archive.extractfile("autograde/grade.sh")
        assert script is not None
        text = script.read().decode()
    default = re.search(r"HYBRIDNN:-(\S+)\}", text)
    assert default is not None
    command = re.search(r'grade="sudo -n \$hybridnn ([^"]+)"', text)
    assert command is not None
    assert f"{default[1]} {command[1]}" == allowed[1]


# -- GitHub -----------------------------------------------------------------------------------------------------------


def test_workflow_of_github_checks_every_task(course: Course, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    package = unpack("github", kit_of(course), tmp_path / "package")
    workflow = yaml.safe_load((package / "template/.github/workflows/autograding.yml").read_text(encoding="utf-8"))
    assert workflow[True] == ["push", "workflow_dispatch"]  # YAML 1.1 reads the key `on` as true
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands[0] == f"python3 -m pip install {RULES}"
    tasks = course.assignment("a2").tasks
    assert commands[1:] == [f"hybridnn course check {task.name} -q" for task in tasks]
    tests = json.loads((package / "classroom50-tests.json").read_text())
    assert [test["run"] for test in tests] == commands
    assert all(test["type"] == "run" and 0 < test["timeout"] <= 600 for test in tests)
    assert all(isinstance(test["points"], int) for test in tests)
    assert sum(test["points"] for test in tests) == round(sum(t.points.total - t.points.hidden for t in tasks))

    installed_command(tmp_path / "bin/hybridnn")
    settings = environment(PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for content, expected in ((None, 1), (reference(course), 0)):
        if content is not None:
            write(package / "template", content)
        run = subprocess.run(commands[1], shell=True, cwd=package / "template", env=settings, capture_output=True)
        assert run.returncode == expected, run.stderr
