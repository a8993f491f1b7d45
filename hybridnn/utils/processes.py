"""Processes: children with a time limit, the collector of garbage, and TCP connections as Linux lists them."""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPEAT_SECONDS = 1.0  # a signal that is repeated within this time counts as one: launchers may send it twice


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Do not look for garbage in the block.

    Imports are a tenth faster, because their objects stay. And where frames of another thread are read, the finalizers
    of garbage would let it run on, so that a frame would be of memory that is in use for something else.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True)
class ChildResult:
    """Result of a child process."""

    code: int  # exit code, negative for a signal
    # standard output and standard error
    output: str
    errors: str
    timed_out: bool  # whether it was killed at the time limit

    @property
    def summary(self) -> str:
        """How the process ended, as the end of a sentence."""
        if self.timed_out:
            return "did not end in time"
        if self.code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-self.code).name}"
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        return f"ended with exit code {self.code}" + (f": {lines[-1]}" if lines and self.code else "")


def run_child(command: Sequence[str], seconds: float, environment: Mapping[str, str]) -> ChildResult:
    """Run a command, and kill it with all processes that it started when `seconds` have passed.

    Raises `OSError` if it cannot be started.
    """
    # Files, not pipes: processes that outlive the child could keep a pipe open forever.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(environment), start_new_session=True
        )
        timed_out = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return ChildResult(code, texts[0], texts[1], timed_out)


# -- TCP connections ---------------------------------------------------------------------------------------------------

TABLES = "tcp", "tcp6"
OPEN_STATES = {"01", "04", "08"}  # established, or closed by one side
RESOLVE_SECONDS = 1.0  # without a name server, a resolver waits for long
MIN_RETRANSMISSIONS = 2  # a single one is usual on a busy link


@dataclass(frozen=True)
class Connection:
    """An open TCP connection to another address."""

    local: str  # IP address
    remote: str
    inode: str  # identifies it on this host
    is_silent: bool  # whether the remote side does not acknowledge data that was sent again and again
    is_waiting: bool = False  # whether data that was sent is not acknowledged yet


def open_connections(process: int | str = "self") -> tuple[Connection, ...]:
    """Connections of a process of this host; none where the system does not list them."""
    own = _sockets_of(process)
    found = []
    for table in TABLES:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{process}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                _, local, remote, state, queues, _, retransmissions, _, _, inode, *_ = line.split()
                if inode in own and state in OPEN_STATES:
                    is_waiting = int(queues.partition(":")[0], 16) > 0
                    is_silent = is_waiting and int(retransmissions, 16) >= MIN_RETRANSMISSIONS
                    found.append(Connection(_address(local), _address(remote), inode, is_silent, is_waiting))
    return tuple(connection for connection in found if connection.local != connection.remote)


def host_of(address: str) -> str:
    """``name (address)``, or the address alone where it has no name within a second."""
    names = []

    def resolve() -> None:
        with contextlib.suppress(OSError):
            names.append(socket.gethostbyaddr(address)[0])

    resolver = threading.Thread(target=resolve, daemon=True)
    resolver.start()
    resolver.join(RESOLVE_SECONDS)
    return f"{names[0]} ({address})" if names else address


def _sockets_of(process: int | str) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in os.scandir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                kind, _, inode = os.readlink(descriptor.path).partition(":")
                if kind == "socket":
                    found.add(inode.strip("[]"))
    return found


def _address(text: str) -> str:
    """IP address of ``0100007F:1F90``, whose words of four bytes are in the byte order of the machine."""
    digits = text.partition(":")[0]
    words = (bytes.fromhex(digits[start : start + 8]) for start in range(0, len(digits), 8))
    address = ipaddress.ip_address(b"".join(int.from_bytes(word, "big").to_bytes(4, sys.byteorder) for word in words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
