"""Predicted cost of cells; warnings on the machine file, and on cells that ran on different hardware."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridnn.comm.hosts import processor_name
from hybridnn.cost.machine import Quality
from hybridnn.cost.machine_file import read_machine, write_machine
from hybridnn.cost.prediction.predict import predict
from hybridnn.errors import DataError, SettingError
from hybridnn.runs.run_files import RunRecord, read_run
from hybridnn.runs.workload import layout_from_settings, workload_from_settings
from hybridnn.study.answer import hardware_warnings, prediction_warnings, price_warnings
from hybridnn.study.cells import StudyPrices, make_cells, price_cells, require_own_processor
from hybridnn.study.study_file import load_study
from reference.finished_runs import prediction_line, write_run

PricesOf = Callable[[str], StudyPrices]
MACHINE = 'machine = "cluster-1024"\n'


@pytest.fixture
def prices_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], StudyPrices | None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYBRIDNN_MACHINE", raising=False)

    def price(text: str) -> StudyPrices | None:
        Path("study.toml").write_text(f'name = "s"\n{text}')
        study = load_study("study.toml")
        return price_cells(study, make_cells(study).cells)

    return price


def test_price_is_the_predicted_training_on_a_core_for_each_thread(prices_of: PricesOf) -> None:
    prices = prices_of(MACHINE + "base.training.epochs = 7\naxes = {ranks = [4], threads = [1, 3], repeats = 1}")
    one, three = (prices.cells[f"ranks-4_threads-{threads}"] for threads in (1, 3))
    settings = make_cells(load_study("study.toml")).cells[0].settings
    workload, machine = workload_from_settings(settings), read_machine("cluster-1024")
    predicted = predict(workload, layout_from_settings(settings, 4, workload.model, machine), machine)
    assert one.seconds == three.seconds == 7 * predicted.seconds_per_epoch
    assert one.core_hours == pytest.approx(one.seconds * 4 / 3600)
    assert three.core_hours == pytest.approx(3 * one.core_hours)
    assert prices.total_text.startswith(f"predicted by cluster-1024: {2 * one.seconds:.4g} s of training, ")


def test_ranks_on_more_nodes_are_predicted_with_messages_between_them(prices_of: PricesOf) -> None:
    prices = prices_of(MACHINE + "axes = {ranks = [4], nodes = [1, 4]}").cells
    assert prices["ranks-4_nodes-4"].seconds > prices["ranks-4_nodes-1"].seconds


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("base.data.file = 'none.csv'\naxes = {ranks = [1]}", "none.csv"),
        ("base.parallel.auto = true\naxes = {ranks = [2]}", "parallel.auto chooses its layout when it runs"),
        ("base.device.name = 'gpu'\naxes = {ranks = [2]}", "machine files do not describe GPUs"),
    ],
)
def test_cell_without_a_prediction_says_why(prices_of: PricesOf, text: str, reason: str) -> None:
    prices = prices_of(MACHINE + text)
    (price,) = prices.cells.values()
    assert isinstance(price, str)
    assert reason in price
    assert prices.total_text.endswith("; 1 of 1 cells have no prediction")


def test_machine_of_one_node_predicts_no_cells_on_several(prices_of: PricesOf, tmp_path: Path) -> None:
    machine = read_machine("cluster-1024").model_copy(update={"nodes": 1, "between_nodes": None, "name": "one"})
    write_machine(machine, tmp_path / "one.toml")
    prices = prices_of('machine = "one.toml"\naxes = {ranks = [2], nodes = [2]}')
    assert prices.cells == {"ranks-2_nodes-2": "the machine file one has no between_nodes"}


def test_a_machine_file_is_needed_and_must_be_there(prices_of: PricesOf) -> None:
    assert prices_of("axes = {ranks = [1]}") is None
    with pytest.raises(DataError, match=r"none\.toml"):
        prices_of('machine = "none.toml"\naxes = {ranks = [1]}')


def test_study_does_not_run_with_the_machine_file_of_another_processor(prices_of: PricesOf) -> None:
    machine = read_machine("cluster-1024")
    for name, processor in (("own", processor_name()), ("old", "Old CPU")):
        write_machine(machine.model_copy(update={"about": {"processor": processor}}), Path(f"{name}.toml"))
    prices_of('machine = "old.toml"\naxes = {ranks = [1]}')  # prices may be those of another machine
    with pytest.raises(SettingError, match=r"machine = '.*old.toml': .* of another processor, Old CPU"):
        require_own_processor(load_study("study.toml"))
    for given in ('machine = "own.toml"', 'machine = "cluster-1024"', ""):
        prices_of(f"{given}\naxes = {{ranks = [1]}}")
        require_own_processor(load_study("study.toml"))


# -- hardware ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "warning"),
    [
        ({"processors": ["Other CPU"]}, "processors: Some CPU (1 cell); Other CPU (1 cell)"),
        ({"cores": [4]}, "numbers of cores on a node: 8 (1 cell); 4 (1 cell)"),
        ({"blas": "mkl 2"}, "BLAS libraries: openblas 1 (1 cell); mkl 2 (1 cell)"),
        ({"names": ["n2"], "binding": "1 core per rank: 0", "launcher": "mpirun"}, None),
    ],
)
def test_cells_of_a_curve_must_have_run_on_the_same_hardware(
    tmp_path: Path, hosts: dict[str, Any], warning: str | None
) -> None:
    runs = [read_run(write_run(tmp_path / "a")), read_run(write_run(tmp_path / "b", hosts=hosts))]
    expected = [] if warning is None else [f"cells of one curve ran with different {warning}"]
    assert hardware_warnings([runs]) == expected
    assert hardware_warnings([[run] for run in runs]) == []


def _predicted(tmp_path: Path, ranks: int, **changes: Any) -> RunRecord:
    line = prediction_line(0.1, **changes)
    return read_run(write_run(tmp_path / str(ranks), ranks=ranks, lines=[line]))


def test_machine_files_of_fewer_ranks_or_another_processor_are_named(tmp_path: Path) -> None:
    runs = [_predicted(tmp_path, ranks, calibrated_ranks=2) for ranks in (1, 2, 8)]
    assert prediction_warnings(runs[:2]) == []
    (warning,) = prediction_warnings(runs)
    assert warning.endswith("was calibrated on 2 ranks: predictions for 8 are extrapolated")
    assert prediction_warnings([_predicted(tmp_path, 3, processor="Some CPU")]) == []
    (warning,) = prediction_warnings([_predicted(tmp_path, 4, processor="Old CPU")])
    assert warning.endswith("is of another processor: Old CPU, not Some CPU")


def test_doubtful_machine_files_are_named_with_prices_and_predictions(prices_of: PricesOf, tmp_path: Path) -> None:
    quality = Quality(held_out_error=0.63, held_out_of="send", noise=0.1, load_average=0.0, busy_ranks=1)
    machine = read_machine("cluster-1024").model_copy(update={"name": "bad", "quality": quality})
    doubt = "the machine file bad is doubtful, and so are its predictions: held-out error 63% (send), more than 25%"
    assert machine.doubt == doubt
    assert read_machine("cluster-1024").doubt == ""
    prices_of(MACHINE + "axes = {ranks = [1]}")
    assert price_warnings(machine, make_cells(load_study("study.toml")).cells) == [doubt]
    runs = [_predicted(tmp_path, ranks, doubt=doubt) for ranks in (1, 2)]
    assert prediction_warnings([*runs, _predicted(tmp_path, 3)]) == [doubt]
