"""Training runs of batch jobs: submission, and what their folders hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hybridnn.runs.run_files import run_status
from mpi_runner.slowness import wait_until
from slurm.cluster import Cluster, Job, edited_script

__all__ = [
    "EPOCHS",
    "LONG",
    "RUN",
    "assert_same",
    "checkpoints",
    "epochs",
    "records",
    "submit_run",
    "wait_until_it_trains",
    "weights",
]

EPOCHS = 12
RUN = f"""
training = {{epochs = {EPOCHS}, batch_size = 16, dtype = "float64", checkpoint_every = 100}}
parallel = {{batch = 2, model = 2}}
model.hidden = [48, 32]
"""
LONG = 600


def records(folder: Path) -> list[dict[str, Any]]:
    path = folder / "history.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def epochs(folder: Path) -> list[int]:
    return [record["epoch"] for record in records(folder) if record["kind"] == "epoch"]


def weights(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(folder / "weights.npz") as file:
        return dict(file)


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").glob("step-*"))


def submit_run(
    cluster: Cluster, folder: Path, launcher: str, *options: str, settings: str = RUN, **values: str
) -> tuple[Job, Path]:
    """Submit ``train.sbatch`` with a file of settings, and return the job and its run folder."""
    (folder / "config.toml").write_text(settings)
    script = edited_script("train.sbatch", folder, launcher=launcher, **values)
    job = cluster.submit(script, "config.toml", options=options)
    return job, folder / "runs" / f"train-{job.number}"


def wait_until_it_trains(job: Job, run: Path) -> None:
    wait_until(lambda: epochs(run), LONG, f"{run.name} has an epoch", job.text)
    assert run_status(run) != "finished"


def assert_same(run: Path, undisturbed: Path) -> None:
    """Assert bit-identical weights, and a history without gap or duplicate."""
    assert run_status(run) == "finished"
    expected, found = weights(undisturbed), weights(run)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert epochs(run) == list(range(1, EPOCHS + 1))
