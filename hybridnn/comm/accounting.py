"""How many bytes a rank sends in a collective, by one stated rule.

What an MPI library really sends depends on the algorithm it picks, and it does not say which. So that figures from
different machines can be compared, each collective counts as its bandwidth-optimal algorithm: ring all-reduce
(reduce-scatter, then all-gather), ring all-gather and reduce-scatter, an all-to-all that sends every byte once, and a
root that does so for every receiver. Sources: Thakur, Rabenseifner and Gropp 2005; Chan, Heimlich, Purkayastha and van
de Geijn 2007.
"""

from __future__ import annotations

__all__ = ["bytes_sent_by_rank"]


def bytes_sent_by_rank(operation: str, nbytes: int, ranks: int, *, is_root: bool = False) -> int:
    """Bytes one rank sends in `operation`, rounded down.

    Parameters
    ----------
    operation : {"allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "scatter", "gather", "send",
        "receive"}
        Name of the operation.
    nbytes : int
        Bytes of the full vector: the array every rank ends up with (``allreduce``, ``allgather``, ``broadcast``), the
        one it starts with (``reduce_scatter``, ``alltoall``), all parts together (``scatter``, ``gather``), or the
        message.
    ranks : int
        Size of the group.
    is_root : bool
        Whether this rank is the root of a rooted collective.

    Raises
    ------
    ValueError
        If the operation is unknown.
    """
    if ranks == 1:
        return 0
    part = nbytes * (ranks - 1) // ranks
    match operation:
        case "allreduce":
            return 2 * part
        case "allgather" | "reduce_scatter" | "alltoall":
            return part
        case "broadcast":
            # A broadcast tree or pipeline sends the vector P - 1 times in all; it is booked on the root.
            return nbytes * (ranks - 1) if is_root else 0
        case "scatter":
            return part if is_root else 0
        case "gather":
            return 0 if is_root else nbytes // ranks
        case "send":
            return nbytes
        case "receive":
            return 0
    raise ValueError(f"unknown operation {operation!r}")
