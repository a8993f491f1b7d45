"""When a calibration is doubtful, from made-up samples."""

from __future__ import annotations

import pytest

from hybridnn.cost.calibration.calibrate import assess_quality
from hybridnn.cost.calibration.communication import TimedCase
from hybridnn.cost.calibration.compute import ComputeError
from hybridnn.cost.calibration.fit import FittedOperation, fit_operations
from hybridnn.cost.machine.file import read_machine

COMPUTE = read_machine("cluster-1024").compute


def fits(wrong: float, from_bytes: int) -> tuple[FittedOperation, ...]:
    """All-reduces on a line; held-out ones from a size on took `wrong` times as long."""
    made = []
    for index, exponent in enumerate(range(3, 25)):
        nbytes, held_out = 2**exponent, index % 3 == 1
        factor = wrong if held_out and nbytes >= from_bytes else 1.0
        made.append(TimedCase("allreduce", 2, False, nbytes, factor * (5e-6 + 1e-9 * nbytes), held_out))
    return fit_operations(made)


def test_the_error_of_large_messages_counts() -> None:
    quality = assess_quality(fits(2.0, 2**16), [], COMPUTE, 0.0, 1)
    assert quality.held_out_error == pytest.approx(0.5, rel=1e-3)
    assert quality.problems == ("held-out error 50% (allreduce among 2 ranks), more than 25%",)
    # Below 64 KiB a message is a matter of microseconds: its error is printed, and does not decide.
    small = fits(2.0, 8)
    only_large = tuple(fits(1.0, 8))
    assert assess_quality(only_large, [], COMPUTE, 0.0, 1).problems == ()
    assert assess_quality(small, [], COMPUTE, 0.0, 1).problems != ()


def test_passes_count_together_for_each_precision_and_number_of_ranks() -> None:
    errors = [
        ComputeError("float32", 1, "forward", 5, 0.1, 1.0),
        ComputeError("float32", 1, "input gradient", 5, 0.4, 1.0),
        ComputeError("float64", 2, "forward", 5, 0.27, 1.0),
        ComputeError("float64", 2, "input gradient", 0, 0.0, 0.0),  # nothing was held out
    ]
    quality = assess_quality((), errors, COMPUTE, 0.0, 1)
    assert (quality.held_out_error, quality.held_out_of) == (0.27, "passes in float64 with 2 busy ranks")
    assert assess_quality((), errors[:2], COMPUTE, 0.0, 1).held_out_error == pytest.approx(0.25)


@pytest.mark.parametrize(("noise", "load", "problems"), [(0.3, 4.0, 0), (0.31, 4.0, 1), (0.0, 4.1, 1), (1.0, 9.0, 2)])
def test_noise_and_load_have_limits(noise: float, load: float, problems: int) -> None:
    compute = [entry.model_copy(update={"noise": noise}) for entry in COMPUTE]
    quality = assess_quality((), [], compute, load, 4)
    assert len(quality.problems) == problems
    assert quality.summary.startswith("doubtful: " if problems else "good: ")
