"""PrairieLearn: a question that is graded in a container; results in ``/grade/results/results.json``."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any, TextIO
from uuid import NAMESPACE_URL, uuid5

from hybridnn.course.outcome import Outcome
from hybridnn.course.platforms.images import GRADER, dockerfile
from hybridnn.course.platforms.job import Job, require_folder
from hybridnn.course.platforms.kit import Instructions, Kit, Package, json_bytes, zip_file
from hybridnn.course.platforms.texts import UNFINISHED, groups, staff_report, summary
from hybridnn.course.work_folder import HANDOUT, MANIFEST, make_archive
from hybridnn.errors import EnvironmentProblem
from hybridnn.utils.files import write_atomically

RESULTS = "results.json"
LARGEST = 1 << 20  # bytes of the results
TIMEOUT = 300  # seconds; what is graded takes less

QUESTION = """\
<pl-question-panel>
  <p>{goal}.</p>
  <pl-file-download file-name="{handout}" label="Read the handout"></pl-file-download>
  <pl-file-download file-name="{start}" label="Download the files to start from"></pl-file-download>
  <p>Upload all of these files, also <code>{manifest}</code>:</p>
  <pl-file-upload file-names="{files}"></pl-file-upload>
</pl-question-panel>
<pl-submission-panel>
  <pl-external-grader-results></pl-external-grader-results>
  <pl-file-preview></pl-file-preview>
</pl-submission-panel>
"""

README = """\
# {title} on PrairieLearn

1. Build the image in `image/` and push it to a registry: `docker build -t {image} image`, `docker push {image}`. The
   name is in `questions/{name}/info.json`.
2. Copy `questions/{name}` into the `questions` folder of the course's repository, and sync the course. `tests/` has the
   key of the term: the repository must be private.
"""


class PrairieLearn:
    """Packages and results for PrairieLearn."""

    name = "prairielearn"
    default_root = Path("/")

    def package(self, kit: Kit) -> Package:
        """The question, and the image of its grader."""
        kit.require_one_variant("PrairieLearn")
        question = f"questions/{kit.name}"
        start = kit.start_files()
        files = {
            "README.md": README.format(title=kit.assignment.title, image=kit.image, name=kit.name).encode(),
            f"{question}/info.json": json_bytes(_info(kit)),
            f"{question}/question.html": _question(kit).encode(),
            f"{question}/clientFilesQuestion/{HANDOUT}": start[HANDOUT],
            f"{question}/clientFilesQuestion/{kit.name}.zip": make_archive(start),
            **{f"{question}/tests/{name}": content for name, content in kit.grading_files(self.name).items()},
            "image/Dockerfile": dockerfile(kit).encode(),
            **{f"image/{name}": content for name, content in kit.wheel.items()},
        }
        return Package(f"{kit.name}-prairielearn.zip", zip_file(files))

    def job(self, root: Path) -> Job:
        """What to grade in ``grade/`` of a root."""
        base = require_folder(root / "grade", "PrairieLearn")
        tests, student = (require_folder(base / name, "PrairieLearn") for name in ("tests", "student"))
        results = base / "results"
        results.mkdir(exist_ok=True)
        return Job(base, tests, student, closed=(tests, student, results))

    def begin(self, job: Job) -> None:
        """Write results that cost no attempt."""
        results = {"gradable": False, "format_errors": [UNFINISHED]}
        write_atomically(job.root / "results" / RESULTS, json_bytes(results))

    def finish(self, job: Job, instructions: Instructions, outcome: Outcome, shown: Outcome, out: TextIO) -> None:
        """Write the results; only the staff sees the log."""
        out.write(staff_report(outcome))
        content = json_bytes(prairielearn_results(shown))
        if len(content) > LARGEST:
            raise EnvironmentProblem(f"the results have {len(content):,} bytes; PrairieLearn takes {LARGEST:,}")
        write_atomically(job.root / "results" / RESULTS, content)


def prairielearn_results(outcome: Outcome) -> dict[str, Any]:
    """The content of ``results.json``."""
    if not outcome.gradable:
        return {"gradable": False, "format_errors": [summary(outcome)], "message": summary(outcome)}
    return {
        "gradable": True,
        "score": min(1.0, outcome.points / outcome.possible) if outcome.possible else 0.0,
        "message": summary(outcome),
        "tests": [
            {
                "name": f"{group.number} {group.name}",
                "points": group.points,
                "max_points": group.possible,
                "message": "\n".join(group.hints),
                "output": group.text(),
            }
            for group in groups(outcome)
        ],
    }


def _info(kit: Kit) -> dict[str, Any]:
    term = kit.course.settings.term
    return {
        "uuid": str(uuid5(NAMESPACE_URL, f"hybridnn/{term}/{kit.name}/{kit.course.digest()}")),
        "title": kit.assignment.title,
        "topic": "hybridnn",
        "tags": [kit.name],
        "type": "v3",
        "singleVariant": True,
        "gradingMethod": "External",
        "externalGradingOptions": {
            "enabled": True,
            "image": kit.image,
            "entrypoint": f"{GRADER} course autograde --platform prairielearn",
            "timeout": TIMEOUT,
            "enableNetworking": False,
        },
    }


def _question(kit: Kit) -> str:
    files = (MANIFEST, *kit.assignment.files, *kit.assignment.texts)
    return QUESTION.format(
        goal=escape(kit.assignment.goal),
        handout=HANDOUT,
        start=f"{kit.name}.zip",
        manifest=MANIFEST,
        files=",".join(files),
    )
