"""The nodes differ as machines do, or the tests on them would prove nothing."""

import itertools
import json
import sys
from pathlib import Path

from cluster.nodes import Nodes

FACTS = """
import json, os, socket, time
facts = {
    "host": socket.gethostname(),
    "addresses": socket.gethostbyname_ex(socket.gethostname())[2],
    "memory": sorted(os.listdir("/dev/shm")),
    "temporary": os.environ["TMPDIR"],
    "clock": time.monotonic(),
    "folder": os.getcwd(),
    "routes": len(open("/proc/net/route").readlines()) - 1,
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
}
print(json.dumps(facts))
"""


def test_nodes_differ_as_machines_do(four_nodes: Nodes, tmp_path: Path) -> None:
    (four_nodes.root("node2") / "dev/shm/mark").touch()
    program = [sys.executable, "-c", FACTS]
    facts = [json.loads(four_nodes.run(program, node=node, folder=tmp_path).stdout) for node in four_nodes.names]
    assert [fact["host"] for fact in facts] == list(four_nodes.names)
    assert [fact["addresses"] for fact in facts] == [[f"10.99.0.{number}"] for number in (1, 2, 3, 4)]
    assert [fact["memory"] for fact in facts] == [[], ["mark"], [], []]
    assert {fact["folder"] for fact in facts} == {str(tmp_path)}
    assert all(later["clock"] - fact["clock"] > 900 for fact, later in itertools.pairwise(facts))
    assert all(fact["processes"] < 8 for fact in facts)
    assert {fact["routes"] for fact in facts} == {1}
    (four_nodes.root("node2") / "dev/shm/mark").unlink()
