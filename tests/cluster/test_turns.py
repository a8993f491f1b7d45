"""Turns of tests that run side by side."""

from __future__ import annotations

import fcntl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster.turns import NEXT, turn


def _wait_until_one_is_next(folder: Path) -> None:
    with open(folder / NEXT, "wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.001)


def test_who_waits_for_the_machine_is_the_next_to_have_it(tmp_path: Path) -> None:
    order: list[str] = []

    def take(name: str, *, alone: bool) -> None:
        with turn(tmp_path, alone=alone):
            order.append(name)

    with ThreadPoolExecutor(2) as pool:
        with turn(tmp_path, alone=False):
            pool.submit(take, "beside", alone=False).result()
            waiting = pool.submit(take, "alone", alone=True)
            _wait_until_one_is_next(tmp_path)
            later = pool.submit(take, "later", alone=False)
            order.append("end")
        waiting.result()
        later.result()
    assert order == ["beside", "end", "alone", "later"]
