"""CUDA events: completion, failed devices, and progress while waiting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridnn.gpu.device import PinnedMemory, is_complete, wait_for


class DeviceError(RuntimeError):
    pass


class FailedEvent:
    ptr = 7

    def synchronize(self) -> None:
        raise DeviceError("an illegal memory access was encountered")


def cupy_with_status(status: int) -> Any:
    return SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(eventQuery={7: status}.__getitem__)))


@pytest.mark.parametrize(("status", "passed"), [(0, True), (600, False)])
def test_completion_of_events(status: int, passed: bool) -> None:
    assert is_complete(cupy_with_status(status), FailedEvent()) is passed


def test_a_failed_device_raises_its_error() -> None:
    with pytest.raises(DeviceError, match="illegal memory access"):
        is_complete(cupy_with_status(700), FailedEvent())


class SlowEvent:
    """Completes after three calls of `progress`."""

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
        raise AssertionError("must not block while other ranks need progress")


def test_progress_is_called_while_waiting() -> None:
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


def test_waiting_without_progress_is_left_to_cuda() -> None:
    waited = []
    event: Any = SimpleNamespace(ptr=7, synchronize=lambda: waited.append(True))
    wait_for(cupy_with_status(600), event, None)
    assert waited == [True]
