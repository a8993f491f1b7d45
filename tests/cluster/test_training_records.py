"""What runs on several nodes record and print: traces, reports, stalls, and replicas without room."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.nodes import Nodes
from hybridnn.pipeline.schedules.instructions import Instruction, ReceiveActivations, SendActivations
from hybridnn.runs.trace_file import read_trace
from mpi_runner.launch import JobResult
from reference.command_line import records_of

COMMAND = [sys.executable, "-m", "hybridnn"]


def started(nodes: Nodes, folder: Path, *arguments: str) -> JobResult:
    """Run ``hybridnn`` on the login node, which starts ranks on the others."""
    return nodes.run([*COMMAND, *arguments], folder=folder, timeout=60)


TRACED = """
import json, sys
from pathlib import Path
import numpy as np
import hybridnn
from hybridnn.runs.trace_file import write_trace
grid = hybridnn.ProcessGrid(pipeline=4)
trainer = hybridnn.Trainer(
    hybridnn.MLP([8, 64, 64, 64, 4]), grid=grid, batch_size=40, method="gpipe", microbatches=4
)
x = np.random.default_rng(0).standard_normal((80, 8))
trainer.fit(x, np.arange(80) % 4, epochs=2)
first = min(event.start for event in grid.recorder.events)
write_trace(Path("trace.json"), grid, trainer.layout)
Path(f"first-{grid.rank}.json").write_text(json.dumps([first, hybridnn.diagnostics.hosts.socket.gethostname()]))
"""


def test_a_trace_has_one_clock_for_all_nodes(four_nodes: Nodes, tmp_path: Path) -> None:
    """Those of the nodes are 1000 s apart, to the nanosecond, so that the true times are known."""
    (tmp_path / "script.py").write_text("import hybridnn.diagnostics.hosts\n" + TRACED)
    program = [sys.executable, "script.py"]
    result = four_nodes.run_ranks(4, program, options=["--map-by", "node"], folder=tmp_path)
    assert result.returncode == 0, result.stderr
    trace = read_trace(tmp_path / "trace.json")
    found = [min(event.start for event in rank.events) for rank in trace.ranks]
    times = [json.loads((tmp_path / f"first-{rank}.json").read_text()) for rank in range(4)]
    assert [host for _, host in times] == list(four_nodes.names)
    true = [clock - 1000 * number for number, (clock, _) in enumerate(times, 1)]
    errors = [one - other - (found[0] - true[0]) for one, other in zip(found, true, strict=True)]
    assert max(map(abs, errors)) < 0.1, errors

    def first_of(rank: int, kind: type[Instruction]) -> float:
        events = trace.epoch(2).ranks[rank].events
        return min(event.stop for event in events if isinstance(event.about, kind))

    for stage in range(3):
        assert first_of(stage + 1, ReceiveActivations) > first_of(stage, SendActivations) - 0.1


STALLING = """
import time
import numpy as np
import hybridnn
grid = hybridnn.ProcessGrid()
trainer = hybridnn.Trainer(hybridnn.MLP([4, 3]), grid=grid, batch_size=8, log_every=1, stall_seconds=2)
class Slow(hybridnn.Callback):
    def on_train_batch_end(self, trainer, record):
        if grid.rank == 3 and record.step == 2:
            time.sleep(1000)
trainer.fit(np.zeros((64, 4)), np.zeros(64, int), epochs=3, callbacks=[Slow()])
"""


def test_a_stall_names_rank_and_host(four_nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(STALLING)
    result = started(four_nodes, tmp_path, "run", "-n", "4", "script.py")
    assert not result.timed_out
    assert result.returncode == 1
    lines = [line for line in result.stderr.splitlines() if "rank 3" in line]
    assert any("node2" in line for line in lines), result.stderr
    assert any("script.py" in line for line in result.stderr.splitlines())


@pytest.fixture
def little_memory(four_nodes: Nodes) -> Iterator[str]:
    """Make the shared memory of one node small."""
    node = "node2"
    for size in ("48m", "1g"):
        result = four_nodes.run(["mount", "-o", f"remount,size={size}", "/dev/shm"], node=node)
        assert result.returncode == 0, result.stderr
        if size == "48m":
            yield node


def test_replicas_that_a_node_has_no_room_for_are_not_shared(little_memory, four_nodes, tmp_path) -> None:
    """By default; where they have to be, the line names the node."""
    train = ["train", "-n", "4", "--data", "digits", "--hidden", "2500,2500", "--batch-size", "500", "--epochs", "1"]
    train += ["--optimizer", "adam"]
    refused = started(four_nodes, tmp_path, *train, "--set", "parallel.shared_replicas=true")
    assert refused.returncode == 2, refused.stderr
    (line,) = (line for line in refused.stderr.splitlines() if line.startswith("Error"))
    problem = f"the shared memory of {little_memory} (/dev/shm) has no room for "
    assert line.startswith(f"Error: parallel.shared_replicas = True: {problem}")
    result = started(four_nodes, tmp_path, *train, "--out", "run")
    assert result.returncode == 0, result.stderr
    (header,) = records_of(tmp_path / "run", "header")
    assert header["layout"]["shared_replicas"] is False
