"""Costs between nodes whose links are known: what calibration finds.

Links are so slow that they, and not the cores, take nearly all the time, so that other programs change little.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cluster.conftest import made
from cluster.nodes import Nodes
from hybridnn.cost.machine_file import read_machine

JOB = [str(Path(__file__).with_name("costs_job.py"))]
COMMAND = ["-m", "hybridnn", "calibrate", "--format", "json", "--force", "--seconds"]
HEADERS = {1500: 1514 / 1448, 9000: 9014 / 8948}
"""Bytes of a full packet on the link, as its rate counts them, over those of a message, for each size of packets."""

TRIALS = 8
LARGEST_ERROR = 0.1
"""Mean error on held-out sizes from which a calibration itself says that other programs disturbed it.

It is the tolerance of the tests.
"""


def _slopes(nodes: Nodes, program: Sequence[str], folder: Path) -> dict[str, float]:
    """Seconds per byte of large messages and all-reduces between two nodes; a disturbed calibration is repeated."""
    for _ in range(TRIALS):
        found = nodes.run_ranks(
            2, [sys.executable, *program], options=["--bind-to", "none"], timeout=120, folder=folder
        )
        assert found.returncode == 0, found.stderr
        between = {fit["operation"]: fit for fit in json.loads(found.stdout)["communication"] if fit["spans_nodes"]}
        fits = {operation: between[operation] for operation in ("send", "allreduce")}
        errors = {operation: fit["held_out_error_from_64_kib"]["mean"] for operation, fit in fits.items()}
        if max(errors.values()) <= LARGEST_ERROR:
            return {operation: fit["segments"][-1]["beta_seconds_per_byte"] for operation, fit in fits.items()}
    pytest.fail(f"{TRIALS} calibrations were disturbed; errors on held-out sizes: {errors}")


@pytest.mark.alone
@pytest.mark.parametrize(
    ("rate", "bits_per_second", "packet", "program"),
    # The slower the link, the fewer turns each size has in a time, and the more one disturbed turn counts.
    [("50mbit", 5e7, 1500, [*JOB, "15"]), ("200mbit", 2e8, 1500, [*COMMAND, "10"]), ("1gbit", 1e9, 9000, [*JOB, "6"])],
    ids=["50mbit", "200mbit, the command", "1gbit"],
)
def test_calibration_finds_the_rate_of_the_link(
    rate: str, bits_per_second: float, packet: int, program: Sequence[str], tmp_path: Path
) -> None:
    """An all-reduce of two ranks sends as many bytes each way as it reduces, at once or one way after the other."""
    known = 8 / bits_per_second * HEADERS[packet]
    with made(Nodes(2, rate, slots=1)) as nodes:
        slopes = _slopes(nodes, program, tmp_path)
    assert slopes["send"] == pytest.approx(known, rel=0.1)
    assert 0.9 * known < slopes["allreduce"] < 2.2 * known
    if "calibrate" in program:
        machine = read_machine(str(tmp_path / "machine.toml"))
        assert machine.between_nodes is not None
        assert (machine.nodes, machine.between_nodes.segments[-1].beta_seconds_per_byte) == (2, slopes["send"])
        assert machine.between_nodes.overhead is not None
        assert machine.between_nodes.overhead.seconds(1 << 18) > 0
