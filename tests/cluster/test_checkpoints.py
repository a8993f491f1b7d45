"""Checkpoints and files of runs on several nodes: resumed on any of them, and folders that not all nodes see."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from cluster.nodes import Nodes
from mpi_runner.launch import JobResult
from reference.command_line import assert_same_weights, records_of

COMMAND = [sys.executable, "-m", "hybridnn"]
TRAIN = ["train", "--data", "digits", "--hidden", "20,18,16", "--set", "training.dtype=float64", "--batch-size", "100"]
"""A run of four layers, which four stages divide."""

APART = ("--map-by", "node")
LOCAL = Path("/run/node")
"""A folder of its own on every node."""


def started(
    nodes: Nodes, folder: Path, *arguments: str | Path, ranks: int = 4, options: Sequence[str] = ()
) -> JobResult:
    """Run ``hybridnn`` on ranks of the nodes, in a folder that all of them see."""
    program = [*COMMAND, *map(str, arguments)]
    return nodes.run_ranks(ranks, program, options=options, folder=folder, timeout=60)


def trained(nodes: Nodes, folder: Path, *arguments: str | Path, ranks: int = 4, options: Sequence[str] = ()) -> str:
    """Run it, and return what it prints."""
    result = started(nodes, folder, *arguments, ranks=ranks, options=options)
    assert result.returncode == 0, result.stderr
    assert not [line for line in result.stderr.splitlines() if line.startswith("Warning")], result.stderr
    return result.stdout


def hosts_of(folder: Path) -> list[tuple[int, list[str], list[int]]]:
    """Nodes, host names and ranks on each, of every start of a run."""
    headers = records_of(folder, "header")
    return [(header["nodes"], header["hosts"]["names"], header["hosts"]["ranks"]) for header in headers]


@pytest.fixture(scope="module")
def undisturbed(four_nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of three epochs by one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    trained(four_nodes, folder, *TRAIN, "--epochs", "3", "--out", "run", ranks=1)
    return folder / "run"


LAYOUTS = {
    "grids on fewer": {
        4: ["--batch", "4"],
        2: ["--batch", "2", "--model", "2"],
        1: ["--model", "2", "--set", "parallel.model_split=alternating"],
    },
    "pipelines on more": {
        1: ["--pipeline", "2", "--method", "zb-h1"],
        2: ["--pipeline", "2", "--batch", "2", "--method", "gpipe"],
        4: ["--pipeline", "4", "--method", "1f1b"],
    },
}
"""Layouts of the parts of a run, by number of nodes."""

STARTS = {
    4: (4, APART, "4 on 4 nodes", (4, ["node1", "node2", "node3", "node4"], [1, 1, 1, 1])),
    2: (4, (), "4 on 2 nodes", (2, ["node1", "node2"], [2, 2])),
    1: (2, (), "2 on 1 node,", (1, ["node1"], [2])),
}
"""Ranks, options of mpirun, and what is printed and recorded, by number of nodes."""


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_run_goes_on_with_another_number_of_nodes(kind, four_nodes, undisturbed, tmp_path) -> None:
    begin = [*TRAIN, "--out", "run"]
    for epoch, (number, layout) in enumerate(LAYOUTS[kind].items(), 1):
        ranks, options, printed, _ = STARTS[number]
        arguments = [*begin, *layout, "--epochs", str(epoch)]
        assert printed in trained(four_nodes, tmp_path, *arguments, ranks=ranks, options=options)
        begin = ["train", "--resume", "run"]
    assert hosts_of(tmp_path / "run") == [STARTS[number][-1] for number in LAYOUTS[kind]]
    assert_same_weights(tmp_path / "run", undisturbed, 1e-10)
    losses, expected = (
        [record["train_loss"] for record in records_of(folder, "epoch")] for folder in (tmp_path / "run", undisturbed)
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-10)


def on_node(nodes: Nodes, node: str, *command: str | Path) -> str:
    """Run a command on a node, and return what it prints."""
    result = nodes.run([*map(str, command)], node=node)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def local_folders(four_nodes: Nodes) -> Iterator[Path]:
    """Return an empty folder of its own on each of two nodes, which the login node does not have."""
    folder = LOCAL / "runs"
    for node in ("node1", "node2"):
        on_node(four_nodes, node, "mkdir", folder)
    yield folder
    for node in ("node1", "node2"):
        on_node(four_nodes, node, "rm", "-r", folder)


def refusal(result: JobResult) -> str:
    """The only line about the error of a job that was refused."""
    assert not result.timed_out
    assert result.returncode == 2, result.stderr
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("Error"))
    assert "Traceback" not in result.stderr
    return line


def test_a_run_folder_that_other_nodes_do_not_see_is_refused(four_nodes, local_folders, tmp_path) -> None:
    """Also if all nodes have a folder of this name; nothing is made or changed in them."""
    for out in (local_folders, local_folders / "new"):
        line = refusal(started(four_nodes, tmp_path, *TRAIN, "--out", out))
        name = f"output.folder = '{out}'"
        assert line == f"Error: {name}: must be on a file system that all nodes share; it is not seen by node2"
        for node in ("node1", "node2"):
            assert on_node(four_nodes, node, "ls", "-A", local_folders) == ""


def test_files_that_some_nodes_lack_name_these_nodes(four_nodes, local_folders, undisturbed, tmp_path) -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((40, 4)), random.integers(0, 3, 40)
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y)
    data, settings, run = (local_folders / name for name in ("data.npz", "config.toml", "run"))
    on_node(four_nodes, "node2", "cp", tmp_path / "data.npz", data)
    on_node(four_nodes, "node1", "cp", undisturbed / "config.toml", settings)
    on_node(four_nodes, "node1", "cp", "-r", undisturbed, run)

    line = refusal(started(four_nodes, tmp_path, "train", "--resume", run, "--epochs", "4"))
    assert line == f"Error: on node2: --resume = '{run}': is not a run folder"
    line = refusal(started(four_nodes, tmp_path, "train", "--file", data, "--hidden", "5"))
    assert line == f"Error: on node1: {data}: cannot be read: No such file or directory"
    line = refusal(started(four_nodes, tmp_path, "train", settings))
    assert line.startswith("Error on rank 2 on node2: ")
    assert str(settings) in line
