"""Gradescope: a zip file with ``setup.sh`` and ``run_autograder``; results in ``/autograder/results/results.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

from pydantic import BaseModel, ValidationError

from hybridnn.course.outcome import Outcome
from hybridnn.course.platforms.job import Job, require_folder
from hybridnn.course.platforms.kit import Instructions, Kit, Package, Visibility, json_bytes, zip_file
from hybridnn.course.platforms.texts import UNFINISHED, groups, staff_report, summary
from hybridnn.errors import DataError
from hybridnn.utils.files import read_json, write_atomically

RESULTS, PLACEHOLDER, METADATA = "results.json", "unfinished.json", "submission_metadata.json"

SETUP = """\
#!/usr/bin/env bash
# Installs hybridnn, and closes the files of the autograder to all users but root.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
environment=${HYBRIDNN_ENVIRONMENT:-/opt/hybridnn}
chmod -R go= "$here"
if ! python3 -c 'import ensurepip, venv' 2> /dev/null; then
    apt-get update
    apt-get install -y --no-install-recommends python3 python3-venv
fi
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "hybridnn needs Python 3.10 or newer: choose a newer base image, such as Ubuntu 22.04" >&2
    exit 1
fi
cd "$here"
python3 -m venv "$environment"
"$environment/bin/pip" install --no-cache-dir {requirement}
"""

RUN = """\
#!/usr/bin/env bash
# Grades the submission. Until that is done, the results say that it did not finish.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$here/results"
cp "$here/source/unfinished.json" "$here/results/.unfinished.json"
mv "$here/results/.unfinished.json" "$here/results/results.json"
exec "${HYBRIDNN_ENVIRONMENT:-/opt/hybridnn}/bin/hybridnn" course autograde \\
    --platform gradescope --root "$(dirname "$here")"
"""


class _User(BaseModel):
    email: str


class _Metadata(BaseModel):
    users: list[_User]


class Gradescope:
    """Packages and results for Gradescope."""

    name = "gradescope"
    default_root = Path("/")

    def package(self, kit: Kit) -> Package:
        """The autograder to upload."""
        files = {
            "setup.sh": SETUP.replace("{requirement}", kit.pip_argument('"$here"')).encode(),
            "run_autograder": RUN.encode(),
            PLACEHOLDER: unfinished(),
            **kit.grading_files(self.name),
            **kit.wheel,
        }
        return Package(f"{kit.name}-gradescope.zip", zip_file(files, scripts=("setup.sh", "run_autograder")))

    def job(self, root: Path) -> Job:
        """What to grade in ``autograder/`` of a root."""
        base = require_folder(root / "autograder", "Gradescope")
        source, submission = (require_folder(base / name, "Gradescope") for name in ("source", "submission"))
        results = base / "results"
        results.mkdir(exist_ok=True)
        return Job(base, source, submission, _student(base / METADATA), (source, submission, results))

    def begin(self, job: Job) -> None:
        """Write results of no points."""
        write_atomically(job.root / "results" / RESULTS, unfinished())

    def finish(self, job: Job, instructions: Instructions, outcome: Outcome, shown: Outcome, out: TextIO) -> None:
        """Write the results; only the staff sees the log."""
        out.write(staff_report(outcome))
        results = json_bytes(gradescope_results(shown, instructions.hidden_cases))
        write_atomically(job.root / "results" / RESULTS, results)


def unfinished() -> bytes:
    """Results of a grading that did not finish."""
    return json_bytes({"score": 0, "output": UNFINISHED, "output_format": "text", "stdout_visibility": "hidden"})


def gradescope_results(outcome: Outcome, hidden_cases: Visibility = "visible") -> dict[str, Any]:
    """The content of ``results.json``.

    Parameters
    ----------
    hidden_cases : str
        When students see the hidden cases. As long as a test is hidden, Gradescope hides their total, too.
    """
    tests = [
        {
            "name": group.name,
            "number": group.number,
            "score": group.points,
            "max_score": group.possible,
            "status": "passed" if group.passed else "failed",
            "output": group.markdown(),
            "output_format": "md",
            "visibility": hidden_cases if group.kind == "hidden" else "visible",
            "tags": [group.task, group.kind, *group.mistakes],
        }
        for group in groups(outcome)
    ]
    results: dict[str, Any] = {
        "score": outcome.points,
        "output": summary(outcome),
        "output_format": "text",
        "stdout_visibility": "hidden",
        "tests": tests,
        "extra_data": {"assignment": outcome.assignment, "term": outcome.term, "gradable": outcome.gradable},
    }
    if board := _leaderboard(outcome):
        results["leaderboard"] = board
    return results


def _leaderboard(outcome: Outcome) -> list[dict[str, Any]]:
    """Virtual times, compared with what is allowed: those of two students may be of different cases."""
    return [
        {
            "name": f"{task.name}: {check.name.partition(' in ')[0]} / allowed",
            "value": round(check.ratio, 4),
            "order": "asc",
        }
        for task in outcome.tasks
        for check in task.checks
        if check.ratio is not None and "time" in check.name
    ]


def _student(path: Path) -> str:
    """The student's e-mail address, of a group the first one; empty outside of Gradescope."""
    if not path.exists():
        return ""
    try:
        users = _Metadata.model_validate(read_json(path)).users
    except ValidationError:
        raise DataError(f"{path}: does not name the users of the submission") from None
    return min((user.email for user in users), default="")
