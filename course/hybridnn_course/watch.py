"""Watch over the memory and the processes of a whole submission, which limits of a process do not bound."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

from hybridnn_course.isolation import MEMORY_BYTES

MOST_PROCESSES = 64  # of all ranks of a case, besides each rank and the two that hold its namespaces
SECONDS = 0.1  # between two looks
COUNTED = ("RssAnon:", "RssShmem:")


class Watch(Thread):
    """Ends the ranks of a worker that have too much memory or too many processes together.

    Parameters
    ----------
    process : int
        The worker, or bubblewrap, in which it runs.

    Attributes
    ----------
    over : str
        What was exceeded in this case; empty if nothing was.
    times : dict
        Seconds of processor time that each process was seen to have in this case. The kernel forgets those of processes
        that end with their namespace.
    """

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self._process, self._ended = process, Event()
        self.begin(1)
        self.start()

    def begin(self, ranks: int) -> None:
        """Begin a case."""
        self._most = MOST_PROCESSES + 3 * ranks
        self.over = ""
        self.times: dict[int, float] = {}

    def run(self) -> None:
        """Look until `end`."""
        while not self._ended.wait(SECONDS):
            found = list(_descendants(_worker(self._process)))
            for process in found:
                self.times[process] = max(self.times.get(process, 0.0), _seconds(process))
            memory = sum(map(_memory, found))
            if memory > MEMORY_BYTES:
                self.over = f"more than {MEMORY_BYTES >> 30} GiB of memory together"
            elif len(found) > self._most:
                self.over = f"more than {self._most} processes together"
            else:
                continue
            for process in found:
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)

    def end(self) -> None:
        """Look no longer."""
        self._ended.set()
        self.join()


def _worker(process: int) -> int:
    """The worker inside bubblewrap, which is two processes around it."""
    while _read(process, "comm").strip() == "bwrap" and (inside := next(_children(process), None)):
        process = inside
    return process


def _descendants(process: int) -> Iterator[int]:
    for child in _children(process):
        yield child
        yield from _descendants(child)


def _children(process: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            yield from map(int, _read(process, f"task/{thread}/children").split())


def _memory(process: int) -> int:
    """Bytes of a process that are no pages of files."""
    lines = (line.split() for line in _read(process, "status").splitlines())
    return sum(int(words[1]) << 10 for words in lines if words[0] in COUNTED)


def _seconds(process: int) -> float:
    """Processor time of a process that is there."""
    words = _read(process, "stat").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK") if words else 0.0


def _read(process: int, name: str) -> str:
    try:
        return Path(f"/proc/{process}/{name}").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
