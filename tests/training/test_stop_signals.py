"""Signals that ask a run to stop: the first is noted, one that comes late ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from hybridnn.training.stop_signals import SIGNALS, StopSignals
from mpi_runner.slowness import patience

PROGRAM = """
import os, signal, time
from hybridnn.training import stop_signals
stop_signals.TWICE_SECONDS = 1.0
with stop_signals.StopSignals() as signals:
    os.kill(os.getpid(), signal.{first})
    os.kill(os.getpid(), signal.{first})
    print("noted", signals.received, flush=True)
    time.sleep(1.3)
    os.kill(os.getpid(), signal.{second})
    print("still here", flush=True)
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_the_handlers_come_back(number: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    with StopSignals() as signals:
        assert signals.received == 0
        os.kill(os.getpid(), number)
        assert signals.received == number
    assert [signal.getsignal(one) for one in SIGNALS] == before


@pytest.mark.parametrize(("first", "second"), [("SIGTERM", "SIGTERM"), ("SIGUSR1", "SIGTERM")])
def test_the_same_at_once_is_one_signal_and_a_later_one_ends_the_process(first: str, second: str) -> None:
    program = PROGRAM.format(first=first, second=second)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=patience(60))
    assert ended.stdout == f"noted {getattr(signal, first).value}\n"
    assert ended.returncode == -signal.SIGTERM
