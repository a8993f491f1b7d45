"""Errors of gradients and weights by stage: what the versions of two methods say, and the lines of the picture."""

from __future__ import annotations

from hybridnn.data import load_dataset
from hybridnn_papers.staleness_picture import diagnosed, draw_staleness


def test_vertical_sync_has_old_weights_on_every_stage_and_pipedream_on_all_but_the_last() -> None:
    data = load_dataset("digits")
    found = [diagnosed(data, method, stages=4, epochs=2) for method in ("pipedream-vsync", "pipedream")]
    synced, plain = (it.of_stages("used_error") for it in found)
    assert min(synced) > 0
    assert plain[-1] == 0
    assert plain[:-1] == sorted(plain[:-1], reverse=True)
    gradients, weights = draw_staleness(found).axes
    assert [line.get_label() for line in gradients.lines] == [f"{it.method}, {it.accuracy:.3f}" for it in found]
    assert list(weights.lines[0].get_ydata()) == synced
