"""Autolab: ``autograde.tar`` and ``autograde-Makefile`` in an assessment to import; results on the standard output.

The next to last line describes the checks (formatted feedback), the last one has the scores.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, TextIO

from hybridnn.course.assignment import Assignment, load_assignment
from hybridnn.course.outcome import Outcome, TaskOutcome
from hybridnn.course.platforms.images import GRADER, dockerfile
from hybridnn.course.platforms.job import Job, require_folder
from hybridnn.course.platforms.kit import Instructions, Kit, Package, tar_file, yaml_text
from hybridnn.course.platforms.texts import UNFINISHED, groups, plain, summary
from hybridnn.course.work_folder import HANDOUT, make_archive
from hybridnn.errors import DataError

FOLDER = "autograde"  # in the folder of the job
SCORES = "scores.json"
TIMEOUT = 300  # seconds; what is graded takes less, as Autolab adds a line to the output of a job that it ends
PENDING = "If no other scores follow, grading did not finish. Please tell the course staff."
COMMAND = "course autograde --platform autolab"

MAKEFILE = """\
all:
	@tar xf autograde.tar
	@sh autograde/grade.sh
"""

GRADE = """\
# Grades the submission. The last line of the output is JSON, whatever happens: also where the job is killed.
echo "{pending}"
cat autograde/scores.json
hybridnn=${HYBRIDNN:-{grader}}
if sudo -n -l $hybridnn {command} > /dev/null 2>&1; then
    grade="sudo -n $hybridnn {command}"
else
    grade="$hybridnn {command}"
fi
if $grade > autograde/output.txt 2> autograde/errors.txt < /dev/null; then
    cat autograde/output.txt
else
    cat autograde/errors.txt
    echo "{unfinished}"
    cat autograde/scores.json
fi
exit 0
"""

README = """\
# {title} on Autolab

1. Build the image in `image/` on the machine of Tango: `docker build -t {image} image`.
2. Install the assessment: Install Assessment, Import from Tarball, with the archive that this file comes from.

`autograde.tar` has the key of the term. Students download `{name}.zip` as the handout and hand in the archive that
`hybridnn course submit` writes. Points of the rubric are problems without an autograder.
"""


class Autolab:
    """Packages and results for Autolab."""

    name = "autolab"
    default_root = Path()

    def package(self, kit: Kit) -> Package:
        """The assessment to import."""
        kit.require_one_variant("Autolab")
        start = kit.start_files()
        image = {f"image/{name}": content for name, content in kit.wheel.items()}
        files = {
            f"{kit.name}.yml": ("---\n" + yaml_text(_assessment(kit))).encode(),
            "autograde-Makefile": MAKEFILE.encode(),
            "autograde.tar": tar_file(_grading_files(kit)),
            "README.md": README.format(title=kit.assignment.title, image=kit.image, name=kit.name).encode(),
            f"{kit.name}.zip": make_archive(start),
            HANDOUT: start[HANDOUT],
            "image/Dockerfile": dockerfile(kit, autolab_command=f"{GRADER} {COMMAND}").encode(),
            **image,
        }
        return Package(
            f"{kit.name}-autolab.tar", tar_file({f"{kit.name}/{name}": content for name, content in files.items()})
        )

    def job(self, root: Path) -> Job:
        """What to grade in the folder of a job."""
        package = require_folder(root / FOLDER, "Autolab's Makefile")
        archives = sorted(root.glob("*.zip"))
        if len(archives) != 1:
            raise DataError(f"{root}: has {len(archives)} files .zip; Autolab puts one submission there")
        return Job(root, package, archives[0], closed=(package,))

    def begin(self, job: Job) -> None:
        """Nothing: the script of the package prints the scores of a grading that does not finish."""

    def finish(self, job: Job, instructions: Instructions, outcome: Outcome, shown: Outcome, out: TextIO) -> None:
        """Write feedback and scores; students see all of it."""
        lines = [summary(shown), ""]
        for group in groups(shown):
            lines += [f"{group.name}: {group.points:g} of {group.possible:g} points", group.text()]
            lines += [*(f"> {hint}" for hint in group.hints), ""]
        scores = autolab_scores(load_assignment(instructions.assignment), shown)
        out.write("\n".join([*lines, _line(autolab_feedback(shown)), _line(scores), ""]))


def autolab_feedback(outcome: Outcome) -> dict[str, Any]:
    """The description of all checks: a stage for each task."""
    stages = {f"{number}. {task.name}": _stage(task) for number, task in enumerate(outcome.tasks, 1)}
    if not outcome.gradable:
        stages = {"Submission": {"can be graded": {"passed": False, "hint": plain(outcome.reason)}}}
    return {"_presentation": "semantic", "stages": list(stages), **stages}


def _stage(task: TaskOutcome) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for check in task.checks:
        texts = [plain(text) for text in (check.message, check.hint) if text]
        result: dict[str, Any] = {"passed": check.passed}
        found[check.name] = result if check.passed or not texts else {**result, "hint": "\n".join(texts)}
    return found


def autolab_scores(assignment: Assignment, outcome: Outcome) -> dict[str, Any]:
    """Points by problem; problems are the tasks."""
    points = {task.name: round(task.points, 2) for task in outcome.tasks}
    return {"scores": {problem_name(task.name): points.get(task.name, 0) for task in assignment.tasks}}


def problem_name(name: str) -> str:
    """Name of a problem. Autolab puts quotation marks around every word that precedes a colon, also within texts."""
    return re.sub(r"[:\"\\]", " ", name)


def _line(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _grading_files(kit: Kit) -> dict[str, bytes]:
    nothing = autolab_scores(kit.assignment, Outcome(assignment=kit.name))
    texts = {"grader": GRADER, "command": COMMAND, "pending": PENDING, "unfinished": UNFINISHED}
    script = re.sub(r"\{(\w+)\}", lambda found: texts[found[1]], GRADE)
    files = {"grade.sh": script.encode(), SCORES: (_line(nothing) + "\n").encode(), **kit.grading_files("autolab")}
    return {f"{FOLDER}/{name}": content for name, content in files.items()}


def _assessment(kit: Kit) -> dict[str, Any]:
    graded = [(task.name, task.points.total) for task in kit.assignment.tasks]
    by_person = [(item.name, item.points) for item in kit.assignment.rubric]
    return {
        "general": {
            "name": kit.name,
            "description": kit.assignment.goal,
            "display_name": kit.assignment.title,
            "handin_filename": f"{kit.name}.zip",
            "handin_directory": "handin",
            "max_grace_days": 0,
            "handout": f"{kit.name}.zip",
            "writeup": HANDOUT,
            "max_submissions": -1,
            "disable_handins": False,
            "max_size": 2,
            "has_svn": False,
            "category_name": "Lab",
        },
        "problems": [
            {"name": problem_name(name), "description": "", "max_score": float(points), "optional": False}
            for name, points in graded + by_person
        ],
        "autograder": {"autograde_timeout": TIMEOUT, "autograde_image": kit.image, "release_score": True},
    }
