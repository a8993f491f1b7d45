"""``parallel.overlap``: whether messages travel while the backward pass computes."""

from __future__ import annotations

__all__ = ["overlaps"]


def overlaps(wanted: bool | str, *, spans_nodes: bool, on_host: bool = True) -> bool:
    """What is done where `wanted` is asked for.

    Parameters
    ----------
    wanted : bool or "auto"
        ``"auto"``: where somebody else than the computing cores moves the messages, a network between nodes or a GPU
        that computes meanwhile. Within a node the cores move them themselves, so that nothing is gained, and the
        algorithms of collectives that do not block are slower (``benchmarks/batch_parallel.py``).
    spans_nodes : bool
        Whether the ranks are on several nodes.
    on_host : bool
        Whether CPUs train.
    """
    if isinstance(wanted, bool):
        return wanted
    return spans_nodes or not on_host
