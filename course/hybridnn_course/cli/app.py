"""`hybridnn course`: its commands, by who uses them; those of the staff are in a distribution of their own."""

from __future__ import annotations

from importlib.metadata import entry_points

from hybridnn.cli.options import command_group
from hybridnn_course.cli.student import check, debug, start, submit

COMMANDS_OF_STAFF = "hybridnn_course.commands"
"""Entry points of functions that add commands to a group."""

app = command_group("Assignments for a class: work on them, hand them out, grade them.")
for _command in (start, check, debug, submit):
    app.command(rich_help_panel="Students")(_command)
for _point in entry_points(group=COMMANDS_OF_STAFF):
    _point.load()(app)
