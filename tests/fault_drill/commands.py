"""Several commands of ``hybridnn``, one after another: ``python -m fault_drill.commands FOLDER COMMANDS.json``.

Each command runs in a process that is forked after all imports, which halves the time of a trial.
Output and exit code go to ``command-N.txt`` and ``command-N.code`` in FOLDER.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["MEMORY", "main"]

MEMORY = 4 << 30
"""Limit of the address space of a command, which ends it if it reads an endless file."""

LOADED = ("numpy", "hybridnn.cli.main", "hybridnn.runs.run", "hybridnn.runs.inference")
"""Modules that most commands need, none of which starts MPI."""


def main() -> None:
    """Run all commands, even if some fail."""
    folder, commands = Path(sys.argv[1]), json.loads(sys.argv[2])
    for name in LOADED:
        importlib.import_module(name)
    for number, arguments in enumerate(commands):
        process = os.fork()
        if process == 0:
            _run(arguments, folder / f"command-{number}.txt")
            return
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        (folder / f"command-{number}.code").write_text(str(code))


def _run(arguments: Sequence[str], output: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    from hybridnn.cli.main import main as hybridnn
    from hybridnn.runs import report

    report.draw_learning_curve = lambda *_: None
    hybridnn(list(arguments))


if __name__ == "__main__":
    main()
