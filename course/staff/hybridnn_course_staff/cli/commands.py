"""The commands of the staff, which the command `hybridnn course` finds by an entry point."""

from __future__ import annotations

from collections.abc import Callable

import typer

from hybridnn_course_staff.cli.assistant import autograde, export, grade, regrade, report
from hybridnn_course_staff.cli.lecturer import guide, make, new, solution, verify


def add_commands(app: typer.Typer) -> None:
    """Add them to the group of commands."""
    panels: dict[str, tuple[Callable[..., None], ...]] = {
        "Lecturers": (new, guide, make, verify, solution),
        "Assistants": (grade, regrade, report, export),
        "Gradescope": (autograde,),
    }
    for panel, commands in panels.items():
        for command in commands:
            app.command(rich_help_panel=panel)(command)
