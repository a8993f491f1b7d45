"""Batch scripts, studies and doctor on a Slurm of several nodes, each with its own memory, network address and link."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cluster.conftest import Mpich, made
from cluster.nodes import Nodes
from hybridnn.runs.run_files import run_status
from mpi_runner.launch import run_mpi
from mpi_runner.slowness import wait_until
from reference.command_line import assert_same_weights, records_of
from slurm.cluster import EPOCHS, LONG, RUN, Cluster, assert_same, checkpoints, epochs, submit_run

pytestmark = pytest.mark.timeout(1500)

PMIX = "srun --mpi=pmix -n"
SHORT = RUN.replace(f"epochs = {EPOCHS}", "epochs = 1")


@pytest.fixture
def cluster(slurm_on_nodes: Cluster) -> Iterator[Cluster]:
    """Return the Slurm, with an empty queue before and after the test."""
    with slurm_on_nodes.emptied():
        yield slurm_on_nodes


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the training of `SHORT` by one process."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "config.toml").write_text(SHORT)
    options = ["--batch", "1", "--model", "1", "--out", "run"]
    result = run_mpi(1, [sys.executable, "-m", "hybridnn", "train", "config.toml", *options], cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder / "run"


def _assert_like_one_process(run: Path, alone: Path) -> None:
    assert run_status(run) == "finished"
    assert_same_weights(run, alone, 1e-10)
    assert epochs(run) == epochs(alone)


@pytest.fixture(scope="module")
def undisturbed(slurm_on_nodes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an undisturbed run on two nodes, which searches for its launcher."""
    job, run = submit_run(slurm_on_nodes, tmp_path_factory.mktemp("undisturbed"), "")
    assert "launcher: srun --mpi=pmix\n" in job.wait(LONG)
    return run


def test_stages_of_different_widths_train_on_three_nodes(cluster: Cluster, tmp_path: Path, alone: Path) -> None:
    """The third stage has its model ranks on two nodes."""
    settings = SHORT.replace("{batch = 2, model = 2}", "{stages = [{batch = 2}, {}, {model = 2}]}")
    job, run = submit_run(cluster, tmp_path, PMIX, "--nodes=3", "--ntasks=5", settings=settings)
    job.wait(LONG)
    header = records_of(run)[0]
    assert (header["layout"]["stages"], header["nodes"]) == ([[2, 1], [1, 1], [1, 2]], 3)
    _assert_like_one_process(run, alone)


NO_PMIX = """#!/bin/bash
[[ " $* " == *" --mpi=list "* ]] && {{ echo "MPI plugin types are..."; echo none; echo pmi2; exit; }}
exec {srun} "$@"
"""
"""The srun of a Slurm that was built without PMIx."""


def test_mpirun_starts_the_ranks_where_srun_cannot(cluster: Cluster, tmp_path: Path, undisturbed: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text(NO_PMIX.format(srun=cluster.run("which", "srun").stdout.strip()))
    srun.chmod(0o755)
    python = tmp_path / "python"
    path = f"{tmp_path}:{Path(sys.executable).parent}:$PATH"
    python.write_text(f'#!/bin/bash\nPATH="{path}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    job, run = submit_run(cluster, tmp_path, "", python=str(python))
    text = job.wait(LONG)
    assert "launcher: not srun --mpi=pmi2: " in text
    assert "launcher: mpirun --bind-to none\n" in text
    assert records_of(run)[0]["nodes"] == 2
    assert_same(run, undisturbed)


def test_mpich_ranks_train(cluster: Cluster, mpich: Mpich, tmp_path: Path, alone: Path) -> None:
    """Under ``srun``, which the batch script finds; MPICH's ``mpirun`` in a job starts its ranks on all nodes."""
    check = [mpich.mpirun, "-n", "4", sys.executable, "-m", "hybridnn.comm.launcher", "4", "2"]
    usual = dict(cluster.environment)
    cluster.environment |= mpich.environment
    try:
        job, run = submit_run(cluster, tmp_path, "", settings=SHORT)
        by_mpirun = cluster.run("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", *check)
        text = job.wait(LONG)
    finally:
        cluster.environment = usual
    assert by_mpirun.returncode == 0, by_mpirun.stderr
    assert "launcher: srun --mpi=pmi2\n" in text
    header = records_of(run)[0]
    assert (header["ranks"], header["layout"]["stages"], header["nodes"]) == (4, [[2, 2]], 2)
    assert header["versions"]["MPI"].startswith("MPICH")
    _assert_like_one_process(run, alone)


def test_run_goes_on_when_nodes_fail(tmp_path: Path, undisturbed: Path) -> None:
    """First a node with ranks fails, then the one that runs the batch script as well."""
    with made(Nodes(4)) as nodes:
        cluster = Cluster(nodes=nodes)
        job, run = submit_run(cluster, tmp_path, PMIX)
        for restarts in range(2):
            seen = checkpoints(run)
            wait_until(lambda: set(checkpoints(run)) - set(seen), LONG, "there is a new checkpoint", job.text)  # noqa: B023
            assert run_status(run) != "finished"
            facts = job.facts()
            nodes.kill("node2" if restarts == 0 else facts["BatchHost"])
            again = str(restarts + 1)
            wait_until(lambda: job.facts()["Restarts"] == again, 60, "the job is requeued", job.text)  # noqa: B023
        job.wait(LONG)
    assert [record["kind"] for record in records_of(run)].count("resumed") == 2
    assert_same(run, undisturbed)


@pytest.fixture
def odd_nodes(cluster: Cluster, mpich: Mpich) -> Iterator[str]:
    """Return a folder for PYTHONPATH, in which three nodes differ.

    Node2 has another NumPy and one core, node3 a broken package, and node4 another MPI library.
    """
    folder = "run/node/odd"
    files = {
        "node2": {
            "numpy-1.26.4.dist-info/METADATA": "Metadata-Version: 2.1\nName: numpy\nVersion: 1.26.4\n",
            "sitecustomize.py": "import os; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])\n",
        },
        "node3": {"hybridnn.py": "import a_package_that_is_only_elsewhere\n"},
        "node4": {"sitecustomize.py": f"import os; os.environ.update({dict(mpich.environment)!r})\n"},
    }
    for node, contents in files.items():
        for name, text in contents.items():
            path = cluster.nodes.root(node) / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    yield f"/{folder}"
    for node in files:
        shutil.rmtree(cluster.nodes.root(node) / folder)


def test_doctor_names_the_nodes_that_differ(cluster: Cluster, odd_nodes: str, tmp_path: Path) -> None:
    command = ["env", f"PYTHONPATH={odd_nodes}", sys.executable, "-m", "hybridnn", "doctor"]
    result = cluster.run("salloc", "--quiet", "--nodes=4", "--ntasks-per-node=2", *command, folder=tmp_path)
    lines = {line[8:].split("  ")[0].strip(): line for line in result.stdout.splitlines()}
    assert result.returncode == 1, result.stderr
    missing = "node3: ModuleNotFoundError: No module named 'a_package_that_is_only_elsewhere' ->"
    assert missing in lines["all nodes"]
    assert f"node2: numpy 1.26.4, the other 2 have {np.__version__}; " in lines["same software"]
    assert re.search(
        r"; node4: MPI library MPICH Version: \S+, the other 2 have Open MPI \S+ ->", lines["same software"]
    )
    if len(os.sched_getaffinity(0)) > 1:
        assert "node2: 1 core, the other 2 have 2 cores ->" in lines["same hardware"]
    assert [line.split()[0] for line in lines.values()].count("failure") == 2
