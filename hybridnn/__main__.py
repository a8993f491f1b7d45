"""The ``hybridnn`` command, also as ``python -m hybridnn``."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn

from hybridnn.errors import INTERRUPTED


def main() -> NoReturn:
    """Run the command line; Ctrl-C ends the process without a traceback also while modules are imported."""
    python_handler = signal.getsignal(signal.SIGINT)
    if python_handler is signal.default_int_handler:  # in the background of a shell the signal is ignored
        signal.signal(signal.SIGINT, _exit)
    from hybridnn.cli.main import main as run_command

    signal.signal(signal.SIGINT, python_handler)
    run_command()


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"Error: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
