"""Declarations of arguments and options; those that several commands share, and what shells complete.

Shells complete names of methods, data sets, studies and machines, and settings with their values.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

BASH = "_HYBRIDNN_COMPLETE", "complete_bash"
"""Variable and value by which the script of bash asks for completions."""
SETTING = "_HYBRIDNN_SETTING"
"""Variable with the setting whose value bash asks for."""


# -- completion --------------------------------------------------------------------------------------------------------


def method_names(incomplete: str) -> list[str]:
    """Pipeline methods that begin so."""
    from hybridnn.pipeline.schedules.methods import METHODS

    return [method.name for method in METHODS.values() if method.name.startswith(incomplete.lower())]


def dataset_names(incomplete: str) -> list[str]:
    """Data sets that begin so."""
    from hybridnn.data import catalogue

    return [name for name in catalogue() if name.startswith(incomplete.lower())]


def study_names(incomplete: str) -> list[str]:
    """Ready studies that begin so."""
    from hybridnn.study.study_file import ready_studies

    return [name for name in ready_studies() if name.startswith(incomplete)]


def machine_names(incomplete: str) -> list[str]:
    """Machines that ship with the package and begin so; the shell itself completes files where there is none."""
    from hybridnn.cost.machine_file import shipped_machines

    return [name for name in shipped_machines() if name.startswith(incomplete)]


def setting_names(incomplete: str) -> list[str]:
    """Settings that begin so."""
    from hybridnn.config.settings import Settings, known_names

    names = [name for name in known_names(Settings) if "." in name and name.startswith(incomplete)]
    return [name for name in names if not any(other.startswith(f"{name}.") for other in names)]


def setting_values(name: str) -> Callable[[str], list[str]]:
    """The completion of the values of a setting."""

    def complete(incomplete: str) -> list[str]:
        return _values(name, incomplete)

    return complete


def _values(name: str, incomplete: str) -> list[str]:
    """Values of a setting that begin so, where it allows only a few."""
    from hybridnn.config.reference import settings
    from hybridnn.data import catalogue

    values = {row.name: row.choices for row in settings()}.get(name, [])
    if name == "data.name":
        values = list(catalogue())
    return [value for value in values if value.startswith(incomplete.lower())]


def changes(incomplete: str) -> list[str]:
    """Ends of ``--set``: ``section.key=``, and behind it the values of a setting with choices."""
    if SETTING in os.environ:
        return _values(os.environ[SETTING], incomplete)
    name, equals, value = incomplete.partition("=")
    return [f"{name}={found}" for found in _values(name, value)] if equals else [f"{n}=" for n in setting_names(name)]


@contextlib.contextmanager
def no_word_ends_at_equals(words: Sequence[str]) -> Iterator[None]:
    """Make the script of bash, printed or installed, add no blank to completions that end in ``=``: a value follows."""
    reply, ending = "    return 0\n", "    [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2> /dev/null\n"
    output, printed = sys.stdout, io.StringIO()
    prints = os.environ.get(BASH[0]) == "source_bash" or "--show-completion" in words
    try:
        with contextlib.redirect_stdout(printed if prints else output):
            yield
    finally:
        if prints:
            output.write(printed.getvalue().replace(reply, ending + reply))
        if "--install-completion" in words and (script := Path.home() / ".bash_completions/hybridnn.sh").is_file():
            text = script.read_text(encoding="utf-8")
            script.write_text(text.replace(ending, "").replace(reply, ending + reply), encoding="utf-8")


def join_at_equals(environment: MutableMapping[str, str]) -> None:
    """Make one word again of those that bash ends at ``=``, in the variables by which it asks for completions.

    Of the last word, the one that is completed, bash expects only what follows ``=``.
    """
    if environment.get(BASH[0]) != BASH[1] or "\n" not in environment.get("COMP_WORDS", ""):
        return
    words = environment["COMP_WORDS"].split("\n")[: int(environment["COMP_CWORD"]) + 1]
    *words, last = re.sub(r"\n=(\n|$)", "=", "\n".join(words)).split("\n")
    name, equals, value = last.partition("=")
    if equals and not name.startswith("-"):
        environment[SETTING], last = name, value
    environment["COMP_WORDS"], environment["COMP_CWORD"] = "\n".join([*words, last]), str(len(words))


# -- arguments and options ---------------------------------------------------------------------------------------------


def option(
    text: str,
    metavar: str,
    *names: str,
    least: float | None = None,
    most: float | None = None,
    complete: Callable[[str], list[str]] | None = None,
) -> Any:
    """Declare an option by its help and the name of its value; without `names`, that of its parameter is used."""
    return typer.Option(*names, help=text, metavar=metavar, min=least, max=most, autocompletion=complete)


def count(text: str, *names: str) -> Any:
    """Declare an option that is a whole number from 1."""
    return option(text, "N", *names, least=1)


def command_group(text: str) -> typer.Typer:
    """Make a command that has commands of its own, and prints its help without one of them."""
    group = typer.Typer(help=text)

    @group.callback(invoke_without_command=True)
    def print_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    return group


Format = Literal["text", "json"]
PictureFormat = Literal["text", "json", "svg", "png", "pdf"]

OutputFormat = Annotated[Format, typer.Option("--format", help="How to print the result.")]
OutputPicture = Annotated[
    PictureFormat | None,
    typer.Option("--format", help="By default what the file's name says, or text. JSON counts from 0."),
]
PictureFile = Annotated[Path | None, option("A file for the result (default: it is printed).", "FILE", "--out")]

Config = Annotated[Path | None, typer.Argument(help="A settings file.", metavar="CONFIG.toml")]
Overrides = Annotated[
    list[str] | None,
    option("Change any setting; may be given many times.", "SECTION.KEY=VALUE", "--set", complete=changes),
]
Key = Annotated[
    str | None,
    typer.Argument(
        help="A section, or a key with or without it (default: all).", metavar="KEY", autocompletion=setting_names
    ),
]
MachineFile = Annotated[
    str | None,
    option(
        "A machine file, or the name of a machine that ships with hybridnn (default: $HYBRIDNN_MACHINE or machine.toml "
        "in the working folder).",
        "FILE",
        "--machine",
        complete=machine_names,
    ),
]

Ranks = Annotated[
    int | None,
    count(
        "Start this command on N ranks, with mpirun, or in a Slurm job with srun (default: it runs as it was started).",
        "-n",
    ),
]
InProcess = Annotated[
    int | None,
    option(
        "Run N ranks in this process, one at a time, without MPI (default: none): bit-for-bit reproducible, for "
        "learning and debugging. A deadlock ends with its reason.",
        "N",
        "--in-process",
    ),
]

RunFolder = Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN")]
Checkpoint = Annotated[
    str | None,
    option(
        "Take the weights of this checkpoint (default: those at the end of the run, else the newest checkpoint).",
        "step-N",
        "--checkpoint",
    ),
]
Best = Annotated[
    bool, typer.Option("--best", help="Take the weights of the epoch that was best on the validation part.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
ModelRanks = Annotated[int | None, count("Ranks that every layer is split over (default: 1).", "--model")]
