"""Commands that start a cell on its ranks: by a launcher that the user names, or by that of this environment."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from hybridnn.comm.launcher import ANYWHERE, RANKS_PER_NODE, RankLauncher, family_of_program
from hybridnn.comm.placement import Placement, mpirun_options, srun_options
from hybridnn.errors import EnvironmentProblem, SettingError

RANKS, NODES = "{ranks}", "{nodes}"
MPIRUNS = ("mpirun", "mpiexec", "prterun", "orterun")
BIND_OPTIONS = ("--bind-to", "-bind-to")


RankCommand = Callable[[int, Sequence[str], Placement], list[str]]
"""``command(ranks, program, placement)`` returns the command that starts a program on several ranks; it raises
`SettingError` if the launcher cannot place them so."""


def rank_command(launcher: str | None, most_ranks: int) -> RankCommand:
    """Check a launcher, and return the function that makes its commands.

    It is split as a shell does; ``{ranks}`` stands for the number of ranks, which it must hold where a run has several,
    and ``{nodes}`` for the nodes of the placement, or those that the ranks fill in a Slurm job with a number of ranks
    per node; ``{ranks_per_node}``, ``{threads}`` and ``{binding}`` stand for the parts of the placement. ``srun`` and
    ``mpirun`` get their options for the placement. None is the launcher of this environment. Raises `SettingError` if
    it is no such command, `EnvironmentProblem` without its program.
    """
    if launcher is None:
        return _command_of(RankLauncher.find(os.environ))
    try:
        template = shlex.split(launcher)
    except ValueError as error:
        raise SettingError("--launcher", launcher, f"cannot be split into words: {error}") from error
    if most_ranks > 1 and RANKS not in launcher:
        raise SettingError("--launcher", launcher, f"must hold {RANKS}, for example 'mpirun -n {RANKS}'")
    if template and shutil.which(template[0]) is None:
        raise EnvironmentProblem(f"--launcher: there is no program {template[0]!r}")

    def command(ranks: int, program: Sequence[str], placement: Placement) -> list[str]:
        values = {"ranks": str(ranks), **placement.texts()}
        if NODES in launcher and placement.nodes is None:
            values["nodes"] = _filled_nodes(launcher, ranks)
        words = _place(template, launcher, placement)
        for name, value in values.items():
            words = [word.replace(f"{{{name}}}", value) for word in words]
        return [*words, *program]

    return command


def in_process_command(launcher: str | None) -> RankCommand:
    """Return the function that makes the commands of ranks in one process, which a launcher is not needed for.

    One that is named starts that process. The function raises `SettingError` if the ranks are to be placed.
    """
    start = None if launcher is None else rank_command(launcher, 1)

    def command(ranks: int, program: Sequence[str], placement: Placement) -> list[str]:
        if not placement.is_free:
            raise SettingError("in_process", True, "ranks of one process cannot be placed on nodes and cores")
        words = [*program, "--in-process", str(ranks)]
        return words if start is None else start(1, words, ANYWHERE)

    return command


def _command_of(found: RankLauncher) -> RankCommand:
    def command(ranks: int, program: Sequence[str], placement: Placement) -> list[str]:
        variables = found.settings(ranks, os.environ, placement).items()
        settings = [f"{name}={value}" for name, value in variables]
        return ["env", *settings, *found.command(ranks, program, os.environ, placement)]

    return command


def _filled_nodes(launcher: str, ranks: int) -> str:
    per_node = os.environ.get(RANKS_PER_NODE, "")
    if not per_node.isdigit() or int(per_node) == 0:
        raise SettingError("--launcher", launcher, f"{NODES} needs a Slurm job that was given --ntasks-per-node")
    return str(-(-ranks // int(per_node)))


def _place(template: Sequence[str], launcher: str, placement: Placement) -> list[str]:
    """The words of a launcher with its options for the placement."""
    if not template or (placement.is_free and placement.threads == 1):
        return list(template)
    program, *words = template
    name = Path(program).name
    if name == "srun":
        return [program, *srun_options(placement), *words]
    if name.startswith(MPIRUNS):
        options = mpirun_options(family_of_program(program, os.environ), placement)
        if set(BIND_OPTIONS) & set(options):  # Open MPI refuses the option twice
            words = _without_option(words, BIND_OPTIONS)
        return [program, *options, *words]
    needs = {"nodes": ("{nodes}", "{ranks_per_node}"), "binding": ("{binding}",)}
    for part, names in needs.items():
        if (text := placement.texts()[part]) and not any(name in launcher for name in names):
            problem = f"does not place ranks: {part} = {text} needs {names[0]} in it, or srun or mpirun as the program"
            raise SettingError("--launcher", launcher, problem)
    return list(template)


def _without_option(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """The words without an option and its value."""
    kept: list[str] = []
    for word in words:
        if kept and kept[-1] in names:
            kept.pop()
        else:
            kept.append(word)
    return kept
