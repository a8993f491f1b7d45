"""Stop signals: the first is recorded, a later one ends the process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hybridnn.runs.callbacks import SIGNALS, StopSignals
from mpi_runner.slowness import deadline

PROGRAM = """
import os, signal, sys, time
from hybridnn.runs import callbacks

signal.signal(signal.SIGINT, signal.default_int_handler)
callbacks.REPEAT_SECONDS = 1.0
children = {}
for first, second in (("SIGTERM", "SIGTERM"), ("SIGUSR1", "SIGTERM"), ("SIGINT", "SIGINT")):
    child = os.fork()
    if child:
        children[child] = first, second
        continue
    with callbacks.StopSignals() as signals:
        os.kill(os.getpid(), getattr(signal, first))
        os.kill(os.getpid(), getattr(signal, first))
        os.write(1, f"{first} recorded {signals.received}\\n".encode())
        time.sleep(1.3)
        os.kill(os.getpid(), getattr(signal, second))
        os.write(1, b"still here\\n")
    os._exit(0)
while children:
    child, status = os.wait()
    first, second = children.pop(child)
    print(first, "ended by", -os.waitstatus_to_exitcode(status))
"""


@pytest.fixture(autouse=True)
def _foreground() -> Iterator[None]:
    """Restore Python's own handler of SIGINT, which a process that a script starts in the background does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_is_recorded_and_the_handlers_are_restored() -> None:
    before = [signal.getsignal(handled) for handled in SIGNALS]
    for number in SIGNALS:
        with StopSignals() as signals:
            assert signals.received == 0
            os.kill(os.getpid(), number)
            assert signals.received == (signal.SIGINT if number == signal.SIGUSR2 else number)
        assert [signal.getsignal(handled) for handled in SIGNALS] == before


def test_a_repeated_signal_counts_once_and_a_later_one_ends_the_process() -> None:
    """In three child processes of one program."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=deadline(60))
    assert sorted(ended.stdout.splitlines()) == [
        *(f"SIGINT {text} {signal.SIGINT.value}" for text in ("ended by", "recorded")),
        f"SIGTERM ended by {signal.SIGTERM.value}",
        f"SIGTERM recorded {signal.SIGTERM.value}",
        f"SIGUSR1 ended by {signal.SIGTERM.value}",
        f"SIGUSR1 recorded {signal.SIGUSR1.value}",
    ]


def test_an_ignored_interrupt_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == 0
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_the_first_interrupt_is_announced_once(capfd: pytest.CaptureFixture[str]) -> None:
    for announces, number, lines in ((True, signal.SIGINT, 1), (False, signal.SIGINT, 0), (True, signal.SIGTERM, 0)):
        with StopSignals(announces=announces):
            for _ in range(2):
                os.kill(os.getpid(), number)
        assert capfd.readouterr().err.count("Ctrl-C again ends") == lines
