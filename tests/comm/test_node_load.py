"""Load of the nodes of a job: from made-up shares of every rank, and of ranks in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hybridnn.comm.node_load import NodeLoad, loads_of, node_loads
from hybridnn.in_process import run_ranks
from hybridnn.parallel.grid import all_ranks_group
from hybridnn.utils.load import BOOT_ID, LoadMeter, counters_id


def _rank(counters: str, own: float, cores: list[int], busy: dict[str, float] | None = None) -> dict[str, Any]:
    return {"counters": counters, "own": own, "cores": cores, "threads": 1, "busy": busy or {}}


def test_others_are_the_busy_cores_less_those_of_the_ranks() -> None:
    first = _rank("a", 0.5, [0], {"0": 1.0, "1": 0.75, "2": 1.0})
    loads = loads_of([first, _rank("a", 0.75, [1]), _rank("b", 1.25, [0, 1], {"0": 0.5, "1": 0.5})])
    assert loads == (NodeLoad(0.5, 2, 2), NodeLoad(0.0, 2, 1))
    assert loads_of([first, _rank("b", 1.0, [0])]) == ()


def test_ranks_on_other_nodes_of_a_kernel_are_none_of_the_others() -> None:
    """As on nodes made of namespaces, where the first rank of each reads the same counters."""
    busy = {"0": 1.0, "1": 1.0}
    (load,) = loads_of([_rank("a", 0.5, [0, 1], busy) for _ in range(4)])
    assert load == NodeLoad(0.0, 2, 4)


@pytest.mark.skipif(not BOOT_ID.exists(), reason="the system has no identity of its kernel")
def test_nodes_with_other_names_have_the_counters_of_their_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    before = counters_id()
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    assert counters_id() == before
    monkeypatch.setattr("hybridnn.utils.load.BOOT_ID", Path("none"))
    assert counters_id() == "another"


@pytest.mark.parametrize(
    ("load", "disturbance"),
    [
        (NodeLoad(1.0, cores=2, threads=2), 0.5),
        (NodeLoad(1.0, cores=2, threads=1), 0.0),  # the others have a core of their own
        (NodeLoad(1.5, cores=2, threads=1), 0.5),
        (NodeLoad(0.0, cores=2, threads=4), 0.0),  # the ranks disturb each other
        (NodeLoad(0.5, cores=2, threads=4), 0.25),
    ],
)
def test_others_disturb_where_they_take_more_than_the_free_cores(load: NodeLoad, disturbance: float) -> None:
    assert load.disturbance == disturbance


def test_ranks_in_one_process_have_no_load_of_their_own() -> None:
    def load(comm: Any) -> object:
        group = all_ranks_group(comm)
        return node_loads(group, group, LoadMeter(), 1)

    assert run_ranks(2, load).results == ((), ())
