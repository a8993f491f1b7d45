"""Costs between nodes whose links are known: what calibration finds.

Links are so slow that they, and not the cores, take nearly all the time, so that other programs change little.
"""

import json
import sys
from pathlib import Path

import pytest

from cluster.conftest import made
from cluster.nodes import Nodes
from hybridnn.cost.machine_file import read_machine

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
    assert machine.between_nodes is not None
    assert (machine.nodes, machine.between_nodes.segments[-1].beta_seconds_per_byte) == (2, slope["send"])
    assert machine.between_nodes.overhead is not None
    assert machine.between_nodes.overhead.seconds(1 << 18) > 0
