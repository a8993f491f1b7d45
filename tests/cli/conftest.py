"""The command line run in this process: as its only rank, or as each rank of a launcher."""

import contextlib
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridnn.cli.main import main
from hybridnn.cli.train_view import TrainView
from hybridnn.training.records import StepRecord
from hybridnn.training.trainer import Trainer
from reference.command_line import Run, SignalAt


@pytest.fixture
def run_hybridnn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run ``hybridnn`` in an empty folder; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run_arguments(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        return end.value.code, *capsys.readouterr()

    return run_arguments


@pytest.fixture
def signal_at(monkeypatch: pytest.MonkeyPatch) -> SignalAt:
    """Send signals to this process while it trains."""
    original = TrainView.on_train_batch_end

    def arm(step: int, number: int) -> None:
        sent: list[int] = []

        def on_train_batch_end(view: TrainView, trainer: Trainer, record: StepRecord) -> None:
            original(view, trainer, record)
            if record.step == step and not sent and trainer.grid.rank == 0:
                sent.append(number)
                os.kill(os.getpid(), number)

        monkeypatch.setattr(TrainView, "on_train_batch_end", on_train_batch_end)
        monkeypatch.setattr("hybridnn.runs.callbacks.AGREEMENT_SECONDS", 0.0)

    return arm


@pytest.fixture
def run_as_ranks(run_hybridnn: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command that needs one rank as each of three ranks of a launcher; returns the result of rank 0.

    The other ranks must print and write nothing, and end with exit code 0 or with the error of rank 0; only with that
    error may rank 0 wait for them.
    """

    def run_arguments(*arguments: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            patch.setattr("hybridnn.cli.ranks.import_mpi", lambda: None)
            patch.setattr("hybridnn.cli.ranks.LEAD_SECONDS", 0.0)
            patch.setenv("OMPI_COMM_WORLD_SIZE", "3")
            before, codes = sorted(tmp_path.rglob("*")), []
            for rank in (2, 1):
                patch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
                code, out, err = run_hybridnn(*arguments)
                assert (out, err) == ("", "")
                codes.append(code)
            assert sorted(tmp_path.rglob("*")) == before
            patch.setenv("OMPI_COMM_WORLD_RANK", "0")
            patch.setattr("hybridnn.cli.ranks.all_ranks_arrive", lambda seconds: all(codes))
            result = run_hybridnn(*arguments)
            assert codes in ([0, 0], [result[0], result[0]])
            return result

    return run_arguments


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Train with some arguments, once for all tests of a module; returns the run folder, which nobody may change."""
    folders: dict[tuple[str, ...], Path] = {}

    def train(*arguments: str) -> Path:
        if arguments not in folders:
            folder = tmp_path_factory.mktemp("trained")
            printed = io.StringIO()
            with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
                patch.chdir(folder)
                with pytest.raises(SystemExit) as end:
                    main(("train", *arguments, "-q", "--out", "run"))
            assert end.value.code == 0
            folders[arguments] = folder / "run"
        return folders[arguments]

    return train
