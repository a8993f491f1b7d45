from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridnn.kernels.device_events import is_complete, wait_for
from hybridnn.kernels.pinned_memory import PinnedMemory


class DeviceError(RuntimeError):
    pass


class FailedEvent:
    ptr = 7

    def synchronize(self) -> None:
        raise DeviceError("an illegal memory access was encountered")


def cupy_that_answers(status: int) -> Any:
    return SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(eventQuery={7: status}.__getitem__)))


@pytest.mark.parametrize(("status", "passed"), [(0, True), (600, False)])
def test_an_event_is_passed_or_not_yet(status: int, passed: bool) -> None:
    assert is_complete(cupy_that_answers(status), FailedEvent()) is passed


def test_a_device_that_failed_is_not_asked_for_ever() -> None:
    with pytest.raises(DeviceError, match="illegal memory access"):
        is_complete(cupy_that_answers(700), FailedEvent())


class SlowEvent:
    """Passes when something was done for the other ranks three times."""

    ptr = 7

    def __init__(self) -> None:
        self.done = 0
        self.cupy = SimpleNamespace(
            cuda=SimpleNamespace(
                runtime=SimpleNamespace(eventQuery=lambda ptr: 0 if self.done >= 3 else 600),
                alloc_pinned_memory=bytearray,
            )
        )

    def progress(self) -> None:
        self.done += 1

    def synchronize(self) -> None:
        raise AssertionError("the other ranks wait for this one")


def test_a_rank_that_others_need_serves_them_while_it_waits() -> None:
    event = SlowEvent()
    wait_for(event.cupy, event, event.progress)
    assert event.done == 3
    event = SlowEvent()
    pinned = PinnedMemory(event.cupy, event.progress)
    memory = pinned.acquire(10)
    pinned.release(memory, event)
    pinned.wait_for_all_but(1)
    assert event.done == 0
    pinned.wait_for_all_but(0)
    assert event.done == 3
    assert pinned.acquire(10) is memory


def test_a_rank_that_nobody_needs_asks_nothing_again_and_again() -> None:
    waited = []
    event: Any = SimpleNamespace(ptr=7, synchronize=lambda: waited.append(True))
    wait_for(cupy_that_answers(600), event, None)
    assert waited == [True]
