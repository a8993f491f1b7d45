"""One trial of each fault of a link, a node, its clock, its names, its disk and its memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault_drill.network_faults import NETWORK_FAULTS
from fault_drill.network_trials import RECIPES, NetworkDrill, NetworkTrial, missing_for_nodes
from mpi_runner.slowness import deadline

LIMIT = 60.0
RESUMES_ELSEWHERE = {"node lost": 3}
"""Faults after which the run resumes on a spare node of so many."""

LAYOUTS = ("batch 4, shared inside nodes", "batch 2 x model 2", "1f1b over 2 x batch 2", "pipedream over 4")


def _trial(number: int, fault: str) -> NetworkTrial:
    recipe = next(recipe for recipe in RECIPES if recipe.name == LAYOUTS[number % len(LAYOUTS)])
    return NetworkTrial(
        seed=0,
        number=number,
        fault=fault,
        recipe=recipe,
        nodes=RESUMES_ELSEWHERE.get(fault, 2),
        # The first node has rank 0, which dates the records and names the files.
        node="node1" if fault == "clock wrong" else "node2",
        moment="an update",
        call=10,
        rank=number % recipe.ranks,
        hours=(7.5, -7.5) if fault == "clock wrong" else (0.0, 0.0),
        on_new_nodes=False,
        options=("--set", "training.checkpoint_every=5"),
    )


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> NetworkDrill:
    if reason := missing_for_nodes():
        pytest.skip(reason)
    return NetworkDrill(tmp_path_factory.mktemp("drill"), deadline(LIMIT))


@pytest.mark.timeout(4 * LIMIT)
@pytest.mark.parametrize(("number", "fault"), list(enumerate(NETWORK_FAULTS)), ids=list(NETWORK_FAULTS))
def test_a_run_survives_it_or_ends_with_its_name_and_resumes_exactly(
    drill: NetworkDrill, tmp_path: Path, number: int, fault: str
) -> None:
    outcome = drill.carry_out(_trial(number, fault), tmp_path)
    assert outcome.complaints == [], "\n".join(outcome.complaints)
    assert outcome.injected
    assert outcome.ended
    assert not outcome.lost
    found = NETWORK_FAULTS[fault]
    if fault == "clock wrong" or (found.ends and not found.at_start):
        assert outcome.resumed
