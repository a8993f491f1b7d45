"""`--in-process`: commands on several ranks of this process, against one rank, against mpirun, and wrong input."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn.cli.ranks import require_one_way
from hybridnn.errors import SettingError
from hybridnn.in_process import run_ranks
from hybridnn.runs.callbacks import INTERRUPTED, SIGNALS, StopSignals
from hybridnn.runs.run_files import run_status
from hybridnn.training.trainer import Trainer
from mpi_runner.launch import run_job
from reference.command_line import Run, assert_same_weights, error_line, output_of, records_of
from reference.trained_runs import HYBRIDNN_WITHOUT_CURVE

README = Path(__file__).parents[2] / "README.md"
SMALL = ("--data", "synthetic", "--set", "data.rows=200", "--set", "data.synthetic.test_samples=20")
TRAIN = (*SMALL, "--hidden", "9,7,8", "--epochs", "2", "--batch-size", "30", "--set", "training.dtype=float64")
"""The last minibatch of an epoch has 20 samples, and no width is divisible by all numbers of ranks."""
STEPS = 14


def losses(folder: Path | str) -> list[list[float]]:
    """Training and test loss of every epoch in the history of a run."""
    return [[record["train_loss"], record["validation_loss"]] for record in records_of(folder, "epoch")]


def assert_same_training(folder: Path | str, other: Path | str) -> None:
    np.testing.assert_allclose(losses(folder), losses(other), rtol=1e-10)
    assert_same_weights(folder, other, 1e-10)


def rows(text: str) -> list[list[str]]:
    """Epoch, losses and accuracy of the rows of a table of epochs."""
    found = [re.match(r" +(\d+) +(\d\.\d{4}) +(\d\.\d{4}) +(\d\.\d{4}) ", line) for line in text.splitlines()]
    return [list(match.groups()) for match in found if match]


def test_digits_on_two_by_two_print_the_figures_of_the_readme(run_hybridnn: Run) -> None:
    shown = rows(README.read_text(encoding="utf-8"))[:10]
    assert [row[0] for row in shown] == [str(epoch) for epoch in range(1, 11)]
    text = output_of(run_hybridnn("train", "--in-process", "4", "--batch", "2", "--model", "2"))
    assert rows(text) == shown
    header = [line.rstrip().split(maxsplit=1) for line in text.splitlines()[:4]]
    assert header[1] == ["grid", "2 x 2 (batch x model)"]
    assert header[2] == ["device", "cpu (ranks of one process)"]
    assert text.count("ranks      4 on 1 node") == 1, "rank 0 alone prints"
    assert text.count("test accuracy  ") == 1
    assert "time           none: the ranks took turns in one process" in text
    lines = run_hybridnn("train", "--in-process", "1", "--epochs", "1", "--out", "run")[1].splitlines()
    (shares,) = [line.partition(" ")[2].strip() for line in lines if line.startswith("time ")]
    assert shares.startswith("compute ")
    report = " ".join(run_hybridnn("report", "run")[1].split())
    assert f"samples/s; {shares} limited by" in report, "the same figures"


TRACED = ("--set", "output.trace=true")
LAYOUTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "one rank": (1, ()),
    "2 x 2 alternating": (4, ("--batch", "2", "--model", "2", "--set", "parallel.model_split=alternating", *TRACED)),
    "all three axes": (8, ("--pipeline", "2", "--batch", "2", "--model", "2", "--method", "zb-h1")),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_trains_as_one_rank(run_hybridnn: Run, trained_once: Callable[..., Path], layout: str) -> None:
    ranks, options = LAYOUTS[layout]
    in_process = ("-q", "--out", "run", "--in-process", str(ranks), "--format", "json")
    found = json.loads(output_of(run_hybridnn("train", *TRAIN, *in_process, *options)))
    assert (found["header"]["ranks"], found["steps"]) == (ranks, STEPS)
    assert_same_training("run", trained_once(*TRAIN))
    assert run_status(Path("run")) == "finished"
    assert run_hybridnn("trace", "run")[0] == (0 if "output.trace=true" in options else 2)


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGUSR1, 75)])
def test_a_signal_leaves_a_checkpoint_for_other_layouts(
    run_hybridnn, trained_once, signal_at, monkeypatch, number, exit_code
) -> None:
    announced: list[bytes] = []
    write = os.write
    signal_at(3, number)
    before = [signal.getsignal(number) for number in SIGNALS]
    grid = ("--batch", "2", "--model", "2", "--set", "output.log_every=1")
    with monkeypatch.context() as patch:
        patch.setattr("os.write", lambda to, data: announced.append(data) if to == 2 else write(to, data))
        code, _, err = run_hybridnn("train", *TRAIN, "--out", "run", "--in-process", "4", *grid)
    assert code == exit_code
    assert err.startswith(f"Error: stopped by {number.name} after step 3; wrote run/checkpoints/step-00000003; ")
    assert announced == ([INTERRUPTED] if number == signal.SIGINT else [])
    assert [signal.getsignal(number) for number in SIGNALS] == before
    text = output_of(run_hybridnn("train", "--resume", "run", "--in-process", "3", "--batch", "3", "--model", "1"))
    assert "continues from step-00000003: step 3, in epoch 1 after 3 minibatches" in text
    assert_same_training("run", trained_once(*TRAIN))
    again = run_hybridnn("train", "--resume", "run", "--in-process", "2")
    assert again == (0, "run: the run has ended, nothing is left to do\n", "")


def test_signal_handlers_are_restored_in_any_order_of_the_ranks() -> None:
    def program(comm: Any) -> None:
        with StopSignals(announces=comm.rank == 0) as signals:
            comm.Barrier()
            if comm.rank == 3:
                os.kill(os.getpid(), signal.SIGUSR1)
            comm.Barrier()
            assert signals.received == (signal.SIGUSR1 if comm.rank == 0 else 0), "the ranks agree on it later"

    before = [signal.getsignal(number) for number in SIGNALS]
    for order in ("in turn", 1, 2, 3, 4):
        run_ranks(4, program, order=order)
        assert [signal.getsignal(number) for number in SIGNALS] == before


def test_an_interrupt_before_the_first_step_ends_the_command(run_hybridnn, monkeypatch) -> None:
    def interrupted(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("hybridnn.config.settings.DataSettings.load", interrupted)
    assert run_hybridnn("train", *TRAIN, "--out", "run", "--in-process", "3") == (130, "", "Error: interrupted\n")
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--in-process", "0"), "--in-process = 0: must be a whole number from 1 to 1,024"),
        (("train", "--in-process", "two"), "Invalid value for '--in-process': "),
        (("train", "--in-process", "3", "--batch", "2"), "the process grid batch 2 x model 1 does not fit 3 ranks: "),
        (("train", "--in-process", "2", "--set", "device.name=gpu"), "device.name = 'gpu': "),
        (("train", "--in-process", "2", "--resume", "nowhere"), "--resume = 'nowhere': "),
        (("evaluate", "run", "--in-process", "0"), "--in-process = 0: "),
        (("predict", "run", "samples.npz", "--in-process", "0"), "--in-process = 0: "),
        (("predict", "run", "samples.npz", "--in-process", "2"), "run is not a run folder"),
        (("calibrate", "--in-process", "2"), "No such option: --in-process"),
    ],
)
def test_wrong_input_is_one_line(run_hybridnn: Run, arguments: tuple[str, ...], message: str) -> None:
    assert error_line(run_hybridnn(*arguments)).startswith(f"Error: {message}")
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"}, "the mpirun of Open MPI"),
        ({"PMIX_RANK": "0"}, "a launcher"),
        ({}, None),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
    ],
)
def test_ranks_are_started_in_one_way(monkeypatch, environment, launcher) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    require_one_way(None, None)
    require_one_way(4, None)
    with pytest.raises(SettingError, match=r"--in-process = 4: not together with -n 2: both start the ranks"):
        require_one_way(2, 4)
    if launcher is None:
        require_one_way(None, 4)
    else:
        with pytest.raises(SettingError, match=f"--in-process = 4: not under {launcher}, which has started the ranks"):
            require_one_way(None, 4)


def test_an_exception_on_a_rank_keeps_its_traceback(run_hybridnn, monkeypatch, capsys) -> None:
    def fit(trainer: Trainer, *args: Any, **options: Any) -> None:
        if trainer.grid.rank == 2:
            raise RuntimeError("the plug was pulled")
        trainer.grid.world.barrier()

    monkeypatch.setattr(Trainer, "fit", fit)
    with pytest.raises(RuntimeError, match="the plug was pulled") as raised:
        run_hybridnn("train", *TRAIN, "-q", "--out", "run", "--in-process", "4")
    assert raised.traceback[-1].name == "fit"
    if sys.version_info >= (3, 11):
        assert raised.value.__notes__ == ["on rank 2 of 4"]
    assert capsys.readouterr().err.count("No checkpoint was written yet") == 1
    assert not Path("run/.lock").exists(), "the folder is free again"
    monkeypatch.undo()


def structure(text: str) -> list[str]:
    """Lines of an output without times, versions, the device, and what ranks of several processes have too few of."""
    varies = ("device", "versions", "cores", "folder", "steps", "time", "sent", "           ")
    lines = [re.sub(r"[\d,]+ samples/s.*", "", line.rstrip()) for line in text.splitlines()]
    lines = [re.sub(r"^( +\d+( +\d\.\d{4}){3}) .*", r"\1", line) for line in lines]
    return [line for line in lines if line and not line.startswith(varies)]


@pytest.mark.timeout(240)
def test_the_output_is_that_of_the_same_command_on_ranks_that_it_starts(run_hybridnn, tmp_path, monkeypatch) -> None:
    """Without any setting for Open MPI, as in a terminal."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # as jobs of tests have
    monkeypatch.setenv("COLUMNS", "120")  # so that no line is broken
    options = ("train", "--epochs", "2", "--hidden", "20", "--batch", "2", "--model", "2", "--out")
    bare = {name: None for name in os.environ if name.startswith(("OMPI_", "PRTE_"))}
    command = [*HYBRIDNN_WITHOUT_CURVE, *options, "processes", "-n", "4"]
    result = run_job(command, timeout=60, env=bare, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("2 x 2 (batch x model)") == 1, "rank 0 alone prints"
    assert "\x1b" not in result.stdout, "it goes to a file, though every rank sees a terminal"
    assert run_status(tmp_path / "processes") == "finished"
    text = output_of(run_hybridnn(*options, "threads", "--in-process", "4"))
    assert len(structure(text)) > 8
    assert structure(text) == structure(result.stdout)


def test_a_run_folder_may_have_any_name(run_hybridnn: Run) -> None:
    folder, ranks = "a\nb\t'c' \"é\"", ("-q", "--in-process", "2")
    assert run_hybridnn("train", *TRAIN, "--out", folder, *ranks)[0] == 0
    assert run_hybridnn("train", "--resume", folder, "--set", "training.epochs=3", *ranks)[0] == 0
    assert len(records_of(folder, "epoch")) == 3
