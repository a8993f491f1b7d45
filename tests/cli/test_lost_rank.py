"""A job that loses a rank ends: a line names the rank, another one the command that resumes the run."""

import re
import sys
import time
from pathlib import Path

import pytest

from mpi_runner.launch import run_mpi
from mpi_runner.slowness import deadline

pytestmark = pytest.mark.slow

LOSES_RANK_0 = """
import os, signal, sys
from pathlib import Path
from hybridnn.checkpoints.writing import CheckpointWriter
from hybridnn.cli.main import main
from hybridnn.runs.callbacks import Checkpoints

rank = next(int(os.environ[name]) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ)
original = Checkpoints.between_steps

def with_loss(self, trainer, reached):
    if rank == 0 and reached.step == 11:
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, trainer, reached)

Checkpoints.between_steps = with_loss
CheckpointWriter.begin = CheckpointWriter.write  # on disk before the next step
main(sys.argv[1:])
"""

TRAIN = ("train", "--data", "synthetic", "-q", "--set", "training.checkpoint_every=4", "--out", "run")
RESUME_ADVICE = "The newest checkpoint is step-00000008; continue with: hybridnn train --resume run\n"


def test_the_job_ends_with_the_lost_rank_and_the_command_that_resumes(tmp_path: Path) -> None:
    result = run_mpi(3, [sys.executable, "-c", LOSES_RANK_0, *TRAIN], timeout=120, cwd=tmp_path)
    assert (result.timed_out, result.returncode != 0) == (False, True)
    assert time.time() - (tmp_path / "died").stat().st_mtime < deadline(10)
    ends = r"is gone: killed( by signal 9|, or ended without a word); the job ends ==="
    assert re.search(rf"^=== rank 0 \(process \d+\) {ends}$", result.stderr, re.MULTILINE), result.stderr
    assert result.stderr.count(RESUME_ADVICE) == 1
