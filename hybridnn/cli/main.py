"""The `hybridnn` command: its subcommands, and how errors are reported."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, NoReturn

import typer

from hybridnn.cli.calibrate import calibrate
from hybridnn.cli.compare import compare
from hybridnn.cli.course.app import app as course_app
from hybridnn.cli.data import app as data_app
from hybridnn.cli.doctor import doctor
from hybridnn.cli.formulas import app as formulas_app
from hybridnn.cli.partition import partition
from hybridnn.cli.plan import plan
from hybridnn.cli.ranks import FirstRankError, launch_rank, leave, run
from hybridnn.cli.report import report, stall
from hybridnn.cli.schedule import schedule
from hybridnn.cli.simulate import simulate
from hybridnn.cli.study import app as study_app
from hybridnn.cli.trace import trace
from hybridnn.cli.train import train
from hybridnn.cli.trained import evaluate, export, predict
from hybridnn.errors import INTERRUPTED, HybridnnError

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""The base of all errors of the parser, which typer does not export under a name of its own."""

SUMMARY = "Train multi-layer perceptrons over MPI: batch and model parallelism, layer pipelines."

app = typer.Typer(help=SUMMARY)
app.command()(train)
app.command(context_settings={"allow_interspersed_args": False})(run)
COMMANDS: tuple[Callable[..., None], ...] = (
    *(schedule, partition, plan, simulate, trace, report, compare, stall),
    *(evaluate, export, predict, calibrate, doctor),
)
for _command in COMMANDS:
    app.command()(_command)
app.add_typer(course_app, name="course")
app.add_typer(data_app, name="data")
app.add_typer(formulas_app, name="formulas")
app.add_typer(study_app, name="study")


def _print_version(is_given: bool) -> None:
    if is_given:
        from hybridnn._version import __version__

        print(f"hybridnn {__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    A user's mistake ends all ranks with one line and its exit code; any other exception propagates to the hook that
    ends the whole job.
    """
    try:
        with _silent_unless_first_rank():
            status = parser().main(
                args=None if arguments is None else list(arguments), prog_name="hybridnn", standalone_mode=False
            )
    except USAGE_ERROR as error:
        message: str = error.format_message()  # type: ignore[attr-defined]  # attributes of the parser's base
        leave(message.replace("Value error, ", ""), error.exit_code)  # type: ignore[attr-defined]
    except HybridnnError as error:
        leave(str(error), error.exit_code, together=not isinstance(error, FirstRankError))
    except (KeyboardInterrupt, typer.Abort):
        leave("interrupted", INTERRUPTED)
    if status == INTERRUPTED:  # the parser turns an interrupt into a status
        leave("interrupted", INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


@lru_cache(maxsize=1)
def parser() -> Any:
    """The parser of all subcommands; the application object itself would replace `sys.excepthook`."""
    parser = typer.main.get_command(app)
    _hide_types_of_flags(parser)
    return parser


def _hide_types_of_flags(command: Any) -> None:
    """Remove ``<bool>`` behind flags from the help: they take no value."""
    for option in command.get_params(typer.Context(command)):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for subcommand in getattr(command, "commands", {}).values():
        _hide_types_of_flags(subcommand)


@contextlib.contextmanager
def _silent_unless_first_rank() -> Iterator[None]:
    if launch_rank() in (None, 0):
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
