"""The nodes themselves: what they share and what not, their links, and that nothing of them remains."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster.conftest import made
from cluster.nodes import Nodes
from mpi_runner.slowness import deadline

FACTS = """
import json, os, socket, time
facts = {
    "host": socket.gethostname(),
    "addresses": socket.gethostbyname_ex(socket.gethostname())[2],
    "memory": sorted(os.listdir("/dev/shm")),
    "temporary": os.environ["TMPDIR"],
    "clock": time.monotonic(),
    "folder": os.getcwd(),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
}
print(json.dumps(facts))
"""


def _facts(nodes: Nodes, node: str, folder: Path) -> dict[str, object]:
    result = nodes.run([sys.executable, "-c", FACTS], node=node, folder=folder)
    assert result.returncode == 0, result.stderr
    facts: dict[str, object] = json.loads(result.stdout)
    return facts


def test_nodes_differ_as_machines_do(four_nodes: Nodes, tmp_path: Path) -> None:
    (four_nodes.root("node2") / "dev/shm/mark").touch()
    facts = [_facts(four_nodes, node, tmp_path) for node in four_nodes.names]
    assert [fact["host"] for fact in facts] == list(four_nodes.names)
    assert [fact["addresses"] for fact in facts] == [[f"10.99.0.{number}"] for number in (1, 2, 3, 4)]
    assert [fact["memory"] for fact in facts] == [[], ["mark"], [], []]
    assert {fact["folder"] for fact in facts} == {str(tmp_path)}
    clocks = [float(str(fact["clock"])) for fact in facts]
    assert all(later - clock > 900 for clock, later in itertools.pairwise(clocks))
    assert all(int(str(fact["processes"])) < 8 for fact in facts)
    (four_nodes.root("node2") / "dev/shm/mark").unlink()


def test_nodes_see_no_network_but_their_own(four_nodes: Nodes) -> None:
    routes = four_nodes.run(["ip", "route"], node="node1")
    assert [line.split()[0] for line in routes.stdout.splitlines()] == ["10.99.0.0/24"]


RECEIVE = """
import socket, time
with socket.create_server(("10.99.0.2", 5000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    while connection.recv(1 << 20):
        pass
    connection.sendall(b"!")
"""
SEND = """
import socket, sys, time
connection = socket.create_connection(("node2", 5000))
start = time.perf_counter()
connection.sendall(bytes(int(sys.argv[1])))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(time.perf_counter() - start)
"""


def test_links_have_their_rate(four_nodes: Nodes) -> None:
    """The link sets the least time of a transfer, whatever else this machine does."""
    nbytes = 5_000_000
    four_nodes.set_rate("80mbit", "node2")
    try:
        receiver = subprocess.Popen(four_nodes.enter([sys.executable, "-c", RECEIVE], "node2"), stdout=subprocess.PIPE)
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == b"ready\n"
        sent = four_nodes.run([sys.executable, "-c", SEND, str(nbytes)], node="node1")
        assert receiver.wait(deadline(10)) == 0
    finally:
        four_nodes.set_rate("none", "node2")
    assert float(sent.stdout) > 0.95 * nbytes * 8 / 80e6


GROUPS = Path("/sys/fs/cgroup/cpu")
COMPUTE = """
import time
start, computed = time.monotonic(), time.process_time()
while time.monotonic() - start < 1:
    pass
print((time.process_time() - computed) / (time.monotonic() - start))
"""


def test_nodes_have_their_part_of_a_core() -> None:
    with made(Nodes(1, cores=0.2)) as nodes:
        found = nodes.run(["agent", "node1", shlex.join([sys.executable, "-c", COMPUTE])])
    assert 0 < float(found.stdout) < 0.25


def _traces() -> dict[str, object]:
    """What nodes could leave behind on this machine."""
    network = subprocess.run(["ip", "-oneline", "link"], capture_output=True, text=True, check=True).stdout
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    return {
        "links": [line.split(":")[1] for line in network.splitlines()],
        "namespaces": names,
        "mounts": sorted(Path("/proc/self/mounts").read_text().splitlines()),
        "hosts": Path("/etc/hosts").read_text(),
        "run": sorted(os.listdir("/run")),
        "memory": sorted(os.listdir("/dev/shm")),
    }


def _groups() -> set[Path]:
    """Control groups of nodes; those of nodes that end just now may be missing."""
    return set(GROUPS.glob("hybridnn-nodes-*"))


def _ended(nodes: Nodes, mark: str) -> bool:
    return not [entry for entry in Path("/proc").glob("[0-9]*/environ") if mark.encode() in _read(entry)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


HOLD = """
import os, sys, time
sys.path[:0] = sys.argv[1:2]
from cluster.nodes import Nodes
with Nodes(2, cores=float(sys.argv[2]) if sys.argv[2:] else None) as nodes:
    import subprocess
    for node in nodes.names:
        subprocess.Popen(nodes.enter(["sleep", "1000"], node))
    print("ready", flush=True)
    time.sleep(1000)
"""


@pytest.mark.alone
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_remains_of_them(end: signal.Signals, four_nodes: Nodes) -> None:
    before, groups, mark = _traces(), _groups(), f"HYBRIDNN_REMAINS={end.name}-{os.getpid()}"
    name, _, value = mark.partition("=")
    tests = str(Path(__file__).parents[1])
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, tests, *(["0.5"] if (GROUPS / "cpu.shares").exists() else [])],
        env={**os.environ, name: value},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n"
    holder.send_signal(end)
    try:
        holder.wait(deadline(10))
    finally:
        holder.kill()
    limit = time.monotonic() + deadline(10)
    while not _ended(four_nodes, mark):
        assert time.monotonic() < limit, "processes of the nodes live on"
        time.sleep(0.05)
    assert _traces() == before
    assert not _groups() - groups
