"""Largest stable rates of stale gradients: roots of the recurrences, and the figures of the studies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hybridnn import SGD
from hybridnn.nn.delayed_updates import SpikeSGD
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.study.cells import make_cells
from hybridnn.study.plots import draw_plots
from hybridnn.study.study_file import load_study
from hybridnn_papers.records import read_records
from hybridnn_papers.stability import closed_form, largest_rate
from reference.finished_runs import made_study
from reference.pages import ROOT


def limit(delay: int, momentum: float, newest: float = 1.0, before: float = 0.0) -> float:
    """Where a root of w(t+1) = (1+m) w(t) - m w(t-1) - r (newest w(t-d) - before w(t-d-1)) leaves the unit circle."""

    def is_stable(rate: float) -> bool:
        equation = np.zeros(delay + 3)
        equation[:3] = 1, -1 - momentum, momentum
        equation[delay + 1 : delay + 3] += rate * newest, -rate * before
        return bool(max(abs(np.roots(equation))) < 1)

    rates = np.geomspace(1e-3, 5, 20_000)
    return float(next(rate for rate in rates if not is_stable(rate)))


def test_without_momentum_the_limit_is_a_sine() -> None:
    for delay in range(9):
        assert closed_form(delay, 0.0) == pytest.approx(2 * np.sin(np.pi / (4 * delay + 2)), rel=1e-9)
    assert closed_form(0, 0.9) == pytest.approx(2 * 1.9, rel=1e-9)


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_methods_of_the_library_are_stable_up_to_the_roots(stages: int, momentum: float) -> None:
    delay, rule = stages - 1, SGD(momentum=momentum)
    late = limit(delay, momentum)
    assert closed_form(delay, momentum) == pytest.approx(late, rel=1e-3)
    expected = {"sequential": limit(0, momentum), "pipedream-2bw": limit(1, momentum)}
    expected |= dict.fromkeys(("ddg", "fr", "pipedream", "pipedream-vsync", "vanilla"), late)
    if momentum:
        # On stage 0 both predict over the delay d: w(t-d) - d (w(t-d-1) - w(t-d)).
        expected |= dict.fromkeys(("lwp", "spectrain"), limit(delay, momentum, 1 + delay, delay))
        kept = momentum**delay
        at_once = (1 - kept) / (1 - momentum)
        found = largest_rate(METHODS["pipedream"], SpikeSGD(momentum=momentum), stages)
        assert found == pytest.approx(limit(delay, momentum, kept + at_once, momentum * at_once), rel=0.01)
    for method, rate in expected.items():
        assert largest_rate(METHODS[method], rule, stages) == pytest.approx(rate, rel=0.01), method


def test_studies_have_every_asynchronous_method_that_the_optimizer_allows() -> None:
    stale = {name for name, method in METHODS.items() if not method.exact}
    assert {cell.values["method"] for cell in make_cells(load_study("stale-methods")).cells} == {"1f1b", *stale}
    plan = make_cells(load_study("stability"))
    without = {cell.values["method"] for cell in plan.cells if cell.values["optimizer.momentum"] == 0}
    assert without == {name for name in stale if not METHODS[name].predicts}


def test_largest_rates_and_depths_are_drawn(tmp_path: Path) -> None:
    """The largest rate with which every seed reaches the target, by stages."""
    metrics = {(2, 0.1): (0.9, 0.9), (2, 0.2): (0.9, 0.9), (4, 0.1): (0.9, 0.9), (4, 0.2): (0.9, 0.3)}
    runs = {}
    for (stages, rate), found in metrics.items():
        for seed, metric in enumerate(found):
            values = {"grid": f"{stages}x1x1", "method": "ddg", "optimizer.lr": rate, "seed": seed}
            run = {"ranks": stages, "grid": (stages, 1, 1), "method": "ddg", "accuracy": metric, "seconds": [1.0]}
            runs[f"{stages}-{rate}-{seed}"] = values, run
    conclusions = {"columns": ["converged", "bubble"], "best_over": ["optimizer.lr"], "target": 0.8}
    plots = draw_plots(made_study(tmp_path, runs, more={"conclusions": conclusions}))
    quadratic, trained = plots["stability"][1].axes
    (line,) = trained.lines
    assert [list(line.get_xdata()), list(line.get_ydata())] == [[1, 3], [0.2, 0.1]]
    closed, simulated = quadratic.lines
    np.testing.assert_allclose(simulated.get_ydata(), closed.get_ydata(), rtol=0.01)
    best, epochs = plots["depths"][1].axes
    assert list(best.lines[0].get_ydata()) == [0.9, 0.9]
    assert list(epochs.lines[0].get_ydata()) == [1, 1]


def test_table_of_the_page_has_the_records() -> None:
    page = (ROOT / "papers" / "docs" / "stale-methods.md").read_text(encoding="utf-8")
    for row in comparison_rows(ROOT / "papers" / "docs" / "records" / "stale-methods-full.csv"):
        assert f"| {' | '.join(row)} |" in page


def comparison_rows(path: Path) -> list[list[str]]:
    """Per method, with 2, 4, 8 and 16 stages: mean accuracy, epochs to the target, each at its best rate; idle, kB."""
    cells: dict[tuple[str, str], dict[str, list[dict[str, float | None]]]] = {}
    for cell in read_records(path)[0].cells:
        of_point = cells.setdefault((cell.values["method"], cell.values["grid"]), {})
        of_point.setdefault(str(cell.values["optimizer.lr"]), []).append(dict(cell.measures))
    rows = []
    for method in dict.fromkeys(method for method, _ in cells):
        by_depth = [list(cells[method, f"{stages}x1x1"].values()) for stages in (2, 4, 8, 16)]
        accuracy = [max(np.mean([one["best_metric"] for one in found]) for found in rates) for rates in by_depth]
        epochs = [min(np.mean([one["epochs_to_target"] for one in found]) for found in rates) for rates in by_depth]
        texts = [f"{value:.3f}" for value in accuracy] + [f"{value:.1f}" if value < 9 else "-" for value in epochs]
        last = by_depth[-1][0][0]
        rows.append([f"`{method}`", *texts, f"{last['bubble']:.1%}", f"{last['memory'] / 1e3:.0f}"])
    return rows
