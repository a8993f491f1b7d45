"""Faults of a network and of nodes, and what a run must do after each."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster.nodes import Nodes
from fault_drill.damage import fill

__all__ = ["FAST", "NETWORK_FAULTS", "NetworkFault"]

FAST, CRAWL = "none", "20kbit"
CRAWL_SECONDS = 40.0
FULL_DISK_BYTES = 4096
UNREACHED = (
    r"host NODE cannot be reached|hosts (\S+, )*NODE(, \S+)* do not reach each other"
    r"|host NODE, process \d+[^)]*\) gave no sign|no answer from NODE \("
)
SLOW_LINK = r"host NODE is reached slowly|hosts (\S+, )*NODE(, \S+)* reach each other slowly"
NO_DAEMON = r"(?s:failed to report back.{0,600}Remote host:\s+NODE\s)"
LOST_DAEMON = r"(?s:lost communication with a remote daemon.{0,600} on node NODE\s)"
NO_MEMORY = (
    r"(?s:not enough space for /dev/shm.{0,600}Local host:\s+NODE\s)"
    r"|Error on rank \d+ on NODE: the node's shared memory has no room"
)


@dataclass(frozen=True)
class NetworkFault:
    """A fault of a node or of its link."""

    act: Callable[[Nodes, str, Path], None]  # causes it, given the name of the node and the disk of the runs
    ends: bool | None  # whether the run must end; None if it may
    pattern: str = ""  # of the output of a run that ends; NODE is the name of the node
    code: int | None = None  # its exit code, by default any but 0
    at_start: bool = False  # whether the fault is there before the run starts
    loses_node: bool = False  # whether the node no longer exists
    stalls: bool = False  # whether the stall watchdog ends the run; if `ends` is None, when nothing is finished

    def complaint(self, code: int, output: str, node: str) -> str | None:
        """Error in the end of a run with this fault, or None."""
        if code == 0:
            return "exit code 0: the run did not end" if self.ends else None
        if self.ends is False:
            return f"exit code {code} of a run that must go on"
        if self.code is not None and code != self.code:
            return f"exit code {code}, not {self.code}"
        pattern = self.pattern.replace("NODE", node)
        return None if re.search(pattern, output) else f"the output has no match of {pattern!r}"


def _cut_for_a_moment(nodes: Nodes, node: str, disk: Path) -> None:
    nodes.cut(node)
    time.sleep(2)
    nodes.join(node)


def _slow_down(nodes: Nodes, node: str, disk: Path) -> None:
    nodes.set_rate(CRAWL, node)
    time.sleep(4)
    nodes.set_rate(FAST, node)


def _crawl(nodes: Nodes, node: str, disk: Path) -> None:
    """Slow a link down for long: the run stalls, or goes on slowly until the link is repaired."""
    nodes.set_rate(CRAWL, node)

    def repair() -> None:
        with contextlib.suppress(subprocess.SubprocessError, OSError):  # the nodes may be gone
            nodes.set_rate(FAST, node)

    timer = threading.Timer(CRAWL_SECONDS, repair)
    timer.daemon = True
    timer.start()


def _lose(nodes: Nodes, node: str, disk: Path) -> None:
    """End a node as a power failure does: no process can close its connections."""
    nodes.cut(node)
    nodes.kill(node)


def _fill(folder: str) -> Callable[[Nodes, str, Path], None]:
    return lambda nodes, node, disk: nodes.fill(node, folder)


def _nothing(nodes: Nodes, node: str, disk: Path) -> None:
    pass


NETWORK_FAULTS = {
    "link cut for 2 s": NetworkFault(_cut_for_a_moment, ends=False),
    "link slow": NetworkFault(_slow_down, ends=False),
    "link cut": NetworkFault(lambda nodes, node, disk: nodes.cut(node), True, UNREACHED, 1, stalls=True),
    "node killed": NetworkFault(
        lambda nodes, node, disk: nodes.kill(node), True, f"{NO_DAEMON}|{LOST_DAEMON}|{UNREACHED}", loses_node=True
    ),
    "node lost": NetworkFault(_lose, True, UNREACHED, 1, loses_node=True, stalls=True),
    "clock wrong": NetworkFault(_nothing, ends=False),
    "names gone at start": NetworkFault(lambda nodes, node, disk: nodes.remove_names(node), ends=False, at_start=True),
    "names gone": NetworkFault(lambda nodes, node, disk: nodes.remove_names(node), ends=False),
    "run disk full": NetworkFault(
        lambda nodes, node, disk: fill(disk, FULL_DISK_BYTES), True, "cannot be written: No space left on device", 2
    ),
    "node disk full at start": NetworkFault(_fill("run/node"), True, NO_DAEMON, at_start=True),
    "node disk full": NetworkFault(_fill("run/node"), ends=False),
    "node memory full at start": NetworkFault(_fill("dev/shm"), None, NO_MEMORY, at_start=True),
    "node memory full": NetworkFault(_fill("dev/shm"), ends=False),
    "node memory small": NetworkFault(_nothing, None, NO_MEMORY, at_start=True),
    "link crawls": NetworkFault(_crawl, None, f"{SLOW_LINK}|{UNREACHED}", 1, stalls=True),
}
"""By name."""
