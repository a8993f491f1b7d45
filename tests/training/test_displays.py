"""What notebooks show of networks, schedules and trainings."""

import io
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, ProcessGrid, ProgressBar, Trainer
from hybridnn.comm.mpi import Launch
from hybridnn.errors import DataError, SettingError, UnequalSettingError
from hybridnn.training.records import EpochRecord, History
from reference.callbacks import Calling

SVG = "{http://www.w3.org/2000/svg}"
X, Y = np.random.default_rng(0).standard_normal((40, 4)), np.random.default_rng(0).integers(0, 3, 40)


class Cells(HTMLParser):
    """Texts of the cells of a table, by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        self.rows[-1][-1] += data


def trained(epochs: int = 3) -> Trainer:
    trainer = Trainer(MLP([4, 5, 3]), log_every=1)
    if epochs:
        trainer.fit(X, Y, epochs=epochs, validation=(X, Y))
    return trainer


def test_a_network_is_a_table_of_its_layers() -> None:
    rows = Cells(MLP([4, 300, 300, 2], "tanh", residual=True)._repr_html_()).rows
    assert rows == [
        ["layer", "inputs", "outputs", "activation", "parameters"],
        ["0", "4", "300", "tanh", "1,500"],
        ["1", "300", "300", "tanh, residual", "90,300"],
        ["2", "300", "2", "identity", "602"],
        ["all", "4", "2", "", "92,402"],
    ]


def test_a_history_fits_a_line() -> None:
    history = trained().history
    last = history.epochs[-1]
    expected = f"<History: 3 epochs; train loss {last.train_loss:.4f}, validation loss {last.validation_loss:.4f}, "
    assert repr(history) == f"{expected}validation accuracy {last.validation_accuracy:.4f}>"
    assert repr(History()) == "<History: no epochs, 0 logged steps>"
    assert len(repr(trained(0))) < 300
    assert re.fullmatch(r"<Trainer of MLP.* with SGD.* on ProcessGrid.*, step 3>", repr(trained()))


def test_a_history_is_a_curve_of_its_losses(tmp_path: Path) -> None:
    history = trained().history
    shown = history._repr_svg_()
    assert shown == history.plot()._repr_svg_()
    texts = {element.text for element in ElementTree.fromstring(shown).iter(f"{SVG}text")}
    assert {"Mean loss", "epoch", "train", "validation"} <= texts
    for name, beginning in (("a.png", b"\x89PNG"), ("a.svg", b"<svg"), ("a.PDF", b"%PDF")):
        history.plot(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(beginning)


def test_curves_that_cannot_be_drawn_or_written(tmp_path: Path) -> None:
    assert History()._repr_svg_() is None
    with pytest.raises(DataError, match="no epoch"):
        History().plot()
    with pytest.raises(SettingError, match=r"ends with \.png, \.svg, \.pdf"):
        trained().history.plot(tmp_path / "a.gif")
    with pytest.raises(SettingError, match="cannot be written"):
        trained().history.plot(tmp_path / "none" / "a.png")


def test_a_history_is_a_frame_of_its_epochs() -> None:
    history = trained().history
    frame = history.to_frame()
    values = [{name: value for name, value in asdict(record).items() if value is not None} for record in history.epochs]
    assert frame[list(values[0])].to_dict("records") == values
    assert np.isnan(frame.validation_r2.mean())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown_on(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[str, History]:
    """What a training of three epochs writes to standard output."""
    trainer = Trainer(MLP([4, 5, 3]))
    monkeypatch.setattr("sys.stdout", stream)
    history = trainer.fit(X, Y, epochs=3, validation=(X, Y), **settings)
    monkeypatch.undo()
    assert len(history.epochs) == 3
    return stream.getvalue(), history


def measured(record: EpochRecord) -> str:
    values = record.train_loss, record.validation_loss, record.validation_accuracy
    return "train loss {:.4f}, validation loss {:.4f}, validation accuracy {:.4f}".format(*values)


@pytest.mark.parametrize("settings", [{"progress": True}, {"callbacks": [ProgressBar(3)]}])
def test_progress_in_a_terminal_is_one_line_that_is_updated_in_place(monkeypatch, settings) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("hybridnn.training.callbacks.REFRESH_SECONDS", 0.0)
    shown, history = shown_on(Terminal(), monkeypatch, **settings)
    assert shown.count("\n") == 1
    *_, before_end, end = shown.split("\r\033[K")
    assert end == f"{'━' * 20} epoch 3/3, {measured(history.epochs[-1])}\n"
    assert before_end.startswith("━" * 20)
    states = [text.strip("━─ ") for text in shown.split("\r\033[K")[1:-1]]
    assert [text.partition(",")[0] for text in states] == [f"epoch {epoch}/3" for epoch in range(4)]
    monkeypatch.setenv("COLUMNS", "30")
    lines = shown_on(Terminal(), monkeypatch, progress=True)[0].rstrip("\n").split("\r\033[K")
    assert max(map(len, lines)) == 29


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_progress_in_a_file_or_on_a_rank_is_a_line_for_every_epoch(monkeypatch, stream) -> None:
    """Launchers give ranks a pseudo-terminal, and forward whole lines."""
    if stream is Terminal:
        monkeypatch.setattr("hybridnn.training.callbacks.detect_launch", lambda environment: Launch("mpirun", False, 2))
    shown, history = shown_on(stream(), monkeypatch, progress=True)
    assert shown.splitlines() == [f"epoch {record.epoch}/3, {measured(record)}" for record in history.epochs]


def test_fit_shows_nothing_unless_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_on(Terminal(), monkeypatch)[0] == ""


@pytest.mark.in_process(ranks=[2])
def test_only_the_first_rank_shows_progress(comm: MPI.Intracomm, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer(MLP([4, 3]), grid=ProcessGrid(comm))
    trainer.fit(X, Y, epochs=2, progress=True)
    if comm.rank == 0:
        lines = capsys.readouterr().out.splitlines()
        assert [line.partition(",")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    with pytest.raises(UnequalSettingError, match="progress: rank 0 has false, rank 1 has true"):
        trainer.fit(X, Y, epochs=1, progress=comm.rank == 1)


def test_records_print_as_a_short_line() -> None:
    trainer, lines = Trainer(MLP([4, 5, 3]), batch_size=20, log_every=1, evaluate_every_steps=1), list[str]()

    def keep(record: Any) -> None:
        lines.append(str(record))

    trainer.fit(X, Y, epochs=1, validation=(X, Y), callbacks=[Calling(on_step=keep, on_epoch=keep, on_evaluated=keep)])
    history = trainer.history
    assert lines[0] == f"step 1: train loss {history.steps[0].train_loss:.4f}"
    assert lines[-1] == f"epoch 1: {measured(history.epochs[0])}"
    evaluated = history.evaluations[-1]
    loss, accuracy = evaluated.validation_loss, evaluated.validation_accuracy
    assert f"step 2: validation loss {loss:.4f}, validation accuracy {accuracy:.4f}" in lines


IN_A_NOTEBOOK = """
import sys
sys.modules["ipywidgets"] = None
import numpy as np
from hybridnn import MLP, Trainer
from hybridnn.in_process import run_ranks
x, y = np.random.default_rng(0).standard_normal((40, 4)), np.arange(40) % 3
def fit(**settings):
    Trainer(MLP([4, 5, 3])).fit(x, y, epochs=3, **settings)
"""


@pytest.mark.timeout(600)
def test_progress_in_a_notebook_without_widgets_is_one_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    from reference.pages import executed, printed, quiet_kernel, with_cells

    quiet_kernel(monkeypatch, tmp_path)
    command = "!'{sys.executable}' -m hybridnn train --epochs 3 --hidden 4 --out '{FOLDER}'"
    cells = ("fit()", "fit(progress=False)", "run_ranks(1, lambda comm: fit())", command)
    empty = json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    first = f"{IN_A_NOTEBOOK}FOLDER = {str(tmp_path / 'run')!r}"
    found = json.loads(executed(with_cells(empty, first, *cells)))["cells"]
    (shown,) = found[1]["outputs"]
    assert re.match(r"epoch 3/3, train loss 1\.\d+$", "".join(shown["data"]["text/plain"]))
    assert "".join(shown["data"]["text/html"]).startswith('<progress value="3" max="3"></progress> epoch 3/3, ')
    assert found[2]["outputs"] == []
    assert all("progress" not in json.dumps(output) for output in found[3]["outputs"])
    lines = printed(found[4])
    assert len(re.findall(r"^ +\d +[12]\.\d{4} ", lines, re.MULTILINE)) == 3
    assert re.search(r"\x1b|\r(?!\n)", lines) is None
