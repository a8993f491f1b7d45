"""Digests of samples: equal for equal samples in any array layout, and different for others."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn import SGD
from hybridnn.comm import comparison
from hybridnn.comm.comparison import unequal_values
from hybridnn.data import ArrayRows, Rows, SubsetRows, SyntheticRows, SyntheticSpec
from hybridnn.training.rank_comparison import array_facts, describe_value, row_details, rows_facts

X = np.random.default_rng(2).normal(size=(1000, 5)).astype(np.float32)
Y = np.arange(1000) % 4
SKIPPED_SAMPLE = 9  # 999 / 63 is 15.9: samples 0 and 15 are in the digest, and none between them


def facts(x: Any, y: Any = Y, dtype: str = "float32", *, complete: bool = False) -> dict[str, str]:
    return rows_facts(ArrayRows(np.asarray(x), np.asarray(y)), np.dtype(dtype), complete=complete)


def changed(array: NDArray[Any], place: Any, value: float) -> NDArray[Any]:
    other = array.copy()
    other[place] = value
    return other


@pytest.mark.parametrize("complete", [False, True])
def test_samples_of_equal_values_have_equal_digests(complete: bool) -> None:
    zero = changed(X, 0, 0.0)
    expected = facts(zero, complete=complete)
    with_gaps = np.repeat(zero, 2, axis=1)[:, ::2]
    for other in (changed(X, 0, -0.0), zero.astype(np.float64), with_gaps, np.asfortranarray(zero)):
        assert facts(other, complete=complete) == expected
    assert facts(zero, Y.astype(np.uint8), complete=complete) == expected
    rows = SubsetRows(ArrayRows(np.vstack([X, zero]), np.concatenate([Y, Y])), np.arange(1000, 2000))
    seen = rows_facts(rows, np.dtype("float32"), complete=complete)
    assert {key: text for key, text in seen.items() if key != "digest of targets"} == {
        key: text for key, text in expected.items() if key != "digest of targets"
    }


def test_differences_below_float32_precision_count_in_float64_only() -> None:
    tiny = X.astype(np.float64) * (1 + 1e-12)
    assert facts(tiny) == facts(X)
    assert facts(tiny, dtype="float64") != facts(X, dtype="float64")


@pytest.mark.parametrize("sample", [0, 15, 999])
def test_digests_contain_evenly_spaced_rows_with_both_ends(sample: int) -> None:
    assert facts(changed(X, (sample, 4), 3.0)) != facts(X)


def test_digests_contain_all_targets_and_all_inputs_on_request() -> None:
    skipped = changed(X, (SKIPPED_SAMPLE, 4), 3.0)
    assert facts(skipped) == facts(X)
    assert facts(skipped, complete=True) != facts(X, complete=True)
    assert facts(X, changed(Y, SKIPPED_SAMPLE, 3)) != facts(X)
    assert facts(X[:, :4]) != facts(X)
    assert facts(X[:100]) != facts(X[:101])
    few = [rows_facts(ArrayRows(x[:64], Y[:64]), np.dtype("float32"), complete=False) for x in (X, skipped)]
    assert few[0] != few[1]  # of so few, all are in the digest


def test_generated_samples_are_described_without_generating_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SyntheticRows, "take", None)
    spec = SyntheticSpec()
    described_so = [
        rows_facts(SyntheticRows(one, start, start + 10), np.dtype("float32"), complete=True)
        for one, start in ((spec, 0), (spec, 0), (spec, 10), (SyntheticSpec(outputs=3), 0))
    ]
    assert described_so[0] == described_so[1]
    assert all(described_so[0] != other for other in described_so[2:])


class NotNumbers:
    """Rows of a script whose inputs are NaN."""

    samples, features, targets_shape = 300, 2, ()

    def take(self, indices: NDArray[np.int64], x: NDArray[Any] | None, y: NDArray[Any] | None) -> None:
        """Fill the inputs with NaN and the targets with zeros."""
        if x is not None:
            x[...] = np.nan
        if y is not None:
            y[...] = 0


def test_nan_inputs_of_a_script_equal_themselves() -> None:
    rows = cast(Rows, NotNumbers())
    assert rows_facts(rows, np.dtype("float32"), complete=False) == rows_facts(
        rows, np.dtype("float32"), complete=False
    )
    assert row_details(rows, np.dtype("float32"))["inputs of sample 299"].startswith("[nan, nan] with digest ")


def test_digests_of_weights_have_the_precision_of_the_training() -> None:
    weights = {"layers.0.weight": X, "layers.0.bias": X[0]}
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    assert array_facts(weights, "float32") == array_facts(wide, "float32")
    other = weights | {"layers.0.bias": changed(X[0], 2, 1.0)}
    differing = array_facts(other, "float32")
    assert [name for name, text in array_facts(weights, "float32").items() if text != differing[name]] == [
        "layers.0.bias"
    ]


def test_equal_values_of_any_type_have_equal_text() -> None:
    assert describe_value("a", 3) == describe_value("a", np.int64(3)) == describe_value("a", 3.0) == {"a": "3"}
    assert describe_value("a", 0.1) == describe_value("a", np.float64(0.1)) == {"a": "0.1"}
    assert describe_value("a", np.float32(0.1)) != describe_value("a", 0.1)
    assert describe_value("a", True) == describe_value("a", np.bool_(True)) == {"a": "true"}
    assert describe_value("a", [1, (2, None)]) == describe_value("a", (1, [2.0, None])) == {"a": "[1, [2, none]]"}
    assert describe_value("", {"b": {"c": float("inf")}}) == {"b.c": "inf"}
    assert describe_value("a", SGD())["a"] == "SGD"

    class Own:
        def __init__(self, kept: object) -> None:
            self.rate, self._hidden, self.kept = 0.5, id(self), kept

    assert (
        describe_value("a", Own(object()))
        == describe_value("a", Own(object()))
        == {"a": Own.__qualname__, "a.rate": "0.5"}
    )


def test_ranks_are_listed_from_the_rarest_value_to_the_most_common(monkeypatch: pytest.MonkeyPatch) -> None:
    values = ["5", "5", "5", "6", "6", "7", "8", "9", "5", "x" * 200]
    monkeypatch.setattr(comparison, "same_text_on_all", lambda group, text: False)
    monkeypatch.setattr(comparison, "gather_texts", lambda group, text: [json.dumps({"a": text}) for text in values])
    group: Any = SimpleNamespace(size=10, members=range(10))
    (found,) = unequal_values(group, dict)
    assert found.text == "a: rank 5 has 7, rank 6 has 8, rank 7 has 9, ranks 0-2, 8 have 5, and others have 2 more"
    values[:] = ["5"] * 9 + ["x" * 200]
    (found,) = unequal_values(group, dict)
    assert found.text == f"a: rank 9 has {'x' * 119}…, ranks 0-8 have 5"
