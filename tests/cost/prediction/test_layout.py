"""Descriptions of layouts: text, staleness, settings."""

from __future__ import annotations

import pytest

from hybridnn.config.settings import ParallelSettings, keys_of_layout
from hybridnn.pipeline.checks.lint import audit
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.utils.text import counted


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout(((1, 1),), (3,)), "one rank"),
        (Layout(((4, 2),), (3,), "alternating", overlap=False), "batch 4 x model 2 (alternating), without overlap"),
        (
            Layout(((4, 2),) * 2, (3, 1), method="1f1b", microbatches=8),
            "pipeline 2 x batch 4 x model 2 (columns), 1f1b with 8 microbatches",
        ),
        (Layout(((3, 1), (1, 1)), (3, 1), method="pipedream"), "stages 3 x 1 + 1 x 1, pipedream"),
    ],
)
def test_descriptions(layout: Layout, text: str) -> None:
    assert layout.describe() == text


def pipeline(method: str, stages: int) -> Layout:
    chosen = METHODS[method]
    return Layout(
        ((1, 1),) * stages,
        (1,) * stages * (2 if chosen.chunked else 1),
        method=method,
        microbatches=stages if chosen.cuts_minibatches else 1,
        chunks=2 if chosen.chunked else 1,
    )


@pytest.mark.parametrize("name", METHODS)
def test_staleness_agrees_with_an_audit_of_the_schedule(name: str) -> None:
    layout = pipeline(name, 4)
    rows = [row for row in audit(layout.schedule(1 if layout.exact else 16)) if row.minibatch >= 8 or layout.exact]
    ages = {row.staleness for row in rows}
    predicts = any(row.forward.ahead or row.backward.ahead for row in rows)
    consistent = all(row.consistent for row in rows)
    text = layout.describe_staleness()
    if ages == {0}:
        assert text == "exact"
    elif predicts:
        assert text == "weights predicted"
    elif consistent:
        assert text == f"stale by {'up to ' * (len(ages) > 1)}{counted(max(ages), 'update')}"
    else:
        assert text == ("replayed" if name == "fr" else "inconsistent")


def test_keys_of_a_layout() -> None:
    layout = Layout(((4, 2),) * 2, (3, 1), "alternating", False, "gpipe", 8, merges=True)
    chosen = ParallelSettings.model_validate(keys_of_layout(layout))
    assert (chosen.pipeline, chosen.batch, chosen.model, chosen.model_split) == (2, 4, 2, "alternating")
    assert (chosen.overlap, chosen.method, chosen.microbatches, chosen.partition) == (False, "gpipe", 8, (3, 1))
    assert "method" not in keys_of_layout(Layout(((4, 2),), (4,)))


@pytest.mark.parametrize(("minibatches", "of_first_stage"), [(12, 65 / 12), (391, 3855 / 391)])
def test_the_drain_after_few_minibatches_lowers_the_mean_staleness(minibatches: int, of_first_stage: float) -> None:
    """Stage 0 of 11 is stale by min(t, 10)."""
    found = pipeline("pipedream", 11).mean_staleness(minibatches)
    assert found[0] == pytest.approx(of_first_stage)
    assert found[-1] == 0
    assert list(found) == sorted(found, reverse=True)
    assert pipeline("1f1b", 3).mean_staleness(minibatches) == (0, 0, 0)
