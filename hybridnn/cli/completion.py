"""What shells complete: names of methods, data sets, studies and machines, and settings with their values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, MutableMapping

from typer import _completion_classes, _completion_shared

BASH = "_HYBRIDNN_COMPLETE", "complete_bash"
"""Variable and value by which the script of bash asks for completions."""
SETTING = "_HYBRIDNN_SETTING"
"""Variable with the setting whose value bash asks for."""


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
    from hybridnn.config.reference import allowed_values
    from hybridnn.data import catalogue

    values = list(catalogue()) if name == "data.name" else allowed_values(name)
    return [value for value in values if value.startswith(incomplete.lower())]


def changes(incomplete: str) -> list[str]:
    """Ends of ``--set``: ``section.key=``, and behind it the values of a setting with choices."""
    if SETTING in os.environ:
        return _values(os.environ[SETTING], incomplete)
    name, equals, value = incomplete.partition("=")
    return [f"{name}={found}" for found in _values(name, value)] if equals else [f"{n}=" for n in setting_names(name)]


def end_no_word_at_equals() -> None:
    """Make the script of bash add no blank to a completion that ends in ``=``, whose value follows."""
    reply, ending = "    return 0\n", "    [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2> /dev/null\n"
    script = _completion_shared.COMPLETION_SCRIPT_BASH.replace(reply, ending + reply)
    _completion_classes.BashComplete.source_template = script  # that is printed
    _completion_shared._completion_scripts["bash"] = script  # that is installed


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
