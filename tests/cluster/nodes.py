"""Nodes made of Linux namespaces on this machine, the links between them, and commands on them.

``nodes.sh`` makes them, and says what they have in common and what not.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from hybridnn.comm.mpi import OVERSUBSCRIBED
from mpi_runner.launch import JobResult, find_mpirun, run_job
from mpi_runner.slowness import deadline

SCRIPT = Path(__file__).with_name("nodes.sh")
CANNOT = 77
SECONDS_TO_START = 60
SHARED = "run/cluster"


class NodesCannotBeMade(RuntimeError):  # noqa: N818 - the name is the problem
    """This machine, or this user, cannot make nodes; the text says why."""


class Nodes:
    """Nodes with a login node, from the start of a ``with`` block, which raises `NodesCannotBeMade`, to its end.

    They are called node1, node2 and so on. `rate` is that of every link in both directions, as ``tc`` writes it;
    ``"none"`` for no limit. A node has so many slots before mpirun fills the next, and sizes of ``/dev/shm`` and
    ``/run/node``.
    """

    def __init__(self, count: int, rate: str = "none", *, slots: int = 2, shm: str = "1g", local: str = "256m") -> None:
        self.count, self.rate = count, rate
        self._settings = {"SLOTS": str(slots), "SHM": shm, "LOCAL": local}

    def __enter__(self) -> Nodes:
        self._output = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [SCRIPT, str(self.count), self.rate, "sleep", "infinity"],
            env=os.environ | self._settings,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_killed_with_parent,
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End all processes of all nodes: the kernel kills them with the first process of the login node."""
        self._process.kill()
        self._process.wait()
        self._output.close()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(f"node{number + 1}" for number in range(self.count))

    def enter(self, command: Sequence[str], node: str | None = None, folder: Path | None = None) -> list[str]:
        """Return the command that runs `command` on a node, by default on the login node, in a folder."""
        at = command if node is None else [f"/{SHARED}/agent", node, shlex.join(command)]
        script = f"cd {shlex.quote(str(folder or Path.cwd()))} && exec /{SHARED}/login {shlex.join(at)}"
        return [*self._nsenter, "bash", "-c", script]

    def run(
        self,
        command: Sequence[str],
        *,
        node: str | None = None,
        timeout: float = 60.0,
        env: Mapping[str, str | None] | None = None,
        folder: Path | None = None,
    ) -> JobResult:
        """Run a command on a node, by default on the login node, where mpirun places its ranks on the nodes.

        The other parameters are those of `mpi_runner.launch.run_job`.
        """
        changes = {**dict.fromkeys(OVERSUBSCRIBED), **(env or {})}
        return run_job(self.enter(command, node, folder), timeout=timeout, env=changes)

    def run_ranks(
        self,
        ranks: int,
        command: Sequence[str],
        *,
        options: Sequence[str] = (),
        timeout: float = 60.0,
        env: Mapping[str, str | None] | None = None,
        folder: Path | None = None,
    ) -> JobResult:
        """Run a command on so many ranks under mpirun, which fills node after node unless its `options` differ."""
        launched = [find_mpirun(), *options, "-n", str(ranks), *command]
        return self.run(launched, timeout=timeout, env=env, folder=folder)

    def root(self, node: str | None = None) -> Path:
        """Return the root folder of a node, by default of the login node, as seen from outside."""
        login = Path(f"/proc/{self._head}/root")
        return login if node is None else login / "proc" / self._first_process(node) / "root"

    def cut(self, node: str) -> None:
        """Cut the link of a node."""
        (self.root() / SHARED / f"{node}.cut").touch()
        self._on_switch("ip", "link", "set", node, "down")

    def join(self, node: str) -> None:
        """Restore the link of a node."""
        self._on_switch("ip", "link", "set", node, "up")
        (self.root() / SHARED / f"{node}.cut").unlink(missing_ok=True)

    def set_rate(self, rate: str, *nodes: str) -> None:
        """Change the rate of the links of some nodes, by default of all; ``"none"`` removes the limit."""
        for node in nodes or self.names:
            self._on_switch(f"/{SHARED}/limit", node, rate)

    def kill(self, node: str) -> None:
        """End all processes of a node, and with them its link."""
        self._on_switch("kill", "-KILL", self._first_process(node))

    def remove(self, node: str) -> None:
        """Remove a node from the host files of mpirun, as after it was killed."""
        for hosts in self.root().glob(f"{SHARED}/*-hosts"):
            lines = hosts.read_text().splitlines(keepends=True)
            hosts.write_text("".join(line for line in lines if not re.match(rf"{node}\b", line)))

    def remove_names(self, node: str) -> None:
        """Remove all that tells a node the addresses of others: its list of hosts and its name server."""
        for file in ("/etc/hosts", "/etc/resolv.conf"):
            enter = ["nsenter", "--target", self._first_process(node), "--mount"]
            self._on_switch(*enter, "mount", "--bind", "/dev/null", file)

    def fill(self, node: str, folder: str) -> None:
        """Fill the file system of a folder of a node: ``dev/shm`` or ``run/node``."""
        with contextlib.suppress(OSError), open(self.root(node) / folder / "filled", "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))

    @property
    def _nsenter(self) -> list[str]:
        return ["nsenter", "--target", str(self._head), "--mount", "--uts", "--net", "--pid"]

    def _on_switch(self, *command: str) -> None:
        subprocess.run([*self._nsenter, *command], check=True, capture_output=True, timeout=deadline(10))

    def _first_process(self, node: str) -> str:
        """Number of the first process of a node, as the login node counts."""
        return (self.root() / SHARED / f"{node}.pid").read_text().strip()

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + deadline(SECONDS_TO_START)
        while True:
            code = self._process.poll()
            if code is not None or time.monotonic() > end:
                self._output.seek(0)
                text = self._output.read().decode().strip()
                raise (NodesCannotBeMade if code == CANNOT else RuntimeError)(text or f"exit code {code}")
            for child in _children(self._process.pid):
                if Path(f"/proc/{child}/root/{SHARED}/ready").exists():
                    self._head = child
                    return
            time.sleep(0.01)


def _children(process: int) -> list[int]:
    with contextlib.suppress(OSError):  # the process has ended
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def _killed_with_parent() -> None:
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
