"""The `hybridnn` command: its subcommands, and how errors are reported."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache, wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from hybridnn.cli.options import join_at_equals, no_word_ends_at_equals
from hybridnn.cli.ranks import FirstRankError, discard_output, launch_rank, leave
from hybridnn.errors import INTERRUPTED, EnvironmentProblem, HybridnnError, one_line
from hybridnn.utils.processes import paused_collector

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""The base of all errors of the parser, which typer does not export under a name of its own."""

HELP: dict[str, Any] = {"help_option_names": ["--help", "-h"]}  # settings of every command's context
SUMMARY = "Train multi-layer perceptrons over MPI: batch and model parallelism, layer pipelines."


ENTRY_POINTS = "hybridnn.commands"
"""Group of entry points by which other distributions add commands."""


class CommandEntry(NamedTuple):
    """A command in the help of the root, which loads the module of a command only to run it or to show its own help."""

    place: (
        str  # module in this package, and the name of a function there, or of an application with commands of its own
    )
    summary: str  # first paragraph of its help
    distribution: str = ""  # another one, which brings the command by an entry point of its name


COMMANDS = {
    "train": CommandEntry(
        "train:train",
        "Train a multi-layer perceptron; -n or --in-process starts it on several ranks, as mpirun and srun do.",
    ),
    "run": CommandEntry("ranks:run", "Run a Python script on several ranks: hybridnn run -n 4 script.py."),
    "schedule": CommandEntry(
        "schedule:schedule",
        "Draw what every stage of a pipeline does, with which weights, and prove that it cannot deadlock.",
    ),
    "plan": CommandEntry(
        "plan:plan",
        "Predict the fastest layouts of a number of ranks, or how the best of several numbers scale.",
    ),
    "simulate": CommandEntry(
        "plan:simulate",
        "Simulate training steps of a layout on a machine: the timeline, where the time goes, and how it scales.",
    ),
    "trace": CommandEntry(
        "trace:trace", "Break down where the time of a traced epoch went, and draw what every rank did."
    ),
    "report": CommandEntry(
        "report:report",
        "Show where the time of a run went, or which rank it waited for; of several, what differs and how they scale.",
    ),
    "evaluate": CommandEntry(
        "trained:evaluate", "Evaluate the weights of a run, on its own data or others; several ranks as for train."
    ),
    "export": CommandEntry(
        "trained:export",
        "Write the weights of a run, and the means and scales of its standardization, as plain arrays.",
    ),
    "predict": CommandEntry(
        "trained:predict",
        "Write classes and their probabilities, or numbers in the units of the targets, for samples without targets.",
    ),
    "calibrate": CommandEntry(
        "machine:calibrate",
        "Measure this machine, for plans and predictions; start it with -n and as many ranks as runs will use.",
    ),
    "doctor": CommandEntry(
        "machine:doctor",
        "Check this machine, or ranks and nodes of a job: MPI, threads, cores, GPU, folders; exit code 1 on failures.",
    ),
    "course": CommandEntry("", "Assignments for a class: work on them, hand them out, grade them.", "hybridnn-course"),
    "data": CommandEntry("data:app", "List, describe and download data sets."),
    "formulas": CommandEntry("", "Evaluate the formulas of the papers, section by section.", "hybridnn-papers"),
    "settings": CommandEntry(
        "train:settings", "List the settings of a training, with what each allows and its default."
    ),
    "study": CommandEntry("study:app", "Run and report a study: many runs along a few axes."),
}


def application() -> typer.Typer:
    """All commands as one application of typer, for pages that describe them."""
    whole = typer.Typer(help=SUMMARY)
    for name in COMMANDS:
        _add(whole, name)
    return whole


def _add(to: typer.Typer, name: str) -> None:
    """Load a command, or the application with commands of its own, and add it."""
    entry = COMMANDS[name]
    if entry.distribution:
        found = _installed(name, entry.distribution)
    else:
        module, _, attribute = entry.place.partition(":")
        found = getattr(import_module(f"hybridnn.cli.{module}"), attribute)
    if isinstance(found, typer.Typer):
        for command in found.registered_commands:
            command.callback = _expanding_paths(command.callback)
        to.add_typer(found, name=name)
    else:
        # The options behind a script are its own.
        own = {"allow_interspersed_args": False} if name == "run" else None
        to.command(name, context_settings=own)(_expanding_paths(found))


def _expanding_paths(command: Any) -> Any:
    """A command whose paths may begin with ``~/``, which shells keep behind ``=``; lists of texts are unchanged."""

    @wraps(command)
    def run(**values: Any) -> Any:
        return command(**{name: _expanded(value) for name, value in values.items()})

    return run


def _expanded(value: Any) -> Any:
    if isinstance(value, list):
        return [_expanded(item) if isinstance(item, Path) else item for item in value]
    has_folder = isinstance(value, str | Path) and str(value).partition("/")[0] == "~"
    return type(value)(os.path.expanduser(value)) if has_folder else value


def _installed(name: str, distribution: str) -> Any:
    """Load a command of another distribution."""
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINTS, name=name):
        return point.load()
    raise EnvironmentProblem(f"hybridnn {name} is not installed; pip install {distribution} adds it")


class _Root(TyperGroup):
    """The root of the parser: a command is only its summary, for help and completion, until the arguments name it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: TyperCommand(name, help=entry.summary) for name, entry in COMMANDS.items()}
        self._loaded: set[str] = set()

    def load(self, name: str) -> None:
        """Replace the summary of a command by the command."""
        if name not in self._loaded:
            alone = typer.Typer(add_completion=False)
            alone.callback()(lambda: None)  # without one, typer makes no group of a single command
            _add(alone, name)
            group: Any = typer.main.get_command(alone)
            self.commands[name] = group.commands[name]
            self._loaded.add(name)
            _hide_types_of_flags(self.commands[name])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name, which is loaded."""
        if args and args[0] in COMMANDS:
            with paused_collector():
                self.load(args[0])
        return super().resolve_command(ctx, args)


def _print_version(is_given: bool) -> None:
    if is_given:
        from hybridnn._version import __version__

        print(f"hybridnn {__version__}")
        raise typer.Exit()


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
    # At exit Python would look for garbage among all objects several times, for as long as half an import of NumPy.
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    _open_closed_streams()
    join_at_equals(os.environ)
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    try:
        with _silent_unless_first_rank(), _checked_output(), no_word_ends_at_equals(words):
            status = parser().main(args=words, prog_name="hybridnn", standalone_mode=False)
    except USAGE_ERROR as error:
        leave(_advice(error), error.exit_code)  # type: ignore[attr-defined]  # attribute of the parser's base
    except HybridnnError as error:
        leave(str(error), error.exit_code, together=not isinstance(error, FirstRankError))
    except MemoryError as error:
        leave(f"not enough memory: {one_line(str(error)) or 'Python could not allocate more'}", HybridnnError.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        leave("interrupted", INTERRUPTED)
    if status == INTERRUPTED:  # the parser turns an interrupt into a status
        leave("interrupted", INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _open_closed_streams() -> None:
    """Let a closed standard stream lead nowhere: the next file that is opened would take its place."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # takes the number of the closed one
            os.set_inheritable(nowhere, True)
            setattr(sys, name, os.fdopen(nowhere, "r" if name == "stdin" else "w", closefd=False))


def _advice(error: Any) -> str:
    """A mistake in the words of the command line, in one line, with what to do."""
    from pydantic import ValidationError

    message, cause = str(error.format_message()), error.__cause__
    option = getattr(error, "option_name", "").lstrip("-").replace("-", "_")
    if isinstance(cause, ValidationError):
        from hybridnn.utils.settings_models import first_problem

        return message.replace(str(error.message), first_problem(cause))
    if message.startswith("Missing ") and (text := getattr(error.param, "help", "")):
        return f"{message.rstrip('.')}: {text}"
    if message.startswith("No such command 'compare'"):
        return "No such command 'compare'; use hybridnn report RUN RUN"
    is_train = error.ctx is not None and error.ctx.info_name == "train"
    if message.startswith("Got unexpected extra") and is_train:
        return f"{message}; write lists with commas, as in 64,64, and settings with =, as in --set optimizer.lr=0.1"
    if message.startswith("No such option") and is_train:
        from hybridnn.config.settings import Settings, known_names

        names = [name for name in known_names(Settings) if name.endswith(f".{option}") or name == f"{option}.name"]
        if names:
            return f"{message}; the setting is --set {names[0]}=VALUE"
        words = option.replace("_", " ")
        begins = re.compile(rf"{re.escape(words)}\b", re.I).match
        meant = [known.opts[0] for known in error.ctx.command.params if begins(getattr(known, "help", None) or "")]
        return f"{message}; did you mean {meant[0]}?" if meant else message
    return message


@lru_cache(maxsize=1)
def parser() -> Any:
    """The parser of all subcommands; the application object itself would replace `sys.excepthook`."""
    with paused_collector():
        root = typer.Typer(help=SUMMARY, cls=_Root)
        root.callback(invoke_without_command=True, context_settings=HELP)(_root)
        parser = typer.main.get_command(root)
        _hide_types_of_flags(parser)
    return parser


def whole_parser() -> Any:
    """The parser with all commands loaded, for pages that describe them."""
    root = parser()
    for name in COMMANDS:
        root.load(name)
    return root


def _hide_types_of_flags(command: Any) -> None:
    """Remove ``<bool>`` behind flags from the help: they take no value."""
    for option in command.get_params(typer.Context(command, **HELP)):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for subcommand in getattr(command, "commands", {}).values():
        _hide_types_of_flags(subcommand)


@contextlib.contextmanager
def _checked_output() -> Iterator[None]:
    """Write all output before the end; raise `EnvironmentProblem` where it cannot be written, as on a full disk."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        try:
            print(flush=True)  # of an unbuffered stream nothing is left that a flush could write
        except OSError:
            discard_output()  # as Python writes its rest at exit
        else:
            raise
        if isinstance(error, BrokenPipeError):  # who read it wants no more
            sys.exit(1)
        raise EnvironmentProblem(f"the output cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def _silent_unless_first_rank() -> Iterator[None]:
    if launch_rank() in (None, 0):
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
