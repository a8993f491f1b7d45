"""Machine files for tests, with chosen coefficients and no other costs."""

from typing import Any

from hybridnn.cost.machine import Machine

__all__ = ["make_machine"]


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

    Parameters
    ----------
    alpha, beta : float
        Seconds per message and per byte, inside a node and between nodes.
    multiply_add, call : float
        Seconds per multiply-add, and per pass of a layer.
    memory : float
        Bytes per rank.
    others
        Further keys of the machine file.
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
