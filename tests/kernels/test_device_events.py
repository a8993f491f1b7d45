from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridnn.kernels.device_events import has_passed


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
    assert has_passed(cupy_that_answers(status), FailedEvent()) is passed


def test_a_device_that_failed_is_not_asked_for_ever() -> None:
    with pytest.raises(DeviceError, match="illegal memory access"):
        has_passed(cupy_that_answers(700), FailedEvent())
