"""Machine files: round trips, shipped machines, and one-line errors."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from hybridnn.cost.collectives import crossings_of
from hybridnn.cost.machine import CollectiveCost, Machine, NetworkLink, Segment
from hybridnn.cost.machine_file import read_machine, shipped_machines, write_machine
from hybridnn.errors import DataError, EnvironmentProblem

PASS = {"call_seconds": 1e-6, "multiply_add_seconds": 1e-10}
COST = {"number_seconds": 1e-9}


def values() -> dict[str, Any]:
    """The least that a machine file must say."""
    compute = {
        "dtype": "float32",
        **dict.fromkeys(("forward", "input_gradient", "weight_gradient"), PASS),
        "activations": {"relu": {"forward": COST, "gradient": COST}},
        "losses": {"mse": COST},
        "updates": {"sgd": COST},
        "load": COST,
        "packing": COST,
    }
    segment = {"alpha_seconds": 1e-6, "beta_seconds_per_byte": 1e-10}
    return {
        "name": "small",
        "ranks_per_node": 4,
        "memory_bytes_per_rank": 1e9,
        "inside_node": {"segments": [segment]},
        "compute": [compute],
    }


def written(tmp_path: Path, changed: dict[str, Any]) -> Path:
    path = tmp_path / "machine.toml"
    path.write_text(tomli_w.dumps(changed))
    return path


def test_the_shipped_cluster_has_1024_nodes() -> None:
    assert "cluster-1024" in shipped_machines()
    machine = read_machine("cluster-1024")
    assert (machine.name, machine.nodes, machine.ranks) == ("cluster-1024", 1024, 131072)
    # 1 GiB from node to node over 200 Gbit/s: no less than the data sheet's 43 ms, and not twice as long.
    assert 2**30 / 25e9 < machine.message_seconds(2**30, spans_nodes=True) < 2 * 2**30 / 25e9
    # A product of 1024 x 1024 x 1024 on a core whose peak are 78.4 GFLOP/s.
    compute = machine.compute_for("float32", 128)
    assert 2 * 1024**3 / 78.4e9 < compute.forward.seconds(1024, 1024, 1024, cached=True) < 3 * 1024**3 / 78.4e9


def test_messages_between_nodes_are_no_faster_than_their_link_in_the_long_run() -> None:
    link = NetworkLink(
        segments=(
            Segment(up_to_bytes=4000, alpha_seconds=2e-5, beta_seconds_per_byte=0.0),
            Segment(alpha_seconds=0.0, beta_seconds_per_byte=1e-7),
        )
    )
    machine = Machine.model_validate(values()).model_copy(update={"inside_node": link, "between_nodes": link})
    for nbytes, seconds in ((100, 2e-5), (2000, 2e-4), (10_000, 1e-3)):
        assert machine.message_seconds(nbytes, spans_nodes=True) == pytest.approx(seconds)
        assert machine.message_seconds(nbytes, spans_nodes=True, flows=3) == pytest.approx(max(2e-5, 3e-7 * nbytes))
    assert machine.message_seconds(2000) == pytest.approx(2e-5)


@pytest.mark.parametrize("name", shipped_machines())
def test_shipped_machines_are_unchanged_by_a_round_trip(name: str, tmp_path: Path) -> None:
    machine = read_machine(name)
    write_machine(machine, tmp_path / "copy.toml")
    assert read_machine(tmp_path / "copy.toml") == machine
    assert [path.name for path in tmp_path.iterdir()] == ["copy.toml"]


def test_the_least_that_a_file_must_say(tmp_path: Path) -> None:
    machine = read_machine(written(tmp_path, values()))
    assert (machine.nodes, machine.ranks, machine.collectives) == (1, 4, ())
    assert machine == Machine.model_validate(values())


def with_compute(**changes: object) -> dict[str, Any]:
    return values() | {"compute": [values()["compute"][0] | changes]}


def with_segments(*segments: dict[str, object]) -> dict[str, Any]:
    return values() | {"inside_node": {"segments": list(segments)}}


GOOD = {"alpha_seconds": 1e-6, "beta_seconds_per_byte": 1e-10}
UPDATE = "compute[0].updates.sgd"
WRONG = {
    "ranks_per_node is missing": {name: value for name, value in values().items() if name != "ranks_per_node"},
    "compute[0].forward.multiply_add_seconds is missing": with_compute(forward={}),
    "inside_node.segments[0].alpha_seconds = -1e-06: must be a number, at least 0": with_segments(
        GOOD | {"alpha_seconds": -1e-6}
    ),
    "memory_bytes_per_rank = 0": values() | {"memory_bytes_per_rank": 0},
    "gamma_seconds_per_byte = inf": values() | {"gamma_seconds_per_byte": float("inf")},
    "unknown setting rank_per_node; did you mean ranks_per_node?": values() | {"rank_per_node": 4},
    "unknown setting inside_node.segments[0].beta; known in": with_segments(GOOD | {"beta": 1e-9}),
    f"unknown setting {UPDATE}.cal_seconds; did you mean {UPDATE}.call_seconds?": with_compute(
        updates={"sgd": {"number_seconds": 1.0, "cal_seconds": 1.0}}
    ),
    "compute[0].dtype = 'float16'": with_compute(dtype="float16"),
    "inside_node.segments = [9.0, 8.0, None]": with_segments(
        GOOD | {"up_to_bytes": 9}, GOOD | {"up_to_bytes": 8}, GOOD
    ),
    "between_nodes = None": values() | {"nodes": 2},
    "collectives[0].operation = 'all'": values()
    | {"collectives": [{"operation": "all", "ranks": 2, "algorithm": "ring", "segments": [GOOD]}]},
    "name is missing (and 1 more)": {**{k: v for k, v in values().items() if k != "name"}, "ranks_per_node": 0},
}


@pytest.mark.parametrize("message", WRONG)
def test_errors_name_file_key_and_value_in_one_line(message: str, tmp_path: Path) -> None:
    path = written(tmp_path, WRONG[message])
    with pytest.raises(DataError) as caught:
        read_machine(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"m\.yaml: a machine file must end in \.toml"):
        read_machine(tmp_path / "m.yaml")
    with pytest.raises(DataError, match=r"machine 'cluster': give a \.toml file, or one of .*cluster-1024"):
        read_machine("cluster")


def test_the_cheapest_algorithm_is_extrapolated_from_two_ranks() -> None:
    """An all-reduce of 4 MB, fitted as Rabenseifner's, is as dear per byte on three ranks as the least that is needed.

    That algorithm folds one of three ranks away, whose whole vector travels twice more; a ring does not.
    """
    segments = ({"alpha_seconds": 1e-6, "beta_seconds_per_byte": 1e-9},)
    cost = {"operation": "allreduce", "ranks": 2, "algorithm": "rabenseifner", "segments": list(segments)}
    machine = Machine.model_validate(values() | {"collectives": [cost]})
    n = 4_000_000
    two, three, four = (machine.collective_seconds("allreduce", n, ranks) for ranks in (2, 3, 4))
    # 2 (p - 1) / p of the bytes, at 1 ns each, and a few messages.
    assert two == pytest.approx(2e-6 + n * 1e-9)
    assert three == pytest.approx(4e-6 + 4 / 3 * n * 1e-9, rel=1e-5)
    assert four == pytest.approx(4e-6 + 3 / 2 * n * 1e-9, rel=1e-5)
    # With three ranks measured, or more, the fitted algorithm stands.
    folded = Machine.model_validate(values() | {"collectives": [cost | {"ranks": 4}]})
    assert folded.collective_seconds("allreduce", n, 3) == pytest.approx(4e-6 + 3 * n * 1e-9)
    # Of two measured groups, that with the nearer number of ranks counts.
    slow = cost | {"ranks": 8, "segments": [{"alpha_seconds": 1.0, "beta_seconds_per_byte": 1e-9}]}
    nearer = Machine.model_validate(values() | {"collectives": [slow, cost | {"ranks": 4}]})
    assert nearer.collective_seconds("allreduce", n, 4) == pytest.approx(four)


def test_ranks_of_a_measured_group_that_shared_a_node_are_not_counted_twice() -> None:
    """Eight ranks on two nodes: recursive doubling sends four vectors across at once, in the measurement already."""
    segments = [{"alpha_seconds": 0.0, "beta_seconds_per_byte": 3e-9}]
    cost = {"operation": "allreduce", "ranks": 8, "spans_nodes": True, "ranks_per_node": 4}
    cost |= {"algorithm": "recursive_doubling", "segments": segments}
    link = {"segments": [{"alpha_seconds": 0.0, "beta_seconds_per_byte": 1e-9}]}
    machine = Machine.model_validate(values() | {"nodes": 2, "between_nodes": link, "collectives": [cost]})
    measured, apart = (crossings_of(np.array([nodes])) for nodes in ([0] * 4 + [1] * 4, list(range(8))))
    whole = 3 * 3e-9 * 6000
    assert machine.collective_seconds("allreduce", 6000, 8, crossings=measured) == pytest.approx(whole)
    # Rounds of 1, 1 and 4 vectors on the way out; with a node for each rank three rounds of one.
    assert machine.collective_seconds("allreduce", 6000, 8, crossings=apart) == pytest.approx(whole * 3 / 6)


def test_a_machine_keeps_its_costs_and_another_one_has_its_own() -> None:
    machine = read_machine("cluster-1024")
    seconds = machine.collective_seconds("allreduce", 1000, 8)
    slower = machine.model_copy(
        update={
            "inside_node": machine.inside_node.model_copy(
                update={"segments": (Segment(alpha_seconds=1.0, beta_seconds_per_byte=1.0),)}
            )
        }
    )
    assert slower.collective_seconds("allreduce", 1000, 8) > 100 * seconds
    assert machine == read_machine("cluster-1024")
    assert pickle.loads(pickle.dumps(machine)).collective_seconds("allreduce", 1000, 8) == seconds


def test_every_number_is_unchanged_by_a_round_trip(tmp_path: Path) -> None:
    third = 1 / 3
    segments = (
        Segment(up_to_bytes=4096.5, alpha_seconds=third * 1e-6, beta_seconds_per_byte=0.0),
        Segment(alpha_seconds=2e-6, beta_seconds_per_byte=third * 1e-9),
    )
    cost = CollectiveCost(operation="allreduce", ranks=3, algorithm="ring", segments=segments, held_out_error=third)
    machine = Machine.model_validate(values() | {"about": {"host": 'a "quoted" näme'}})
    machine = machine.model_copy(update={"collectives": (cost,)})
    write_machine(machine, tmp_path / "machine.toml")
    again = read_machine(tmp_path / "machine.toml")
    assert again == machine
    assert again.collectives[0].segments == segments


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    machine = Machine.model_validate(values())
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match=r"cannot be written: (File exists|Not a directory)"):
        write_machine(machine, tmp_path / "file" / "machine.toml")
    (tmp_path / "machine.toml").mkdir()
    with pytest.raises(EnvironmentProblem, match="cannot be written: Is a directory"):
        write_machine(machine, tmp_path / "machine.toml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "machine.toml"]
