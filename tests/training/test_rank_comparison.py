"""Different settings or data on the ranks are refused on all of them, with names, ranks and values."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

from hybridnn import MLP, SGD, Adam, DeviceOptions, ProcessGrid, Trainer
from hybridnn.comm import agreement
from hybridnn.comm.agreement import unequal_values
from hybridnn.data import (
    ArrayRows,
    Dataset,
    Rows,
    Standardizer,
    SubsetRows,
    SyntheticRows,
    SyntheticSpec,
    load_dataset,
    split,
)
from hybridnn.errors import DataError, GridError, HybridnnError, SettingError
from hybridnn.nn.learning_rates import Step, WarmupLinear
from hybridnn.runs.data import place_data
from hybridnn.training import rank_comparison
from hybridnn.training.rank_comparison import array_facts, describe_value, row_details, rows_facts
from reference.ranks import allgather_objects, on_nodes

SAMPLES = 1000  # of which not all are looked at
X = np.random.default_rng(0).normal(size=(SAMPLES, 4)).astype(np.float32)
Y = np.arange(SAMPLES) % 3
NUMBERS = 2.0 * np.eye(3)[Y]  # as targets of a regression
UNSEEN = 9
"""A sample between those whose inputs are compared, such as 0 and 15."""

RANKS = 3
LAST = "rank 2 has {}, ranks 0, 1 have {}"


class Fading:
    """A schedule whose ``repr`` is an address."""

    def __init__(self, other_from: int | None = None) -> None:
        self._other_from, self.address = other_from, repr(object())

    def multiplier(self, update: int, per_epoch: int, updates: int) -> float:
        """Half the rate every update, and from some update on the whole."""
        return 1.0 if self._other_from is not None and update >= self._other_from else 0.5**update


class OwnDescent(SGD):
    """An optimizer that a script brings along."""


def trainer_on(comm: MPI.Intracomm, optimizer: Any = None, model: Any = None, **options: Any) -> Trainer:
    return Trainer(model or MLP([4, 6, 3]), optimizer, grid=ProcessGrid(comm), **({"batch_size": 500} | options))


def changed(array: Any, place: Any, value: float) -> Any:
    other = array.copy()
    other[place] = value
    return other


def refusal(comm: MPI.Intracomm, error: type[HybridnnError], action: Callable[[], object]) -> str:
    """Return the message of an error that is the same on all ranks."""
    with pytest.raises(error) as caught:
        action()
    assert caught.value.exit_code == 2
    messages = allgather_objects(comm, str(caught.value))
    assert len(set(messages)) == 1, messages
    assert "\n" not in messages[0]
    return messages[0]


CONSTRUCTED: list[tuple[str, str, str, dict[str, Any], dict[str, Any]]] = [
    # setting, value on the last rank, value on the others, and what makes them
    ("optimizer.lr", "0.1", "0.01", {"optimizer": SGD(lr=0.1)}, {"optimizer": SGD(lr=0.01)}),
    ("optimizer.betas", "[0.8, 0.999]", "[0.9, 0.999]", {"optimizer": Adam(betas=(0.8, 0.999))}, {"optimizer": Adam()}),
    ("optimizer", "Adam", "SGD", {"optimizer": Adam()}, {}),
    ("optimizer", "OwnDescent", "SGD", {"optimizer": OwnDescent()}, {}),
    ("schedule.milestones", "[2, 5]", "[2]", {"schedule": Step((2, 5))}, {"schedule": Step((2,))}),
    ("schedule.warmup_epochs", "2", "1", {"schedule": WarmupLinear(2)}, {"schedule": WarmupLinear()}),
    ("model.sizes", "[4, 7, 3]", "[4, 6, 3]", {"model": MLP([4, 7, 3])}, {}),
    ("training.batch_size", "0", "500", {"batch_size": 0}, {}),
    ("training.dtype", "float64", "float32", {"dtype": np.float64}, {}),
    ("training.dtype", "'decimal'", "float32", {"dtype": "decimal"}, {}),
    ("training.clip_norm", "1", "none", {"clip_norm": 1.0}, {}),
    ("training.shuffle", "false", "true", {"shuffle": False}, {}),
    ("parallel.overlap", "true", "'auto'", {"overlap": True}, {}),
    ("parallel.method", "'gpipe'", "'1f1b'", {"method": "gpipe"}, {}),
    ("data.distribution", "'scatter'", "'local'", {"distribution": "scatter"}, {}),
    ("device.name", "'cpu'", "'auto'", {"device": "cpu"}, {}),
    ("device.tf32", "true", "false", {"device": DeviceOptions(tf32=True)}, {"device": "auto"}),
    ("initial_weights", "true", "false", {"initial_weights": {}}, {}),
]


@pytest.mark.in_process(ranks=[RANKS])
@pytest.mark.timeout(600)
def test_trainers_that_differ_are_refused_when_they_are_made(comm: MPI.Intracomm) -> None:
    is_last = comm.rank == comm.size - 1
    for setting, last, others, ours, theirs in CONSTRUCTED:
        message = refusal(
            comm, SettingError, lambda ours=ours, theirs=theirs: trainer_on(comm, **(ours if is_last else theirs))
        )
        assert message.startswith(f"{setting}: {LAST.format(last, others)}"), message
    message = refusal(comm, SettingError, lambda: trainer_on(comm, seed=comm.rank, log_every=1 + comm.rank % 2))
    assert message == (
        "training.seed: rank 0 has 0, rank 1 has 1, rank 2 has 2; output.log_every: rank 1 has 2, ranks 0, 2 have 1; "
        "it must be the same on every rank"
    )
    for axes in ({"model": 3}, {"message_limit": 1 << 20}, {"stages": [(1, 1), (2, 1)]}):
        message = refusal(comm, GridError, lambda axes=axes: ProcessGrid(comm, **(axes if is_last else {})))
        assert re.match(rf"process grid: {next(iter(axes))}: rank 2 has .*, ranks 0, 1 have", message), message
    weights = trainer_on(comm).weights()
    if is_last:
        weights["layers.1.bias"][-1] = 0.25
    message = refusal(comm, DataError, lambda: trainer_on(comm, initial_weights=weights))
    assert message.startswith("initial weights: layers.1.bias: rank 2 has shape (3,) with digest")


@pytest.mark.mpi(ranks=[RANKS])
@pytest.mark.timeout(600)
def test_ranks_with_other_software_are_refused(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    is_last = comm.rank == comm.size - 1
    with monkeypatch.context() as patch:  # as if this rank ran the package in another folder, with other files
        if is_last:
            patch.setattr(rank_comparison, "PACKAGE", Path("/elsewhere/hybridnn"))
            patch.setattr(rank_comparison, "source_digest", lambda: "0123456789ab")
        message = refusal(comm, SettingError, lambda: trainer_on(comm))
        assert re.match(r"hybridnn: rank 2 has \S+ with source files 0123456789ab, ranks 0, 1 have \S+ with", message)
        patch.undo()
        patch.setattr(np, "__version__", "1.0" if is_last else "2.0")
        assert refusal(comm, SettingError, lambda: trainer_on(comm)).startswith(f"numpy: {LAST.format('1.0', '2.0')}")


@pytest.mark.in_process(ranks=[RANKS])
@pytest.mark.timeout(600)
def test_what_differs_later_is_refused_before_anything_changes(comm: MPI.Intracomm) -> None:
    is_last = comm.rank == comm.size - 1
    trainer = trainer_on(comm, SGD(lr=0.01))
    before = trainer.weights()

    def fit(x: Any = X, y: Any = Y, trainer: Trainer = trainer, **how: Any) -> Callable[[], object]:
        return lambda: trainer.fit(x, y, **({"epochs": 1} | how))

    ours = {  # what the last rank does while the others call fit(): the message that comes of it
        "training.epochs: " + LAST.format(2, 1): fit(epochs=2),
        "training.epochs: " + LAST.format(0, 1): fit(epochs=0),
        "validation data: samples: " + LAST.format("some", "none"): fit(validation=(X, Y)),
        "training data: number of samples: " + LAST.format(999, 1000): fit(X[:999], Y[:999]),
        "training data: target of a sample: " + LAST.format("3 numbers", "a label"): fit(X, NUMBERS),
        "training data: inputs of sample 0: rank 2 has [1.5, ": fit(changed(X, (0, 0), 1.5)),
        "training data: inputs of sample 999: rank 2 has [": fit(changed(X, (999, 3), 1.5)),
        "training data: inputs of sample 0: rank 2 has [": fit(X[::-1]),
        f"training data: target of sample {UNSEEN}: " + LAST.format(2, 0): fit(X, changed(Y, UNSEEN, 2)),
    }
    for start, action in ours.items():
        message = refusal(comm, HybridnnError, action if is_last else fit())
        assert message.startswith(start), message
    numbers = fit(X, changed(NUMBERS, UNSEEN, 0.5) if is_last else NUMBERS)
    assert f"target of sample {UNSEEN}: rank 2 has [0.5 0.5 0.5]" in refusal(comm, DataError, numbers)
    test = fit(validation=(X, changed(Y, 5, 0) if is_last else Y))
    assert refusal(comm, DataError, test).startswith(f"validation data: target of sample 5: {LAST.format(0, 2)}")
    evaluated = refusal(comm, DataError, lambda: trainer.evaluate(X, changed(Y, 5, 0) if is_last else Y))
    assert evaluated.startswith(f"data: target of sample 5: {LAST.format(0, 2)}")
    predicted = refusal(comm, DataError, lambda: trainer.predict(changed(X, 0, 0) if is_last else X))
    assert predicted.startswith("predict: samples: rank 2 has shape (1000, 4) with digest")
    other = {name: changed(array, 0, 7) if is_last else array for name, array in before.items()}
    assert "layers.0.bias: rank 2 has" in refusal(comm, DataError, lambda: trainer.load_weights(other))
    generated = SyntheticRows(SyntheticSpec(test_samples=2 if is_last else 1), 0, 100)
    message = refusal(comm, DataError, lambda: trainer_on(comm, model=MLP([16, 4, 2])).fit(generated, epochs=1))
    assert re.match(r"training data: generated data: rank 2 has SyntheticSpec\(.*test_samples=2,.*\)", message), message
    digits = load_dataset("digits").train
    chosen = SubsetRows(digits, np.arange(100) + is_last)
    message = refusal(comm, DataError, lambda: trainer_on(comm, model=MLP([64, 10])).fit(chosen, epochs=1))
    assert message.startswith("training data: inputs of sample 0: rank 2 has [0, 0, ..., 0, 0] with digest"), message
    assert all(np.array_equal(array, before[name]) for name, array in trainer.weights().items())

    faded = trainer_on(comm, SGD(lr=1), schedule=Fading(3 if is_last else None))
    assert fit(trainer=faded)() is faded.history  # two updates, alike so far
    message = refusal(comm, SettingError, fit(trainer=faded))
    assert message.startswith(f"learning rate of update 4: {LAST.format(1.0, 0.125)};"), message
    assert faded.step == 2


@pytest.mark.in_process(ranks=[RANKS])
@pytest.mark.timeout(600)
def test_ranks_that_train_the_same_pass_however_it_is_written(comm: MPI.Intracomm) -> None:
    is_last = comm.rank == comm.size - 1
    signed = changed(X, (0, slice(None)), -0.0 if is_last else 0.0)
    with_gaps = np.repeat(signed, 2, axis=1)[:, ::2].astype(np.float64)
    plain = {"batch_size": 500, "dtype": "float32", "device": "auto", "schedule": Fading()}
    otherwise = {"batch_size": np.int32(500), "dtype": np.float32, "device": DeviceOptions(), "schedule": Fading()}
    rate = np.float64(0.25) if is_last else 0.25
    trainer = trainer_on(comm, OwnDescent(lr=rate), **(otherwise if is_last else plain))
    labels = Y.astype(np.uint8) if is_last else Y
    trainer.fit(with_gaps if is_last else signed, labels, epochs=2)
    replayed = Trainer(
        MLP([4, 6, 3]), SGD(lr=0.25), grid=ProcessGrid(comm.Split(comm.rank)), schedule=Fading(), batch_size=500
    )
    replayed.fit(changed(X, (0, slice(None)), 0.0), Y, epochs=2)
    for name, array in replayed.weights().items():
        np.testing.assert_allclose(trainer.weights()[name], array, rtol=1e-4, atol=1e-6)
    loss = trainer.evaluate(with_gaps if is_last else signed, labels).loss
    assert loss == pytest.approx(replayed.evaluate(signed, Y).loss, rel=1e-4)
    # Ranks that receive what rank 0 sends may hold anything.
    sent = trainer_on(comm, distribution="scatter")
    sent.fit(*((X, Y) if comm.rank == 0 else (None, None) if is_last else (X[:5], Y[:5])), epochs=1)


@pytest.mark.mpi(ranks=[RANKS])
@pytest.mark.timeout(600)
def test_nodes_that_read_other_files_are_refused_and_standardize_alike(comm, monkeypatch) -> None:
    grid = ProcessGrid(on_nodes(comm, [0, 0, 1]))
    options: dict[str, Any] = {"distribution": "local", "standardize": True, "test_fraction": 0.25, "seed": 3}
    options |= {"generated": False, "dtype": "float64"}

    def load(x: Any) -> Callable[[], Dataset]:
        return lambda: Dataset("a file", "classification", x.shape[1], 3, ArrayRows(x, Y[: len(x)]), None)

    for other, start in (
        (changed(X, (UNSEEN, 1), 3.0), "data: digest of all samples: rank 2 has "),
        (X[:-100], "data: training samples: " + LAST.format(675, 750)),
        (X[:, :3], "data: features: " + LAST.format(3, 4)),
    ):
        read = load(other if comm.rank == 2 else X)
        message = refusal(comm, DataError, lambda read=read: place_data(read, grid, **options))
        assert message.startswith(start), message

    fit = Standardizer.fit

    def summed_in_another_order(rows: Any) -> Standardizer:
        fitted = fit(rows)
        return fitted if comm.rank < 2 else replace(fitted, x_mean=np.nextafter(fitted.x_mean, 9.0))

    monkeypatch.setattr(Standardizer, "fit", summed_in_another_order)
    placed = place_data(load(X), grid, **options)
    held = np.empty((placed.train_samples, 4))
    placed.train.take(np.arange(placed.train_samples), held, None)
    rows, _ = split(ArrayRows(X, Y), 0.25, 3)
    raw = np.empty((rows.samples, 4))
    rows.take(np.arange(rows.samples), raw, None)
    expected = fit(rows)
    np.testing.assert_array_equal(held, (raw - expected.x_mean) / expected.x_scale)
    placed.memory.free()


def test_a_rank_with_other_settings_on_the_command_line_ends_the_job_with_one_line(run_mpi, tmp_path) -> None:
    program = (
        "import sys; from mpi4py import MPI; from hybridnn.cli.main import main; rank = MPI.COMM_WORLD.rank\n"
        "sys.argv[1:] = ['train', f'c{rank}.toml']; main()"
    )
    for rank in range(2):
        text = f"[optimizer]\nlr = 0.{1 + rank}\n[parallel]\nmodel = {1 + rank}\nauto = {'true' if rank else 'false'}\n"
        (tmp_path / f"c{rank}.toml").write_text(text)
    result = run_mpi(2, [sys.executable, "-c", program], cwd=tmp_path, timeout=300)
    assert result.returncode == 2, result.stderr
    assert [line for line in result.stderr.splitlines() if line.startswith("Error")] == [
        "Error: optimizer.lr: rank 0 has 0.1, rank 1 has 0.2; parallel.model: rank 0 has 1, rank 1 has 2; "
        "parallel.auto: rank 0 has false, rank 1 has true; it must be the same on every rank"
    ]
    assert not (tmp_path / "runs").exists()


INPUTS = np.random.default_rng(2).normal(size=(1000, 5)).astype(np.float32)
LABELS = np.arange(1000) % 4
SKIPPED_SAMPLE = 9  # 999 / 63 is 15.9: samples 0 and 15 are in the digest, and none between them


def facts(x: Any, y: Any = LABELS, dtype: str = "float32", *, complete: bool = False) -> dict[str, str]:
    return rows_facts(ArrayRows(np.asarray(x), np.asarray(y)), np.dtype(dtype), complete=complete)


@pytest.mark.parametrize("complete", [False, True])
def test_samples_of_equal_values_have_equal_digests(complete: bool) -> None:
    zero = changed(INPUTS, 0, 0.0)
    expected = facts(zero, complete=complete)
    with_gaps = np.repeat(zero, 2, axis=1)[:, ::2]
    for other in (changed(INPUTS, 0, -0.0), zero.astype(np.float64), with_gaps, np.asfortranarray(zero)):
        assert facts(other, complete=complete) == expected
    assert facts(zero, LABELS.astype(np.uint8), complete=complete) == expected
    rows = SubsetRows(ArrayRows(np.vstack([INPUTS, zero]), np.concatenate([LABELS, LABELS])), np.arange(1000, 2000))
    seen = rows_facts(rows, np.dtype("float32"), complete=complete)
    assert seen | {"digest of targets": expected["digest of targets"]} == expected


def test_differences_below_float32_precision_count_in_float64_only() -> None:
    tiny = INPUTS.astype(np.float64) * (1 + 1e-12)
    assert facts(tiny) == facts(INPUTS)
    assert facts(tiny, dtype="float64") != facts(INPUTS, dtype="float64")


def test_digests_contain_all_targets_evenly_spaced_inputs_with_both_ends_and_all_on_request() -> None:
    assert all(facts(changed(INPUTS, (sample, 4), 3.0)) != facts(INPUTS) for sample in (0, 15, 999))
    skipped = changed(INPUTS, (SKIPPED_SAMPLE, 4), 3.0)
    assert facts(skipped) == facts(INPUTS)
    assert facts(skipped, complete=True) != facts(INPUTS, complete=True)
    assert facts(INPUTS, changed(LABELS, SKIPPED_SAMPLE, 3)) != facts(INPUTS)
    assert facts(INPUTS[:, :4]) != facts(INPUTS)
    assert facts(INPUTS[:100]) != facts(INPUTS[:101])
    few = [rows_facts(ArrayRows(x[:64], LABELS[:64]), np.dtype("float32"), complete=False) for x in (INPUTS, skipped)]
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
    first, second = (rows_facts(rows, np.dtype("float32"), complete=False) for _ in range(2))
    assert first == second
    assert row_details(rows, np.dtype("float32"))["inputs of sample 299"].startswith("[nan, nan] with digest ")


def test_digests_of_weights_have_the_precision_of_the_training() -> None:
    weights = {"layers.0.weight": INPUTS, "layers.0.bias": INPUTS[0]}
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    assert array_facts(weights, "float32") == array_facts(wide, "float32")
    other = weights | {"layers.0.bias": changed(INPUTS[0], 2, 1.0)}
    differing = array_facts(weights, "float32").items() - array_facts(other, "float32").items()
    assert [name for name, _ in differing] == ["layers.0.bias"]


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
    monkeypatch.setattr(agreement, "same_text_on_all", lambda group, text: False)
    monkeypatch.setattr(agreement, "gather_texts", lambda group, text: [json.dumps({"a": text}) for text in values])
    group: Any = SimpleNamespace(size=10, members=range(10))
    (found,) = unequal_values(group, dict)
    assert found.text == "a: rank 5 has 7, rank 6 has 8, rank 7 has 9, ranks 0-2, 8 have 5, and others have 2 more"
    values[:] = ["5"] * 9 + ["x" * 200]
    (found,) = unequal_values(group, dict)
    assert found.text == f"a: rank 9 has {'x' * 119}…, ranks 0-8 have 5"
