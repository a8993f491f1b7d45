"""Pipeline methods and optimizers that installed packages add by entry points."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterator
from importlib.metadata import entry_points
from typing import Any

GROUPS = {"parallel.method": "hybridnn.methods", "optimizer.name": "hybridnn.optimizers"}
"""Groups of entry points, by the setting that takes their names."""


def installed(
    setting: str, what: str, is_one: Callable[[Any], bool], own: Collection[str]
) -> Iterator[tuple[str, Any]]:
    """Names and objects of the entry points of a setting; a warning for each that cannot be used.

    The setting is a key of `GROUPS`; messages call an object `what`. One for which `is_one` is true has an attribute
    ``name``, which must be that of the entry point and none of the `own` ones, which are taken.
    """
    for point in entry_points(group=GROUPS[setting]):
        try:
            found = point.load()
        except Exception as error:  # of code of others
            problem = f"{type(error).__name__}: {error}"
        else:
            problem = ""
            if not is_one(found):
                problem = f"it is no {what}"
            elif found.name != point.name:
                problem = f"its name is {found.name}"
            elif found.name in own:
                problem = "hybridnn has one of that name"
        if problem:
            warnings.warn(f"the {what} {point.name} ({point.value}) is left out: {problem}", stacklevel=2)
        else:
            yield point.name, found


def package_note(setting: str, name: str) -> str:
    """A comment in TOML about the package that adds a value of a setting, for `noted_package`."""
    packages = [point.dist for point in entry_points(group=GROUPS[setting], name=name) if point.dist is not None]
    return "".join(f"# {setting} is of the package {package.name} {package.version}\n" for package in packages[:1])


def noted_package(setting: str, text: str) -> str:
    """The package that a comment in a text names for a setting; empty without one."""
    found = re.search(rf"^# {re.escape(setting)} is of the package (.+)$", text, re.MULTILINE)
    return found[1] if found else ""
