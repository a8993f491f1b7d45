"""GitHub: a repository for students to copy, whose workflow checks the public cases of every task.

Students own their copy and may change the workflow, so the hidden cases and the key of the term stay out of it.
"""

from __future__ import annotations

from typing import Any

from hybridnn.course.assignment import Task
from hybridnn.course.platforms.kit import Kit, Package, json_bytes, yaml_text, zip_file

WORKFLOW = ".github/workflows/autograding.yml"
MINUTES = 5  # of one task
TEMPLATE = "template"

README = """\
# {title} on GitHub

`template/` is the content of a repository that students copy: make it a template repository. Its workflow checks one
task in each step, on every push, with the public cases, budget and training only. A step passes or fails: there are no
partial points.

Students can read and change all of a repository of their own, so it has no key of the term, and
`hybridnn course autograde` has nothing to do there. For hidden cases and partial points, clone the repositories, pack
each clone, and grade the folder of zip files:
`hybridnn course submit --folder CLONE --out submissions/NAME.zip`, `hybridnn course grade {name} submissions`.

`classroom50-tests.json` has the same checks with their points, for Classroom 50, a successor of GitHub Classroom:
`gh teacher assignment add ORGANIZATION CLASSROOM {name} --tests classroom50-tests.json`. There, leave
`{workflow}` out of the template.
"""


class GitHub:
    """Packages for GitHub."""

    name = "github"

    def package(self, kit: Kit) -> Package:
        """The content of the repository."""
        kit.require_one_variant("GitHub")
        template = {**kit.start_files(), WORKFLOW: workflow(kit).encode()}
        template |= {f"wheels/{name}": content for name, content in kit.wheel.items()}
        files = {
            "README.md": README.format(title=kit.assignment.title, name=kit.name, workflow=WORKFLOW).encode(),
            "classroom50-tests.json": json_bytes(classroom50_tests(kit)),
            **{f"{TEMPLATE}/{name}": content for name, content in template.items()},
        }
        return Package(f"{kit.name}-github.zip", zip_file(files))


def workflow(kit: Kit) -> str:
    """The workflow: a step for each task, which fails where a public case does."""
    steps: list[dict[str, Any]] = [
        {"uses": "actions/checkout@v4"},
        {"uses": "actions/setup-python@v5", "with": {"python-version": "3.12"}},
        {"name": "Install hybridnn", "run": _install(kit)},
    ]
    steps += [
        {
            "name": f"{task.name} ({_points(task):g} points)",
            "if": "${{ !cancelled() }}",
            "timeout-minutes": MINUTES,
            "run": _check(task),
        }
        for task in kit.assignment.tasks
    ]
    return yaml_text(
        {
            "name": "Autograding Tests",
            "on": ["push", "workflow_dispatch"],
            "permissions": {"contents": "read"},
            "jobs": {
                "run-autograding-tests": {
                    "runs-on": "ubuntu-latest",
                    "steps": steps,
                }
            },
        }
    )


def classroom50_tests(kit: Kit) -> list[dict[str, Any]]:
    """Tests of Classroom 50: an installation without points, then one test for each task."""
    install = {"name": "setup", "type": "run", "run": _install(kit), "timeout": 60 * MINUTES, "points": 0}
    return [
        install,
        *(
            {
                "name": task.name,
                "type": "run",
                "run": _check(task),
                "timeout": 60 * MINUTES,
                "points": round(_points(task)),
            }
            for task in kit.assignment.tasks
        ),
    ]


def _install(kit: Kit) -> str:
    return f"python3 -m pip install {kit.pip_argument('wheels')}"


def _points(task: Task) -> float:
    """Points without those of hidden cases."""
    return task.points.total - task.points.hidden


def _check(task: Task) -> str:
    return f"hybridnn course check {task.name} -q"
