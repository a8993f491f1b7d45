"""Guides: what a lecturer knows of an assignment, as Markdown; with common mistakes from the catalogue."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from hybridnn.utils.files import read_toml
from hybridnn_course_staff.assignment import Assignment


class Guide(BaseModel):
    """Content of ``guide.toml`` of an assignment.

    Attributes
    ----------
    objectives : tuple of str
        What students can do afterwards.
    prerequisites : str
        What they need before.
    reading, notebook : str
        Pages of hybridnn's repository; the second may be empty.
    question : str
        To ask the class before the answer is shown.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    objectives: tuple[str, ...]
    prerequisites: str
    reading: str
    notebook: str = ""
    question: str


def read_guide(assignment: Assignment) -> Guide:
    """The guide of an assignment."""
    return Guide.model_validate(read_toml(assignment.folder() / "guide.toml"))


def guide_text(assignment: Assignment) -> str:
    """The page of an assignment for the lecturer, which names mistakes and their hints, and no solution."""
    guide = read_guide(assignment)
    lines = [f"# {assignment.title}", "", f"{assignment.goal}. Students can afterwards", ""]
    lines += [f"* {objective}" for objective in guide.objectives]
    lines += [
        "",
        f"They need: {guide.prerequisites}. Hours: {assignment.hours:g}, an estimate that no class has measured.",
    ]
    reading = " and ".join(f"`{page}`" for page in (guide.reading, guide.notebook) if page)
    lines += ["", f"Before: {reading}. Ask before you show it: {guide.question}"]
    for task in assignment.tasks:
        lines += [
            "",
            f"## {task.name}: {task.points.total:g} points",
            "",
            "Common mistakes, and what students read:",
            "",
        ]
        lines += [f"* `{mistake.name}`: {mistake.hint}" for mistake in task.mistakes]
    lines += [f"\n## {item.name}: {item.points:g} points\n\n{item.question}" for item in assignment.rubric]
    return "\n".join(lines) + "\n"
