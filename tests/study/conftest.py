"""Fixture of the tests of studies."""

import pytest

from hybridnn.study.results import StudyResults
from reference.finished_runs import made_study, prediction_line


@pytest.fixture(scope="session")
def strong(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    """Two widths on 1, 2 and 4 ranks, each thrice."""
    seconds = {
        (8, 1): (4, 5, 9),
        (8, 2): (2, 3, 2.5),
        (8, 4): (2, 2, 2),
        (16, 1): (8, 8, 8),
        (16, 2): (4, 4, 4),
        (16, 4): (1, 2, 4),
    }
    runs = {
        f"{width}-{ranks}-{repeat}": (
            {"ranks": ranks, "width": width, "repeat": repeat},
            {"ranks": ranks, "hidden": [width], "seconds": [taken], "lines": [prediction_line(taken / 20)]},
        )
        for (width, ranks), times in seconds.items()
        for repeat, taken in enumerate(times)
    }
    return made_study(tmp_path_factory.mktemp("strong"), runs)
