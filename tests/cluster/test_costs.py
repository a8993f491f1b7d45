"""Costs between nodes whose links are known: what calibration finds, and predictions beside the clock.

Links are so slow that they, and not the cores, take nearly all the time, so that other programs change little.
"""

from __future__ import annotations

import json
import sys
from itertools import combinations
from pathlib import Path

import pytest

from cluster.conftest import made
from cluster.nodes import Nodes

JOB = str(Path(__file__).with_name("costs_job.py"))
HEADERS = {1500: 1514 / 1448, 9000: 9014 / 8948}
"""Bytes of a full packet on the link, as its rate counts them, over those of a message, for each size of packets."""


def _run(nodes: Nodes, ranks: int, what: str, argument: str) -> object:
    found = nodes.run_ranks(ranks, [sys.executable, JOB, what, argument], options=["--bind-to", "none"], timeout=120)
    assert found.returncode == 0, found.stderr
    result: object = json.loads(found.stdout)
    return result


@pytest.mark.parametrize(
    ("rate", "bits_per_second", "packet"), [("50mbit", 5e7, 1500), ("200mbit", 2e8, 1500), ("1gbit", 1e9, 9000)]
)
def test_calibration_finds_the_rate_of_the_link(rate: str, bits_per_second: float, packet: int) -> None:
    known = 8 / bits_per_second * HEADERS[packet]
    with made(Nodes(2, rate, slots=1)) as nodes:
        found = _run(nodes, 2, "link", "6")
    assert isinstance(found, dict)
    # A calibration that other programs disturbed says so by its error on held-out sizes.
    assert found["beta"] == pytest.approx(known, rel=0.1) or found["held_out_error"] > 0.15, found
    assert found["beta"] > 0.8 * known


def test_layouts_on_slow_links_are_predicted() -> None:
    with made(Nodes(4, "50mbit", slots=1)) as nodes:
        found = _run(nodes, 4, "layouts", "10")
    assert isinstance(found, dict)
    report = "\n".join(
        f"{name}: {1e3 * clock:.0f} ms, predicted {1e3 * own:.0f}" for name, (clock, own) in found.items()
    )
    errors = [abs(predicted / measured - 1) for measured, predicted in found.values()]
    assert sum(errors) / len(errors) < 0.15, report
    pairs = [sorted(pair) for pair in combinations(found.values(), 2)]
    apart = [(fast, slow) for fast, slow in pairs if slow[0] > 1.3 * fast[0]]
    assert len(apart) > len(pairs) / 2, report
    assert all(fast[1] < slow[1] for fast, slow in apart), report
