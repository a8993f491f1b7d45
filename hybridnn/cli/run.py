"""`hybridnn run`: run a Python script on several ranks."""

from __future__ import annotations

import os
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from hybridnn.cli.start_ranks import replace_by_ranks
from hybridnn.errors import SettingError


def run(
    ranks: Annotated[int, typer.Option("-n", min=1, help="Number of ranks.", metavar="N")],
    script: Annotated[str, typer.Argument(help="A Python script, or with -m a module.", metavar="SCRIPT")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script: all that follows it.", metavar="[ARGUMENT]...")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as in python -m.")] = False,
) -> None:
    """Run a Python script on several ranks: hybridnn run -n 4 script.py."""
    package = script.partition(".")[0]
    if module and not (package and _can_import(package)):
        raise SettingError("-m", script, "there is no such module")
    if not module and not Path(script).is_file():
        raise SettingError("SCRIPT", script, "there is no such file")
    replace_by_ranks(ranks, [*(["-m"] if module else []), script, *(arguments or ())])


def _can_import(module: str) -> bool:
    """Whether a rank can import a module or package; Python with -m searches the working folder, too."""
    return (find_spec(module) or PathFinder.find_spec(module, [os.getcwd()])) is not None
