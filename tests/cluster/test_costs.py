"""Costs between nodes whose links are known: what calibration finds.

Links are so slow that they, and not the cores, take nearly all the time, so that other programs change little.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cluster.conftest import made
from cluster.nodes import Nodes

JOB = str(Path(__file__).with_name("costs_job.py"))
HEADERS = {1500: 1514 / 1448, 9000: 9014 / 8948}
"""Bytes of a full packet on the link, as its rate counts them, over those of a message, for each size of packets."""


def _run(nodes: Nodes, ranks: int, seconds: str) -> object:
    found = nodes.run_ranks(ranks, [sys.executable, JOB, seconds], options=["--bind-to", "none"], timeout=120)
    assert found.returncode == 0, found.stderr
    result: object = json.loads(found.stdout)
    return result


@pytest.mark.alone
@pytest.mark.parametrize(
    ("rate", "bits_per_second", "packet", "seconds"),
    # The slower the link, the fewer turns each size has in a time, and the more one disturbed turn counts.
    [("50mbit", 5e7, 1500, "15"), ("200mbit", 2e8, 1500, "6"), ("1gbit", 1e9, 9000, "6")],
)
def test_calibration_finds_the_rate_of_the_link(rate: str, bits_per_second: float, packet: int, seconds: str) -> None:
    known = 8 / bits_per_second * HEADERS[packet]
    with made(Nodes(2, rate, slots=1)) as nodes:
        found = _run(nodes, 2, seconds)
    assert isinstance(found, dict)
    # A calibration that other programs disturbed says so by its error on held-out sizes.
    assert found["beta"] == pytest.approx(known, rel=0.1) or found["held_out_error"] > 0.15, found
    assert found["beta"] > 0.8 * known
