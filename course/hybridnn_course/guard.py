"""The library in the process of a rank: what a handout does not offer cannot be imported.

So a task is not solved by an import that was not meant. Nothing of it isolates; that is `hybridnn_course.isolation`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection
from typing import Any

from hybridnn_course.flagged_code import LIBRARIES, is_in

KIT = ("hybridnn_course", "hybridnn_course_staff")


def hide_library(offered: Collection[str], modules: Collection[str], *, trains: bool) -> None:
    """Hide modules of the library from the code that runs in this process from now on.

    Parameters
    ----------
    offered : collection of str
        Modules of the library that the handout offers.
    modules : collection of str
        Further modules that the course allows; if one of them is the library's, nothing is hidden.
    trains : bool
        Whether the library is needed, too: then only the class kit is hidden.
    """
    for name in offered:
        importlib.import_module(name)
    if any(is_in(name, LIBRARIES) for name in modules):
        return
    hidden = KIT if trains else LIBRARIES
    for name in [*sys.modules]:
        if is_in(name, hidden) and name not in offered:
            del sys.modules[name]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "import" and is_in(arguments[0], hidden):
            raise ImportError(f"{arguments[0]}: the handout does not offer it")

    sys.addaudithook(hook)
