"""The answer of a study, its statistics, predicted prices, and warnings on machine files and hardware."""

import re
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import quantile_test

from hybridnn.cost.machine import Quality
from hybridnn.cost.machine_file import read_machine, write_machine
from hybridnn.cost.prediction.predict import predict
from hybridnn.diagnostics.hosts import processor_name
from hybridnn.errors import DataError, SettingError
from hybridnn.runs.records import RunHeader
from hybridnn.runs.run_files import RunRecord, read_run
from hybridnn.runs.workload import layout_from_settings, workload_from_settings
from hybridnn.study.answer import fastest_layouts, hardware_warnings, prediction_warnings, price_warnings
from hybridnn.study.cells import StudyPrices, make_cells, price_cells, require_own_processor
from hybridnn.study.judgement import CONFIDENCE, Estimate, MeanDeviation, mean_and_deviation, median_of
from hybridnn.study.plots import draw_plots
from hybridnn.study.report import latex_text, markdown_text
from hybridnn.study.results import StudyResults
from hybridnn.study.study_file import load_study
from reference.finished_runs import load_line, made_study, measured_line, prediction_line, write_run

Layout = tuple[int, int, int]
ONE, BATCH, MODEL, STAGES = (1, 1, 1), (1, 2, 1), (1, 1, 2), (2, 1, 1)


def _study(
    folder: Path,
    times: Mapping[Layout, Sequence[float | None]],
    *,
    doubt: str = "",
    disturbed: Collection[tuple[Layout, int]] = (),
    **predicted: float,
) -> StudyResults:
    """Layouts with their seconds per epoch in rounds, of which some are missing or disturbed; predictions by grid."""
    runs = {}
    for (stages, batch, model), rounds in times.items():
        grid = f"{stages}x" * (stages > 1) + f"{batch}x{model}"
        ranks, method = stages * batch * model, "1f1b" if stages > 1 else "-"
        for number, seconds in enumerate(rounds, 1):
            if seconds is None:
                continue
            lines: list[Mapping[str, Any]] = [measured_line(epoch, seconds / 10) for epoch in (1, 2)]
            said = predicted.get(f"grid_{grid}")
            lines += [] if said is None else [prediction_line(said / 10, doubt=doubt)]
            lines += [load_line(1.5)] if ((stages, batch, model), number) in disturbed else []
            options = {"ranks": ranks, "grid": (stages, batch, model), "seconds": [seconds] * 2, "lines": lines}
            values = {"ranks": ranks, "grid": grid, "method": method, "repeat": number}
            runs[f"{grid}-{number}"] = (values, options)
    return made_study(folder, runs, more={"compares": "times"})


def test_fastest_layout_with_what_it_loses_to_and_the_choice_of_the_model(tmp_path: Path) -> None:
    times = {ONE: [4.0, 4.1, 3.9], BATCH: [2.5, 2.55, 2.5], MODEL: [3.0, 3.1, 3.0], STAGES: [5.0, 5.0, 5.1]}
    results = _study(tmp_path, times, grid_2x1=2.9, grid_1x2=2.8, grid_2x1x1=4.0)
    (found,) = fastest_layouts(results)
    assert (found.point.first.grid, found.alike, [point.first.grid for point, _ in found.others]) == (
        "2x1",
        [],
        ["1x2", "2x1x1"],
    )
    text = found.text
    assert text.startswith(
        "2 ranks: 2x1 is the fastest, 2.52 [2.45, 2.59] s per epoch on average, 1.59 [1.48, 1.71] times as fast"
    )
    assert " as 1 rank; it loses to smaller products 10%, communicate 6%, " in text
    assert "The next, 1x2, takes 1.21 [1.1" in text
    assert text.endswith("The model had chosen 1x2, 1.21 [1.18, 1.23] times as long.")
    assert text in markdown_text(results, {}).splitlines()[2]
    assert "2x1 is the fastest" in latex_text(results)
    facts = found.facts
    assert (facts["layout"], facts["is_fastest"], facts["predicted"], facts["ranks"]) == ("2x1", True, "1x2", 2)
    agreed = _study(tmp_path / "agreed", times, grid_2x1=2.0, grid_1x2=2.8, grid_2x1x1=4.0)
    assert fastest_layouts(agreed)[0].text.endswith("The model said so.")
    without = _study(tmp_path / "without", times, grid_2x1=2.0)
    assert "model" not in fastest_layouts(without)[0].text


MEASURED = {ONE: [4.0, 4.1, 3.9], BATCH: [2.5, 2.55, 2.5], MODEL: [3.0, 3.1, 3.0]}
NOTHING = "2 ranks: {}, so nothing is concluded; 2x1 had the least time, {} s per epoch on average."
FEW = NOTHING.format("{} cannot show a difference", "1")
LEAST = "2.52 [2.45, 2.59]"
ALL = [(layout, number) for layout in MEASURED for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("times", "disturbed", "expected"),
    [
        (
            {**MEASURED, MODEL: [2.6, 2.4, 2.7]},
            [],
            r"2 ranks: 2x1 had the least time, 2\.52 .*, 1\.59 \[1\.50, 1\.68\] times as fast as 1 rank; it loses to .*"
            r"\. No difference can be told to 1x2 \(1\.02 \[0\.8., 1\...\] times as long\)\.",
        ),
        (
            {BATCH: [0.060, 0.060, 0.060], MODEL: [0.055, 0.054, 0.056, 0.08, 0.081, 0.08, 0.08]},
            [],
            r"2 ranks: 1x2 is the fastest, 0\.055 \[0\.0526, 0\.0575\] s per epoch on average in the 3 rounds of all\. "
            r"The next, 2x1, takes 1\.09 \[1\.04, 1\.14\] times as long\.",
        ),
        (
            {BATCH: [0.060, 0.060, 0.060], MODEL: [0.055, 0.054, 0.056, 0.08, 0.081]},
            [(MODEL, 5)],
            r"2 ranks: 1x2 is the fastest, .* in the 3 rounds of all\. The next, 2x1, takes 1\.09 \[.*",
        ),
        (
            {ONE: [1.0, 1.01, 1.0], BATCH: [2.5, 2.55, 2.5], MODEL: [3.0, 3.1, 3.0]},
            [],
            r"2 ranks: 2x1 is the fastest, .* on average, slower than 1 rank \(0\.40 \[0\.39, 0\.41\] times as fast\); "
            r"it loses to .*",
        ),
        (
            {ONE: [2.5, 2.6, 2.4], BATCH: [2.5, 2.55, 2.5], MODEL: [3.0, 3.1, 3.0]},
            [],
            r".*2x1 is the fastest, .* on average; no difference to 1 rank can be told \(0\.99 \[0\.8., 1\.1.\] times "
            r"as fast\); it loses to .*",
        ),
        (
            {ONE: [4.0, None, None], BATCH: [2.5, 2.55, 2.5], MODEL: [3.0, 3.1, 3.0]},
            [],
            r"2 ranks: 2x1 is the fastest, 2\.5.* s per epoch on average\. It is not compared with 1 rank: "
            r"1 round cannot show a difference\. The next, .*",
        ),
        ({ONE: [4.0], BATCH: [1.0], MODEL: [3.0]}, [], FEW.format("1 round")),
        ({BATCH: [1.0, 1.0], MODEL: [3.0, 3.0]}, [], FEW.format("2 rounds")),
        (
            {BATCH: [1.0] * 5, MODEL: [None] * 3 + [3.0] * 2},
            [],
            f"{FEW.format('2 rounds')[:-1]} in the 2 rounds of all.",
        ),
        ({BATCH: [1.0] * 3, MODEL: [None] * 3 + [3.0] * 3}, [], NOTHING.format("no round has all layouts", "1 [1, 1]")),
        (MEASURED, ALL, NOTHING.format("9 of 9 runs were disturbed by other processes", LEAST)),
        (MEASURED, [(ONE, 2)], NOTHING.format("1 of 9 runs was disturbed by other processes", LEAST)),
        (
            {BATCH: [2.5, 2.6, 2.7], MODEL: [2.5, 2.6, 2.7]},
            [],
            r"2 ranks: 2x1 had the least time, 2\.6 \[2\.36, 2\.86\] s per epoch on average\. "
            r"No difference can be told to 1x2 \(1\.00 \[1\.00, 1\.00\] times as long\)\.",
        ),
        (
            {BATCH: [1.0, 1.0, 1.0], MODEL: [1.002, 1.0021, 1.002]},
            [],
            r".*2x1 is the fastest, .* The next, 1x2, takes 1\.002 \[1\.002, 1\.002\] times as long\.",
        ),
    ],
)
def test_sentence_says_what_the_rounds_carry(tmp_path, times, disturbed, expected) -> None:
    (found,) = fastest_layouts(_study(tmp_path, times, disturbed=disturbed))
    assert re.fullmatch(expected, found.text) or found.text == expected, found.text
    mean = found.facts["seconds_per_epoch"]
    assert any(f", {mean:{spec}} " in found.text for spec in (".3g", ".4g"))
    if found.reservation:
        assert "times as" not in found.text
        assert "fastest" not in found.text
        assert not found.facts["is_fastest"]


def test_nothing_is_concluded_where_ranks_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crowded = ("2 ranks of 1 thread share 1 core of a node and take turns: their times are no scaling",)
    monkeypatch.setattr(RunHeader, "crowded", property(lambda header: crowded * (header.ranks == 2)))
    (found,) = fastest_layouts(_study(tmp_path, MEASURED))
    assert found.text.startswith("2 ranks: 2 ranks of 1 thread share 1 core of a node and take turns, so nothing is")
    assert "times as" not in found.text


def test_one_layout_has_no_answer(tmp_path: Path) -> None:
    assert fastest_layouts(_study(tmp_path / "one", {ONE: [1.0], BATCH: [1.0]})) == []


def test_disturbed_runs_and_a_doubtful_machine_file_are_named_in_the_answer(tmp_path: Path) -> None:
    times = {ONE: [4.0] * 3, BATCH: [2.5] * 3, MODEL: [3.0] * 3}
    results = _study(tmp_path, times, doubt="too old", disturbed=[(BATCH, 1)], grid_2x1=2.9, grid_1x2=2.8)
    text = fastest_layouts(results)[0].text
    assert text.startswith("2 ranks: 1 of 9 runs was disturbed by other processes, so nothing is concluded; ")
    assert text.endswith(" The model, of a doubtful machine file, had chosen 1x2.")
    caption, _ = draw_plots(results)["strong_scaling"]
    assert caption.endswith("; open markers: predicted from a doubtful machine file.")
    assert "open markers" not in draw_plots(_study(tmp_path / "measured", times))["strong_scaling"][0]


def test_figure_names_the_fastest_layouts_and_has_open_markers_for_predictions(tmp_path: Path) -> None:
    times = {ONE: [4.0] * 3, BATCH: [2.5] * 3, MODEL: [3.0] * 3, STAGES: [5.0] * 3}
    predicted = {"grid_1x1": 4.0, "grid_2x1": 2.4, "grid_1x2": 2.8, "grid_2x1x1": 4.0}
    caption, figure = draw_plots(_study(tmp_path, times, **predicted))["strong_scaling"]
    seconds = figure.axes[0]
    assert "; the least times have 2x1 (2 ranks)" in caption
    lines = [line for line in seconds.get_lines() if line.get_label() == "predicted"]
    assert [list(line.get_ydata()) for line in lines] == [[4.0, 2.4], [4.0, 2.8], [4.0, 4.0]]
    for line in lines:
        assert (line.get_linestyle(), line.get_markerfacecolor()) == ("None", "none")


@pytest.mark.parametrize("count", [3, 5, 6, 9, 10, 25])
def test_interval_of_a_median_is_that_of_the_sign_test(count: int) -> None:
    values = np.random.default_rng(count).exponential(size=count).tolist()
    found = median_of(values)
    expected = quantile_test(values, p=0.5).confidence_interval(CONFIDENCE)
    assert found.value == statistics.median(values)
    of_all = (min(values), max(values))  # the test has no interval where even that is too short
    assert (found.low, found.high) == (of_all if count < 6 else (expected.low, expected.high))
    assert np.isnan([expected.low, expected.high]).any() == (count < 6)


def test_few_or_equal_measurements_have_no_interval_or_one_point() -> None:
    assert median_of([1.0]) == Estimate(1.0)
    assert median_of([1.0, 2.0]) == Estimate(1.5)
    assert median_of([2.0, 2.0, 2.0]) == Estimate(2.0, 2.0, 2.0)


def test_estimates_can_be_scaled_and_printed() -> None:
    assert Estimate(2.0, 1.0, 4.0).scaled(0.5) == Estimate(1.0, 0.5, 2.0)
    assert Estimate(2.0).scaled(0.5) == Estimate(1.0)
    assert Estimate(2.0, 1.0, 4.0).format(".2f") == "2.00 [1.00, 4.00]"
    assert Estimate(2.0).format() == "2"


def test_mean_and_deviation_are_those_of_a_sample() -> None:
    found = mean_and_deviation([1.0, 2.0, 4.0])
    assert (found.mean, found.count) == (pytest.approx(7 / 3), 3)
    assert found.deviation == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert mean_and_deviation([0.5]) == MeanDeviation(0.5, None, 1)
    assert mean_and_deviation([0.5]).format() == "0.5"
    assert mean_and_deviation([0.25, 0.75]).format() == "0.5 ± 0.35"
    assert MeanDeviation(0.9437, 0.0103, 5).format() == "0.9437 ± 0.010"
    assert MeanDeviation(40.0, 12.3, 5).format() == "40 ± 12"


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


@pytest.mark.parametrize(
    ("hosts", "warning"),
    [
        ({"processors": ["Other CPU"]}, "processors: Some CPU (1 cell); Other CPU (1 cell)"),
        ({"cores": [4]}, "numbers of cores on a node: 8 (1 cell); 4 (1 cell)"),
        ({"blas": "mkl 2"}, "BLAS libraries: openblas 1 (1 cell); mkl 2 (1 cell)"),
        ({"names": ["n2"], "binding": "1 core per rank: 0", "launcher": "mpirun"}, None),
    ],
)
def test_cells_of_a_curve_must_have_run_on_the_same_hardware(tmp_path, hosts, warning) -> None:
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
