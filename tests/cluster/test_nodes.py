"""The nodes themselves: what they share and what not, their links, and that nothing of them remains."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cluster.conftest import made
from cluster.nodes import CANNOT, SCRIPT, Nodes
from fault_drill.network_trials import missing_for_nodes
from mpi_runner.launch import marked_processes
from mpi_runner.slowness import deadline, wait_until


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """End a process at the end of the block, also if the test fails."""
    with process:
        try:
            yield process
        finally:
            process.kill()


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


@pytest.mark.parametrize("node", ["node1", None])
def test_nodes_see_no_network_but_their_own(four_nodes: Nodes, node: str | None) -> None:
    """Nor does the login node."""
    for family in ("-4", "-6"):
        routes = four_nodes.run(["ip", family, "route"], node=node)
        assert routes.returncode == 0, routes.stderr
        found = {line.split()[0] for line in routes.stdout.splitlines()} - {"fe80::/64"}
        assert found == ({"10.99.0.0/24"} if family == "-4" else set())


RECEIVE = """
import socket, sys
with socket.create_server((socket.gethostname(), 5000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    while connection.recv(1 << 20):
        pass
    connection.sendall(b"!")
"""
SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5000))
start = time.perf_counter()
connection.sendall(bytes(int(sys.argv[2])))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(time.perf_counter() - start)
"""


@pytest.mark.parametrize(("sender", "receiver"), [("node1", "node2"), ("node2", "node1")])
def test_links_have_their_rate_in_both_directions(four_nodes: Nodes, sender: str, receiver: str) -> None:
    """The link of one node sets the least time of a transfer, whatever else this machine does."""
    nbytes = 5_000_000
    four_nodes.set_rate("80mbit", "node2")
    receive = four_nodes.enter([sys.executable, "-c", RECEIVE], receiver)
    try:
        with ended(subprocess.Popen(receive, stdout=subprocess.PIPE)) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            sent = four_nodes.run([sys.executable, "-c", SEND, receiver, str(nbytes)], node=sender)
            assert process.wait(deadline(10)) == 0
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


def _traces(temporary: Path) -> dict[str, object]:
    """What nodes could leave behind on this machine, and in the folder of their temporary files."""
    network = subprocess.run(["ip", "-oneline", "link"], capture_output=True, text=True, check=True).stdout
    return {
        "links": [line.split(":")[1] for line in network.splitlines()],
        "mounts": sorted(Path("/proc/self/mounts").read_text().splitlines()),
        "hosts": Path("/etc/hosts").read_text(),
        "run": sorted(os.listdir("/run")),
        "memory": sorted(os.listdir("/dev/shm")),
        "temporary": sorted(os.listdir(temporary)),
    }


def _groups() -> set[Path]:
    """Control groups of nodes; those of nodes that end just now may be missing."""
    return set(GROUPS.glob("hybridnn-nodes-*"))


HOLD = """
import os, subprocess, sys, time
sys.path[:0] = sys.argv[1:2]
from cluster.nodes import Nodes
from mpi_runner.launch import find_mpirun
with Nodes(2, cores=float(sys.argv[2]) if sys.argv[2:] else None) as nodes:
    command = [find_mpirun(), "--allow-run-as-root", "-n", "4", "sh", "-c", "echo ready; exec sleep 1000"]
    job = subprocess.Popen(nodes.enter(command), stdout=subprocess.PIPE)
    for _ in range(4):
        job.stdout.readline()
    print("ready", flush=True)
    time.sleep(1000)
"""


def _is_first_process_of_a_node(process: int) -> bool:
    with contextlib.suppress(OSError):  # the process has ended
        return b"--node" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


@pytest.mark.alone
@pytest.mark.parametrize(
    ("end", "starts"),
    [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGKILL, False), (signal.SIGKILL, True)],
    ids=["SIGINT", "SIGTERM", "SIGKILL", "SIGKILL while they start"],
)
def test_nothing_remains_of_them(end: signal.Signals, starts: bool, tmp_path: Path) -> None:
    """Of nodes with a job, or of some that are being made."""
    if reason := missing_for_nodes():
        pytest.skip(reason)
    before, groups, mark = _traces(tmp_path), _groups(), f"HYBRIDNN_REMAINS={end.name}-{starts}-{os.getpid()}"
    name, _, value = mark.partition("=")
    tests = str(Path(__file__).parents[1])
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, tests, *(["0.5"] if (GROUPS / "cpu.shares").exists() else [])],
        env={**os.environ, name: value, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )

    def a_node_is_made() -> bool:
        return any(_is_first_process_of_a_node(process) for process in marked_processes(mark))

    with ended(holder):
        assert holder.stdout is not None
        if not starts:
            assert holder.stdout.readline() == b"ready\n"
        wait_until(a_node_is_made, 10, "a node is made")
        holder.send_signal(end)
        holder.wait(deadline(10))
    wait_until(lambda: not marked_processes(mark), 10, "the processes of the nodes have ended")
    assert _traces(tmp_path) == before
    assert not _groups() - groups


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("two", "none"), "NODES is 'two': it must be a number from 1 to 253"),
        (("254", "none"), "NODES is '254': it must be a number from 1 to 253"),
        (("2", "0mbit"), "RATE is '0mbit': it must be none, or such as 500kbit, 200mbit or 1gbit"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(arguments: Sequence[str], problem: str) -> None:
    refused = subprocess.run([SCRIPT, *arguments, "true"], capture_output=True, text=True, timeout=deadline(10))
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", f"nodes.sh: {problem}\n")


def test_a_test_is_skipped_with_the_reason_where_no_nodes_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the command `ip`, and without root; the script has exit code 77."""
    (tmp_path / "bash").symlink_to("/bin/bash")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(pytest.skip.Exception, match="nodes cannot be made here: there is no ip"), made(Nodes(1)):
            pass
    with open(SCRIPT) as script:  # another user may not read it
        refused = subprocess.run(
            ["bash", "-s", "1", "none", "true"],
            stdin=script,
            cwd="/",
            user=65534 if os.geteuid() == 0 else None,
            capture_output=True,
            text=True,
            timeout=deadline(10),
        )
    assert (refused.returncode, refused.stdout) == (CANNOT, "")
    assert refused.stderr == "nodes cannot be made here: it needs root\n"
