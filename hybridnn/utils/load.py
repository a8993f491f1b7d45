"""Load of a node: the cores that processes outside the job keep busy, from the counters of ``/proc/stat``."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

CPU_COUNTERS = Path("/proc/stat")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
USER, NICE, SYSTEM, STEAL = 0, 1, 2, 7
"""Columns of busy time. Interrupts are left out: those of a network belong to the messages of the job."""


def busy_seconds(text: str, ticks: int) -> dict[int, float]:
    """Seconds since the start of the system in which each core was busy, or taken by another virtual machine.

    Parameters
    ----------
    text : str
        Content of ``/proc/stat`` (proc_stat(5)); lines that are not those of a core are skipped.
    ticks : int
        Units of its times in a second.
    """
    found = {}
    for line in text.splitlines():
        name, *columns = line.split() or [""]
        if name.startswith("cpu") and name[3:].isdigit() and len(columns) > STEAL:
            found[int(name[3:])] = sum(int(columns[column]) for column in (USER, NICE, SYSTEM, STEAL)) / ticks
    return found


def counters_id() -> str:
    """Identity of the counters of this node: nodes made of namespaces, such as containers, share those of a kernel."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


class LoadMeter:
    """Busy cores of this node, and those that this process keeps busy, since it was made or last read."""

    def __init__(self) -> None:
        self._before = self._read()

    def read(self) -> tuple[dict[int, float], float]:
        """Least share of the time in which each core was busy, by its number, and that of this process in cores.

        The counters are exact to one unit, which is subtracted: a core was busy for at least the rest. Cores are
        missing where the system does not count their time.
        """
        (start, own, busy), self._before = self._before, self._read()
        end, own_now, busy_now = self._before
        seconds, unit = max(end - start, 1e-9), 1 / os.sysconf("SC_CLK_TCK")
        cores = busy_now.keys() & busy.keys()
        shares = {core: max(0.0, busy_now[core] - busy[core] - unit) / seconds for core in cores}
        return shares, (own_now - own) / seconds

    @staticmethod
    def _read() -> tuple[float, float, dict[int, float]]:
        try:
            text = CPU_COUNTERS.read_text(encoding="ascii", errors="replace")
        except OSError:
            text = ""
        counted = busy_seconds(text, os.sysconf("SC_CLK_TCK")) if text else {}
        return time.perf_counter(), time.process_time(), counted
