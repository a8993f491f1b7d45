"""Nodes differ as machines do, faults between them end runs or pass, and calibration finds the rate of their link."""

import itertools
import json
import sys
from pathlib import Path

import pytest

from cluster.conftest import made
from cluster.nodes import Nodes
from fault_drill.network_trials import NETWORK_FAULTS, NetworkDrill, draw_network_trial, missing_for_nodes
from hybridnn.cost.machine_file import read_machine
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


LIMIT = 60.0


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> NetworkDrill:
    if reason := missing_for_nodes():
        pytest.skip(reason)
    return NetworkDrill(tmp_path_factory.mktemp("drill"), deadline(LIMIT))


@pytest.mark.timeout(4 * LIMIT)
@pytest.mark.parametrize(("number", "fault"), list(enumerate(NETWORK_FAULTS)), ids=list(NETWORK_FAULTS))
def test_a_run_survives_it_or_ends_with_its_name_and_resumes_exactly(drill, tmp_path, number, fault) -> None:
    outcome = drill.carry_out(draw_network_trial(0, number, fault), tmp_path)
    assert outcome.complaints == [], "\n".join(outcome.complaints)
    assert outcome.injected
    assert outcome.ended
    assert not outcome.lost
    found = NETWORK_FAULTS[fault]
    if fault == "clock wrong" or (found.ends and not found.at_start):
        assert outcome.resumed


PACKET, MESSAGE = 1514, 1448
"""Bytes of a full packet on the link, as its rate counts them, and of the message in it."""

TRIALS = 8
LARGEST_ERROR = 0.1
"""Mean error on held-out sizes from which a calibration itself says that other programs disturbed it.

It is the tolerance of the tests.
"""


@pytest.mark.alone
def test_calibration_finds_the_rate_of_the_link(tmp_path: Path) -> None:
    """An all-reduce of two ranks sends as many bytes each way as it reduces, at once or one way after the other."""
    known = 8 / 200e6 * PACKET / MESSAGE
    command = [sys.executable, "-m", "hybridnn", "calibrate", "--format", "json", "--force", "--seconds", "10"]
    with made(Nodes(2, "200mbit", slots=1)) as nodes:
        for _ in range(TRIALS):  # a disturbed calibration is repeated
            found = nodes.run_ranks(2, command, options=["--bind-to", "none"], timeout=120, folder=tmp_path)
            assert found.returncode == 0, found.stderr
            between = {fit["operation"]: fit for fit in json.loads(found.stdout)["communication"] if fit["spans_nodes"]}
            errors = [between[name]["held_out_error_from_64_kib"]["mean"] for name in ("send", "allreduce")]
            if max(errors) <= LARGEST_ERROR:
                break
        else:
            pytest.fail(f"{TRIALS} calibrations were disturbed; errors on held-out sizes: {errors}")
    slope = {name: fit["segments"][-1]["beta_seconds_per_byte"] for name, fit in between.items()}
    assert slope["send"] == pytest.approx(known, rel=0.1)
    assert 0.9 * known < slope["allreduce"] < 2.2 * known
    machine = read_machine(str(tmp_path / "machine.toml"))
    assert (machine.nodes, machine.between_nodes.segments[-1].beta_seconds_per_byte) == (2, slope["send"])
    assert machine.between_nodes.overhead.seconds(1 << 18) > 0
