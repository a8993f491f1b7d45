"""Chen et al. 2018, Figure 8: predicted weights are nearer to the true ones than stale weights, in a short training."""

from __future__ import annotations

from statistics import fmean

from hybridnn.data import load_dataset
from hybridnn_papers.weight_errors import STAGES, better_predictions, diagnosed, draw_weight_errors


def test_predicted_weights_are_nearer_than_stale_ones_which_are_further_away_with_every_update() -> None:
    steps = diagnosed(load_dataset("digits"), layers=8, epochs=4, batch_size=32, log_every=5, seed=0)
    assert min(better_predictions(steps)) >= 0.95
    errors = [fmean(step.stale_error[-1 - ahead] for step in steps) for ahead in range(STAGES)]
    assert errors[0] == 0
    assert errors == sorted(errors)
    lines = draw_weight_errors(steps).axes[0].lines
    assert [line.get_label() for line in lines[:2]] == ["stale, 1 ahead", "predicted, 1 ahead"]
    assert list(lines[0].get_ydata()) == [step.stale_error[-2] for step in steps]
