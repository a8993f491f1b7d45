"""Pictures of predictions: what they show, and text that can be read in a column of a page."""

from __future__ import annotations

import numpy as np
import pytest

from hybridnn.drawing.figures import COLUMN
from hybridnn.drawing.quality_pictures import quality_figure
from hybridnn.runs.quality import ClassReport, RegressionReport
from reference.pictures import least_points


@pytest.mark.parametrize("classes", [10, 25])
def test_confusion_matrices(classes: int) -> None:
    random = np.random.default_rng(0)
    true, predicted = random.integers(0, classes, (2, 400))
    figure = quality_figure(ClassReport.of([f"class {number}" for number in range(classes)], true, predicted))
    assert figure.get_figwidth() == COLUMN
    assert least_points(figure) >= 6
    expected = np.zeros((classes, classes), int)
    np.add.at(expected, (true, predicted), 1)
    shown = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    counts = {(int(column), int(row)): str(expected[row, column]) for row, column in np.argwhere(expected)}
    assert shown == (counts if classes <= 20 else {})


def test_predictions_and_residuals() -> None:
    true = np.random.default_rng(0).standard_normal((50, 2))
    predicted = true + 0.25
    figure = quality_figure(RegressionReport(("price", "area"), true, predicted))
    assert figure.get_figwidth() == COLUMN
    assert least_points(figure) >= 6
    values, residuals = figure.axes[0].get_lines()[1], figure.axes[1].get_lines()[1]
    np.testing.assert_array_equal(values.get_xydata(), np.stack([true[:, 0], predicted[:, 0]], axis=1))
    np.testing.assert_allclose(residuals.get_ydata(), 0.25)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["predicted = true"]
