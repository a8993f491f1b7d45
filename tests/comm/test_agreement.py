"""Agreement of ranks in one process: errors, texts and values of one rank, on all ranks of a group."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from hybridnn.comm.agreement import (
    agree,
    broadcast_text,
    gather_texts,
    lowest_rank,
    value_of_first,
)
from hybridnn.comm.comparison import same_text_on_all, unequal_values
from hybridnn.errors import HybridnnError, SettingError
from hybridnn.parallel.grid import ProcessGrid

SURROGATE = "\udc80"  # stands for a byte of a file name that is not UTF-8


@pytest.mark.in_process(ranks=[1, 3])
def test_the_lowest_failing_rank_is_known_to_all(comm: MPI.Intracomm) -> None:
    group, last = ProcessGrid(comm).world, comm.size - 1

    def fail() -> None:
        if comm.rank:
            raise SettingError("lr", comm.rank, "is wrong")

    assert agree(group, lambda: comm.rank) == comm.rank
    assert [lowest_rank(group, comm.rank >= first) for first in (0, last, comm.size)] == [0, last, None]
    if comm.size > 1:
        with pytest.raises(HybridnnError, match=f"lr = {max(comm.rank, 1)}") as raised:
            agree(group, fail)
        assert isinstance(raised.value, SettingError) == (comm.rank > 0)


@pytest.mark.in_process(ranks=[1, 3])
def test_texts_and_values_are_compared(comm: MPI.Intracomm) -> None:
    group, own = ProcessGrid(comm).world, "é" * comm.rank
    assert gather_texts(group, own) == ["é" * rank for rank in range(comm.size)]
    assert broadcast_text(group, f"{SURROGATE}{comm.rank}", comm.size - 1) == f"{SURROGATE}{comm.size - 1}"
    assert value_of_first(group, lambda: {"rank": comm.rank, "name": SURROGATE}) == {"rank": 0, "name": SURROGATE}
    assert same_text_on_all(group, SURROGATE)
    assert same_text_on_all(group, own) == (comm.size == 1)
    found = unequal_values(group, lambda: {"lr": "0.1" if comm.rank == 1 else "0.01", "seed": "0"})
    assert [value.text for value in found] == ["lr: rank 1 has 0.1, ranks 0, 2 have 0.01"] * (comm.size > 1)
