"""The Slurm of these tests, and its jobs: submission, waiting with time limits, and clean-up."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hybridnn.comm.mpi import OVERSUBSCRIBED
from hybridnn.runs.run_files import run_status
from hybridnn.study.submit import fill_in_script
from hybridnn.utils.files import shipped_folder
from mpi_runner.launch import JOB_MARK, job_environment, marked_processes
from mpi_runner.slowness import deadline, wait_until
from reference.command_line import assert_same_weights, records_of

if TYPE_CHECKING:
    from cluster.nodes import Nodes

EPOCHS = 12
RUN = f"""
training = {{epochs = {EPOCHS}, batch_size = 16, dtype = "float64", checkpoint_every = 100}}
parallel = {{batch = 2, model = 2}}
model.hidden = [48, 32]
"""
LONG = 600


def epochs(folder: Path) -> list[int]:
    return [record["epoch"] for record in records_of(folder, "epoch")]


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
    assert_same_weights(run, undisturbed)
    assert epochs(run) == list(range(1, EPOCHS + 1))


SCRIPT = Path(__file__).with_name("slurm.sh")

OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


def edited_script(name: str, folder: Path, /, **values: str) -> Path:
    """Copy a batch script and edit its block; its Python is that of these tests."""
    text = (shipped_folder("hpc_jobs") / name).read_text(encoding="utf-8")
    script = folder / name
    script.write_text(fill_in_script(text, {"python": sys.executable, **values}), encoding="utf-8")
    return script


@dataclass(frozen=True)
class Job:
    """A submitted job; `output` is the file of its output."""

    cluster: Cluster
    number: str
    output: Path

    def facts(self) -> Mapping[str, str]:
        """Attributes of the job, by the names that scontrol uses."""
        text = self.cluster.run("scontrol", "--oneliner", "show", "job", self.number).stdout
        return dict(re.findall(r"(\w+)=(\S*)", text.splitlines()[0]))

    @property
    def state(self) -> str:
        """PENDING, RUNNING, COMPLETED and so on."""
        return self.facts()["JobState"]

    @property
    def exit_code(self) -> int:
        """Exit code of the batch script."""
        return int(self.facts()["ExitCode"].split(":")[0])

    def text(self) -> str:
        """Output so far."""
        return self.output.read_text(encoding="utf-8") if self.output.exists() else ""

    def wait(self, seconds: float, state: str = "COMPLETED") -> str:
        """Wait for the end of the job, check its state, and return its output."""
        wait_until(lambda: self.state in OVER, seconds, f"job {self.number} is over", self.text)
        assert self.state == state, self.text()
        return self.text()


class Cluster:
    """The Slurm of these tests, with its ``slurm.conf``, or on nodes, on which the first command starts it."""

    def __init__(self, configuration: str | None = None, nodes: Nodes | None = None) -> None:
        self.nodes = nodes
        self.mark = f"{JOB_MARK}={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        # With a policy that permits overbooked nodes, Open MPI would put all ranks on the first node.
        changes = {**dict.fromkeys(OVERSUBSCRIBED), "SLURM_CONF": configuration, name: value}
        self.environment = job_environment(changes)
        self._jobs: list[str] = []

    def run(self, *command: str, folder: Path | None = None, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command in the environment from which jobs are submitted."""
        entered = command if self.nodes is None else self.nodes.enter([str(SCRIPT), "on-nodes", *command], None, folder)
        return subprocess.run(
            entered, cwd=folder, env=self.environment, capture_output=True, text=True, timeout=deadline(seconds)
        )

    def submit(self, script: Path, *arguments: str, options: Sequence[str] = ()) -> Job:
        """Submit a script from its folder; by default, on two nodes with two tasks each."""
        shape = ["--nodes=2", "--ntasks-per-node=2", "--time=10", "--output=%x-%j.out"]
        command = ["sbatch", "--parsable", *shape, *options, str(script), *arguments]
        submitted = self.run(*command, folder=script.parent)
        assert submitted.returncode == 0, submitted.stderr
        number = submitted.stdout.strip()
        self._jobs.append(number)
        named = [option.partition("=")[2] for option in options if option.startswith("--job-name=")]
        name = named[0] if named else re.findall(r"^#SBATCH --job-name=(\S+)", script.read_text(), re.MULTILINE)[0]
        return Job(self, number, script.parent / f"{name}-{number}.out")

    def queued(self) -> list[str]:
        """Numbers of the jobs that have not ended."""
        return self.run("squeue", "--noheader", "--format=%A").stdout.split()

    def processes(self) -> list[int]:
        """Ids of the live processes of all jobs of these tests."""
        return marked_processes(self.mark)

    @contextlib.contextmanager
    def emptied(self) -> Iterator[None]:
        """Empty the queue before and after the block."""
        self.clear()
        yield
        self.clear()

    def clear(self) -> None:
        """Cancel the remaining jobs, and resume nodes that a test took down."""
        if self.queued():
            self.run("scancel", "--user=root")
            wait_until(lambda: not self.queued(), 30, "cancelled jobs are gone")
        down = self.run("sinfo", "--noheader", "--states=down,drain", "--Node", "--format=%N").stdout.split()
        for node in set(down):
            self.run("scontrol", "update", f"nodename={node}", "state=resume")
