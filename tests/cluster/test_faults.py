"""One trial of each fault of a link, a node, its clock, its names, its disk and its memory."""

from pathlib import Path

import pytest

from fault_drill.network_trials import NETWORK_FAULTS, NetworkDrill, draw_network_trial, missing_for_nodes
from mpi_runner.slowness import deadline

LIMIT = 60.0


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
    outcome = drill.carry_out(draw_network_trial(0, number, fault), tmp_path)
    assert outcome.complaints == [], "\n".join(outcome.complaints)
    assert outcome.injected
    assert outcome.ended
    assert not outcome.lost
    found = NETWORK_FAULTS[fault]
    if fault == "clock wrong" or (found.ends and not found.at_start):
        assert outcome.resumed
