"""`hybridnn course`: its commands, by who uses them."""

from __future__ import annotations

from hybridnn.cli.options import command_group
from hybridnn_course.cli.assistant import autograde, grade, oral, regrade, similar
from hybridnn_course.cli.lecturer import make, new, solution, verify
from hybridnn_course.cli.student import check, debug, picture, run, start, submit

app = command_group("Assignments for a class: work on them, hand them out, grade them.")
for _panel, _commands in {
    "Students": (start, check, debug, picture, run, submit),
    "Lecturers": (new, make, verify, solution),
    "Assistants": (grade, regrade, similar, oral),
    "Gradescope": (autograde,),
}.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
