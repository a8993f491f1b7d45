"""Packages and results for Autolab, PrairieLearn and Classroom 50."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from course.platform_cases import OUTCOME, RULES, UNGRADABLE, WRONG, kit_of, reference, unpack
from hybridnn.course.outcome import TaskOutcome
from hybridnn.course.platforms import autograde, build_package
from hybridnn.course.platforms.texts import UNFINISHED
from hybridnn.course.term import KEY, Course, create_course
from hybridnn.course.work_folder import make_archive
from hybridnn.errors import EnvironmentProblem, SettingError


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return create_course(tmp_path / "course", "Spring 2027", ["a2"])


@pytest.mark.parametrize("platform", ["autolab", "prairielearn", "github"])
def test_variants_of_students_need_a_platform_that_names_them(tmp_path: Path, platform: str) -> None:
    course = create_course(tmp_path / "course", "Spring 2027", ["a2"], per_student=True)
    with pytest.raises(SettingError, match="who the student is"):
        build_package(platform, kit_of(course))


def test_prairielearn(course: Course, tmp_path: Path) -> None:
    package = unpack("prairielearn", kit_of(course), tmp_path / "package")
    base = tmp_path / "root/grade"
    base.mkdir(parents=True)
    (package / "questions/a2/tests").rename(base / "tests")
    assert (base / "tests/course" / KEY).stat().st_mode & 0o777 == 0o600
    (base / "student").mkdir()
    for name, text in reference(course).items():
        (base / "student" / name).write_text(text)
    results = base / "results/results.json"
    for outcome, expected in ((OUTCOME, 0.88), (UNGRADABLE, None)):
        autograde("prairielearn", base.parent, out=io.StringIO(), grade=lambda *_, made=outcome: made)
        found = json.loads(results.read_text())
        assert found.get("score") == expected
        assert found["gradable"] == outcome.gradable
        assert sum(test["points"] for test in found.get("tests", [])) == outcome.points
    task = TaskOutcome(name="gradient", checks=(WRONG.model_copy(update={"message": "x" * 10**5}),) * 1000)
    with pytest.raises(EnvironmentProblem, match="PrairieLearn takes"):
        autograde("prairielearn", base.parent, grade=lambda *_: OUTCOME.model_copy(update={"tasks": (task,)}))
    assert json.loads(results.read_text()) == {"gradable": False, "format_errors": [UNFINISHED]}


def test_autolab(course: Course, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    assessment = unpack("autolab", kit_of(course), tmp_path / "package") / "a2"
    settings = yaml.safe_load((assessment / "a2.yml").read_text(encoding="utf-8"))
    points = {task.name: task.points.total for task in course.assignment("a2").tasks}
    assert {problem["name"]: problem["max_score"] for problem in settings["problems"]} == points
    job = tmp_path / "job"
    job.mkdir()
    with tarfile.open(assessment / "autograde.tar") as archive:
        archive.extractall(job)
    assert (job / "autograde/course" / KEY).stat().st_mode & 0o777 == 0o600
    (job / "a2.zip").write_bytes(make_archive(reference(course)))
    out = io.StringIO()
    autograde("autolab", job, out=out, grade=lambda *_: OUTCOME)
    feedback, scores = map(json.loads, out.getvalue().splitlines()[-2:])
    assert scores == {"scores": {**dict.fromkeys(points, 0), "gradient": 8, "bounds": 80}}
    assert feedback["1. gradient"]["one rank"] == {"passed": True}

    text = (job / "autograde/grade.sh").read_text(encoding="utf-8")  # prints these scores where grading does not finish
    assert (UNFINISHED in text, text.count("cat autograde/scores.json")) == (True, 2)
    assert json.loads((job / "autograde/scores.json").read_text()) == {"scores": dict.fromkeys(points, 0)}


def test_classroom_50(course: Course, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    package = unpack("github", kit_of(course), tmp_path / "package")
    for path in package.rglob("*"):
        assert path.is_dir() or course.key.hex().encode() not in path.read_bytes()
    workflow = yaml.safe_load((package / "template/.github/workflows/autograding.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    tasks = course.assignment("a2").tasks
    assert commands == [
        f"python3 -m pip install {RULES}",
        *(f"hybridnn course check {task.name} -q" for task in tasks),
    ]
    tests = json.loads((package / "classroom50-tests.json").read_text())
    assert [test["run"] for test in tests] == commands
    assert sum(test["points"] for test in tests) == round(sum(t.points.total - t.points.hidden for t in tasks))
    with pytest.raises(SettingError, match=r"its workflow runs `hybridnn course check`"):
        autograde("github", tmp_path)
