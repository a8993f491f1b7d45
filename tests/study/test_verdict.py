from __future__ import annotations

import pytest

from hybridnn.study.figures import TimeShares, judge

LARGE, SMALL = 1e9, 1e6


@pytest.mark.parametrize(
    ("shares", "flops", "limit", "text"),
    [
        (TimeShares(0.45, 0.1, 0.05), LARGE, "communication", "communication: 45% of the step"),
        (TimeShares(0.45), LARGE, "communication", "communication and waiting: 45% of the step"),
        (TimeShares(0.1, 0.4, 0.1), LARGE, "waiting", "bubble and waiting: 40% of the step"),
        (TimeShares(0.1, 0.2, 0.5), LARGE, "overhead", "too small: overhead, 50% of the step"),
        (TimeShares(0.2, 0.2, 0.2), LARGE, "computing", "computing"),
        (TimeShares(0.0), LARGE, "computing", "computing"),
        (TimeShares(0.24), LARGE, "computing", "computing"),
        (TimeShares(0.25), LARGE, "communication", "communication and waiting: 25% of the step"),
        (TimeShares(0.0), SMALL, "overhead", "too small: overhead, 1 MFlop per rank and step"),
        (TimeShares(0.6), SMALL, "communication", "communication and waiting: 60% of the step"),
    ],
)
def test_greatest_costly_share_limits_a_run(shares: TimeShares, flops: float, limit: str, text: str) -> None:
    verdict = judge(shares, flops)
    assert (verdict.limit, verdict.text) == (limit, text)
