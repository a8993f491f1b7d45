"""Users of the ranks of submissions: no two graders of a machine have the same."""

from __future__ import annotations

import subprocess
import sys
from uuid import uuid4

import pytest

from hybridnn.errors import EnvironmentProblem
from hybridnn_course import isolation
from hybridnn_course.isolation import USERS, ReservedUsers

OTHER = """
from hybridnn_course import isolation
isolation.LOCK = {lock!r}
users = isolation.ReservedUsers()
print(users.first, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def lock(monkeypatch: pytest.MonkeyPatch) -> str:
    """Names that the graders of other tests do not use."""
    name = f"\0hybridnn-course-test-{uuid4()}-"
    monkeypatch.setattr(isolation, "LOCK", name)
    return name


def test_users_are_not_shared_until_they_are_released() -> None:
    one, other = ReservedUsers(), ReservedUsers()
    assert abs(one.first - other.first) >= USERS
    one.release()
    again = ReservedUsers()
    assert again.first == one.first
    other.release()
    again.release()


def test_users_are_not_shared_with_other_processes_and_end_with_them(lock: str) -> None:
    command = [sys.executable, "-c", OTHER.format(lock=lock)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    theirs = int(process.stdout.readline())
    own = ReservedUsers()
    assert own.first != theirs
    own.release()
    process.kill()
    process.communicate()
    own = ReservedUsers()
    assert own.first == theirs
    own.release()


def test_too_many_graders_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "WORKERS", 0)
    with pytest.raises(EnvironmentProblem, match="already"):
        ReservedUsers()
