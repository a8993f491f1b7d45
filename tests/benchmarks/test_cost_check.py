"""Errors of predictions, with and without the drift of the machine, from made-up measurements."""

import pytest

from benchmarks.cost_check import Result, Speeds, cases, mean_speeds, signed_errors

REFERENCE = Speeds(1e-3, 2e-3, 1e-5)


def result(layout: str, kind: str, rounds: list[float], slowdowns: list[float]) -> Result:
    return Result("4-4-2", 8, layout, kind, 1.0, Speeds(0.5, 0.25, 0.25), "", rounds, slowdowns)


def test_a_host_that_becomes_slower_is_no_error_of_the_model() -> None:
    # Products take twice as long, copies and messages as long as before: a step with half a second of products, 1.5 s.
    slower = REFERENCE._replace(product=2e-3).slowdown(REFERENCE, Speeds(0.5, 0.25, 0.25))
    assert slower == pytest.approx(1.5)
    drifted = result("serial", "one rank", [1.0, 1.5, 1.5], [1.0, slower, slower])
    assert drifted.error == pytest.approx(-1 / 3)
    assert drifted.without_drift().error == pytest.approx(0)
    wrong = result("serial", "one rank", [1.5, 1.5, 1.5], [1.0, 1.0, 1.0])
    assert wrong.without_drift().error == wrong.error


def test_the_mean_of_speeds_is_by_kind() -> None:
    assert mean_speeds([Speeds(1, 2, 3), Speeds(3, 2, 5)]) == Speeds(2, 2, 4)


def test_errors_have_a_sign_by_network_and_by_kind() -> None:
    measured = (("serial", "one rank", 0.8), ("batch", "batch", 1.25), ("b", "batch", 1.0))
    found = signed_errors([result(layout, kind, [seconds], [1]) for layout, kind, seconds in measured])
    assert found["batch"] == pytest.approx((-0.1, 0.1))
    assert found["one rank"] == pytest.approx((0.25, 0.25))
    assert found["4-4-2, 8"] == found["all"] == pytest.approx((0.05 / 3, 0.15))


def test_every_layout_has_a_kind() -> None:
    kinds = {case.name: case.kind for case in cases()}
    assert kinds["serial"] == "one rank"
    assert kinds["batch, overlap"] == "batch"
    assert kinds["model, columns"] == "model"
    assert (kinds["1f1b"], kinds["pipedream"]) == ("exact pipeline", "asynchronous pipeline")
