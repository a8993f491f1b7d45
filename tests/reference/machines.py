"""Machine files for tests, with chosen coefficients and no other costs."""

from collections.abc import Sequence
from typing import Any

from hybridnn.cost.machine import Machine


def make_machine(
    *,
    alpha: float = 0.0,
    beta: float = 0.0,
    multiply_add: float = 1e-9,
    call: float = 0.0,
    memory: float = 1e12,
    nodes: int = 1,
    ranks_per_node: int = 4096,
    **others: Any,
) -> Machine:
    """Make a machine on which only messages, multiply-adds and calls of layers take time.

    All times are in seconds: per message and byte, inside a node and between nodes, per multiply-add, and per pass of
    a layer. The memory is in bytes per rank; `others` are further keys of the machine file.
    """
    link = {"segments": [{"alpha_seconds": alpha, "beta_seconds_per_byte": beta}]}
    one_pass = {"call_seconds": call, "multiply_add_seconds": multiply_add}
    free = {"number_seconds": 0.0}
    compute = {
        "dtype": "float32",
        "forward": one_pass,
        "input_gradient": one_pass,
        "weight_gradient": one_pass,
        "activations": {"relu": {"forward": free, "gradient": free}},
        "losses": {"mse": free},
        "load": free,
        "packing": free,
        "updates": {"sgd": free},
    }
    return Machine.model_validate(
        {
            "name": "made up",
            "nodes": nodes,
            "ranks_per_node": ranks_per_node,
            "memory_bytes_per_rank": memory,
            "inside_node": link,
            "between_nodes": link if nodes > 1 else None,
            "compute": [compute],
            **others,
        }
    )


def place_ranks(nodes: Sequence[int], model: int) -> list[int]:
    """The rank at each position of a grid: complete model groups of every node, then all remaining ranks."""
    by_node: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        by_node.setdefault(node, []).append(rank)
    grouped, remaining = [], []
    for ranks in by_node.values():
        fitting = len(ranks) // model * model
        grouped += ranks[:fitting]
        remaining += ranks[fitting:]
    return grouped + remaining
