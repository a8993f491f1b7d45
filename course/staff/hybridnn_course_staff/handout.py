"""Handouts: the Markdown file of an assignment, with the sentences of its variant in their places.

A handout has names in double braces: ``{{axis}}`` of an axis of variation, ``{{hours}}``, ``{{goal}}``, ``{{title}}``,
``{{points}}`` (a table of tasks, or of the rubric, with points), ``{{commands}}`` and ``{{ai_policy}}``. Any other name
is an error.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Mapping

from hybridnn_course.assignment import Variant
from hybridnn_course.flagged_code import LIBRARY
from hybridnn_course_staff.assignment import Assignment, Task

WIDTH = 120
NAME = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
AI_POLICY = """\
You may ask an AI assistant to explain ideas, error messages and library functions. It must not write or rewrite the
functions of this assignment, or parts of them. Say in a comment at the top of your file what you used it for."""


class HandoutError(RuntimeError):
    """A handout has an unknown name in braces, or does not mention a task."""


def render_handout(
    assignment: Assignment, variant: Variant, ai_policy: str = AI_POLICY, modules: Collection[str] = ()
) -> str:
    """The handout of a variant, as Markdown; `HandoutError` if it has an unknown name.

    Parameters
    ----------
    modules : collection of str
        Modules that the course allows besides those that every submission may import.
    """
    text = (assignment.folder() / "handout.md").read_text(encoding="utf-8")
    names = {axis: choices[variant[axis]] for axis, choices in assignment.axes.items()} | {
        "title": assignment.title,
        "goal": assignment.goal,
        "hours": f"{assignment.hours:g}",
        "points": _points_table(assignment),
        "commands": _commands(assignment, modules) if assignment.tasks else "",
        "ai_policy": ai_policy.strip(),
    }
    missing = [task.name for task in assignment.tasks if f"`{task.name}`" not in text and "{{points}}" not in text]
    if missing:
        raise HandoutError(f"{assignment.id}: the handout does not mention the task {missing[0]}")
    return NAME.sub(lambda found: _value(assignment, names, found.group(1)), text)


def _value(assignment: Assignment, names: Mapping[str, str], name: str) -> str:
    if name not in names:
        raise HandoutError(f"{assignment.id}: the handout has an unknown name {name!r}; known: {', '.join(names)}")
    return names[name]


def _points_table(assignment: Assignment) -> str:
    if assignment.rubric:
        rows = ["| item | points | question |", "|---|--:|---|"]
        return "\n".join(
            [*rows, *(f"| {item.name} | {item.points:g} | {item.question} |" for item in assignment.rubric)]
        )
    rows = [
        "| task | function | file | public | hidden | budget | whole run | sum |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    return "\n".join([*rows, *map(_points_row, assignment.tasks)])


def _points_row(task: Task) -> str:
    points = task.points
    cells = (points.public, points.hidden, points.budget, points.whole, points.total)
    return f"| `{task.name}` | `{task.function}` | `{task.file}` | {' | '.join(f'{cell:g}' for cell in cells)} |"


def _commands(assignment: Assignment, modules: Collection[str]) -> str:
    first = assignment.tasks[0].name
    commands = [
        ("check", f"all tasks; of one: hybridnn course check {first}"),
        ("check --watch", "again after every change of a file"),
        (f"debug {first}", "one case under Python's debugger"),
        ("submit", "the zip file to hand in"),
    ]
    width = max(len(command) for command, _ in commands)
    lines = [f"$ hybridnn course {command:{width}}   # {what}" for command, what in commands]
    shown = sum(task.points.total - task.points.hidden for task in assignment.tasks)
    notes = (
        f"`check` shows {shown:g} points: those of the public cases, of the budget and of the whole runs. The points "
        "of a bound fall from all to none between what is allowed and an amount that means another method, by which "
        "a right case has half of its points. "
        f"{_import_rule(assignment, modules)}"
    )
    return "\n".join(["```console", *lines, "```", "", textwrap.fill(notes, WIDTH)])


def _import_rule(assignment: Assignment, modules: Collection[str] = ()) -> str:
    """What a submission may import, in the words of the handout."""
    offered = [
        f"{', '.join(f'`{one}`' for one in names)} from `{module}`" for module, names in assignment.imports.items()
    ]
    of_library = f"only {' and '.join(offered)}" if offered else "nothing"
    more = "".join(f", `{name}`" for name in modules)
    return f"You may import your other files, modules of Python, NumPy, SciPy{more}; of `{LIBRARY}` {of_library}."
