"""Stop signals: the first is recorded, a later one ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from hybridnn import MLP, Trainer
from hybridnn.runs.stop_signals import SIGNALS, StopSignals
from hybridnn.training.records import StepRecord
from mpi_runner.slowness import deadline

PROGRAM = """
import os, signal, time
from hybridnn.runs import stop_signals
signal.signal(signal.SIGINT, signal.default_int_handler)
stop_signals.REPEAT_SECONDS = 1.0
with stop_signals.StopSignals() as signals:
    os.kill(os.getpid(), signal.{first})
    os.kill(os.getpid(), signal.{first})
    print("recorded", signals.received, flush=True)
    time.sleep(1.3)
    os.kill(os.getpid(), signal.{second})
    print("still here", flush=True)
"""


@pytest.fixture(autouse=True)
def _foreground() -> Iterator[None]:
    """Restore Python's own handler of SIGINT, which a process that a script starts in the background does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_recorded_and_the_handlers_are_restored(number: signal.Signals) -> None:
    before = [signal.getsignal(handled) for handled in SIGNALS]
    with StopSignals() as signals:
        assert signals.received == 0
        os.kill(os.getpid(), number)
        assert signals.received == (signal.SIGINT if number == signal.SIGUSR2 else number)
    assert [signal.getsignal(handled) for handled in SIGNALS] == before


@pytest.mark.parametrize(("first", "second"), [("SIGTERM", "SIGTERM"), ("SIGUSR1", "SIGTERM"), ("SIGINT", "SIGINT")])
def test_a_repeated_signal_counts_once_and_a_later_one_ends_the_process(first: str, second: str) -> None:
    program = PROGRAM.format(first=first, second=second)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=deadline(60))
    assert ended.stdout == f"recorded {getattr(signal, first).value}\n"
    assert ended.returncode == -getattr(signal, second)


def test_an_ignored_interrupt_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == 0
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


@pytest.mark.parametrize(
    ("announces", "number", "lines"), [(True, "SIGINT", 1), (False, "SIGINT", 0), (True, "SIGTERM", 0)]
)
def test_the_first_interrupt_is_announced_once(
    announces: bool, number: str, lines: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with StopSignals(announces=announces):
        for _ in range(2):
            os.kill(os.getpid(), getattr(signal, number))
    err = capfd.readouterr().err
    assert err.count("interrupted: a checkpoint is written at the next step boundary; Ctrl-C again ends") == lines


def test_the_python_interface_raises_keyboard_interrupt() -> None:
    trainer = Trainer(MLP([2, 3, 1]), batch_size=2, log_every=1)

    def interrupt(record: StepRecord) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trainer.fit(np.ones((8, 2)), np.ones((8, 1)), epochs=1, on_step=interrupt)
    assert trainer.step == 1
