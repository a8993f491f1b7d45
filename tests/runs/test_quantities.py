"""Records of runs, and their figures: speed, prediction error, scaling, and what limits them."""

from pathlib import Path

import pytest

from hybridnn.errors import DataError
from hybridnn.runs.quantities import TimeShares, figures_of, instruction_figures, judge, mean_shares, relative_error
from hybridnn.runs.run_files import read_run
from reference.finished_runs import measured_line, prediction_line, write_run


def test_figures_of_a_run_without_a_prediction(tmp_path: Path) -> None:
    figures = figures_of(read_run(write_run(tmp_path, ranks=4, grid=(1, 2, 2), samples=1000)))
    # Epochs of 9, 2, 1 and 3 s, ten steps each: the median of the last three.
    assert (figures.seconds_per_epoch, figures.seconds_per_step) == (2, 0.2)
    assert figures.samples_per_second == 500
    assert figures.bytes_per_step == 1500  # of 10, 15 and 20 kB per epoch
    assert figures.shares.communicate == pytest.approx(0.25)
    assert figures.shares.idle is None
    assert (figures.grid, figures.network, figures.ranks) == ("2x2", "64-64-64-10", 4)
    assert (figures.metric_name, figures.metric) == ("test accuracy", 0.5)
    assert figures.predicted_seconds_per_step is None
    assert figures.prediction_error is None
    assert figures.verdict.limit == "communicate"


def test_figures_of_a_predicted_run(tmp_path: Path) -> None:
    lines = [prediction_line(0.25), measured_line(1, 9.0), measured_line(2, 0.2), measured_line(3, 0.2)]
    run = read_run(write_run(tmp_path, accuracy=None, lines=lines))
    figures = figures_of(run)
    assert figures.prediction_error == pytest.approx(0.25)
    assert (figures.predicted_seconds_per_epoch, figures.predicted_bytes_per_step) == (2.5, 4000)
    assert figures.shares.communicate == pytest.approx(0.3)
    assert (figures.shares.bubble, figures.shares.wait) == (0, pytest.approx(0.1))
    assert figures.shares.overhead == pytest.approx(0.1)
    assert (figures.metric_name, figures.metric) == ("test R²", 0.75)
    forward, backward, update = instruction_figures(run)
    assert (forward.kind, backward.kind, update.kind) == ("forward", "backward", "update")
    assert forward.seconds_per_step == pytest.approx(0.04)  # the first epoch does not count
    assert forward.error == pytest.approx(0.05 / 0.04 - 1)
    assert (backward.predicted_seconds_per_step, backward.error) == (None, None)
    assert (update.seconds_per_step, update.error) == (None, None)


def test_load_balance_is_mean_over_greatest_computing_time(tmp_path: Path) -> None:
    lines = [measured_line(1, 9.0, most_computing=9.0)]
    lines += [measured_line(2, 0.2, most_computing=0.12), measured_line(3, 0.2, most_computing=0.13)]
    shares = figures_of(read_run(write_run(tmp_path, ranks=2, lines=lines))).shares
    assert shares.most_compute == pytest.approx(0.625)  # of the second and third epoch
    assert shares.load_balance == pytest.approx(0.5 / 0.625)
    assert shares.load_balance * shares.communication_efficiency == pytest.approx(shares.compute)  # type: ignore[operator]


def test_what_one_run_lacks_is_missing() -> None:
    found = mean_shares([TimeShares(0.1, 0.05, 0.15, 0.3, 0.5), TimeShares(0.3, 0.3, 0.1, 0.1)])
    assert (found.communicate, found.idle, found.overhead) == pytest.approx((0.2, 0.3, 0.2))
    assert found.most_compute is None
    assert found.compute == pytest.approx(0.3)
    assert sum(found.parts.values()) == pytest.approx(1)
    assert relative_error(1.0, 0.0) is None
    assert relative_error(None, 1.0) is None


def test_small_runs_are_limited_by_overhead(tmp_path: Path) -> None:
    # 64 x 2 + 2 + 2 x 10 + 10 = 160 parameters, and six operations for each of 10 samples.
    run = read_run(write_run(tmp_path, hidden=[2], batch_size=10, communication_share=0.0))
    assert figures_of(run).verdict.text == "too small: overhead, 0.0096 MFlop per rank and step"


LARGE, SMALL = 1e9, 1e6


@pytest.mark.parametrize(
    ("shares", "flops", "limit", "text"),
    [
        (TimeShares(0.45, 0.0, 0.1, 0.05), LARGE, "communicate", "communicate, 45% of the step"),
        (TimeShares(0.1, 0.1, 0.4, 0.1), LARGE, "wait", "wait, 40% of the step"),
        (TimeShares(0.1, 0.4, 0.1, 0.1), LARGE, "bubble", "bubble, 40% of the step"),
        (TimeShares(0.1, 0.0, 0.2, 0.5), LARGE, "overhead", "too small: overhead, 50% of the step"),
        (TimeShares(0.2, 0.0, 0.2, 0.2), LARGE, "compute", "compute"),
        (TimeShares(0.24), LARGE, "compute", "compute"),
        (TimeShares(0.25), LARGE, "communicate", "communicate and wait, 25% of the step"),
        (TimeShares(0.0), SMALL, "overhead", "too small: overhead, 1 MFlop per rank and step"),
        (TimeShares(0.6), SMALL, "communicate", "communicate and wait, 60% of the step"),
    ],
)
def test_greatest_costly_share_limits_a_run(shares: TimeShares, flops: float, limit: str, text: str) -> None:
    verdict = judge(shares, flops)
    assert (verdict.limit, verdict.text) == (limit, text)


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(DataError, match="is not a run folder"):
            read_run(path)
    (tmp_path / "history.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="did not end well"):
        read_run(tmp_path)
    with pytest.raises(DataError, match="has no epoch"):
        read_run(write_run(tmp_path / "b", seconds=[]))
    (write_run(tmp_path / "c") / "config.toml").unlink()
    with pytest.raises(DataError, match=r"config\.toml': cannot be read"):
        read_run(tmp_path / "c")
