"""The commands of the staff, which the command `hybridnn course` finds by an entry point."""

from __future__ import annotations

import typer

from hybridnn_course_staff.cli.assistant import autograde, grade, oral, regrade, report, similar
from hybridnn_course_staff.cli.lecturer import make, new, solution, verify


def add_commands(app: typer.Typer) -> None:
    """Add them to the group of commands."""
    for panel, commands in {
        "Lecturers": (new, make, verify, solution),
        "Assistants": (grade, regrade, report, similar, oral),
        "Gradescope": (autograde,),
    }.items():
        for command in commands:
            app.command(rich_help_panel=panel)(command)
