"""Evaluations and predictions of runs against plain formulas, on one rank and on other grids than the run's."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

from hybridnn import ProcessGrid
from hybridnn.comm.agreement import broadcast_text
from hybridnn.data import Standardizer, load_dataset, split
from hybridnn.errors import DataError, HybridnnError, SettingError
from hybridnn.runs import inference
from hybridnn.runs.inference import Evaluation, Predictions, evaluate_run, predict_file
from hybridnn.runs.trained_run import open_run
from reference import network as net
from reference.trained_runs import FEATURES, NETWORK, REGRESSION, regression_file, train, weights_of, write_checkpoint


def evaluated(run: Path, source: str | Path | None = None, **choice: Any) -> Evaluation:
    return evaluate_run(open_run(run), ProcessGrid(), None if source is None else str(source), **choice)


@pytest.mark.parametrize(
    "data",
    [
        {"name": "digits"},
        {"name": "digits", "split_seed": 5},
        {"name": "synthetic"},
        {"file": "mine.npz"},
        {"file": "mine.npz", "standardize": False},
    ],
)
def test_figures_are_those_of_the_last_epoch(tmp_path, monkeypatch, data) -> None:
    monkeypatch.chdir(tmp_path)
    regression_file(tmp_path / "mine.npz")
    training = {"epochs": 2, "batch_size": 64, "dtype": "float64", "clip_norm": 1e-3}
    last = train(tmp_path / "run", data=data, model={"hidden": [12]}, training=training)
    found = evaluated(tmp_path / "run").metrics
    expected = last.validation_loss, last.validation_accuracy, last.validation_r2
    assert (found.loss, found.accuracy, found.r2) == expected


def test_split_seed_holds_the_test_samples_while_the_seed_of_the_training_varies(tmp_path: Path) -> None:
    found = {}
    for name, seed, held in (("a", 0, 7), ("b", 1, 7), ("c", 7, None), ("d", 1, None)):
        data = {"name": "digits", "standardize": True} | ({} if held is None else {"split_seed": held})
        options: dict[str, Any] = {"data": data, "training": {"epochs": 1, "seed": seed}, "model": {"hidden": [4]}}
        found[name] = train(tmp_path / name, **options).validation_loss
        with np.load(tmp_path / name / "standardization.npz") as file:
            found[name + " x"] = file["x_mean"].tobytes()
    assert found["a x"] == found["b x"] == found["c x"] != found["d x"]
    assert len({found["a"], found["b"], found["c"]}) == 3, "other initial weights and orders"
    train_rows, _ = split(load_dataset("digits").train, 0.2, 7)
    assert Standardizer.fit(train_rows).x_mean.tobytes() == found["a x"]


def test_other_data_are_standardized_as_the_run_was(regression: Path, tmp_path: Path) -> None:
    generator = np.random.default_rng(77)
    x, y = generator.normal(size=(23, FEATURES)) * 30 + 11, generator.normal(size=(23, 3)) * 100
    with np.load(regression / "standardization.npz") as file:
        inputs, targets = (x - file["x_mean"]) / file["x_scale"], (y - file["y_mean"]) / file["y_scale"]
    np.savez(tmp_path / "whole.npz", x_train=x, y_train=y)
    np.savez(tmp_path / "parts.npz", x_train=x[:9], y_train=y[:9], x_test=x[9:], y_test=y[9:])
    for name, choice, part, rows in (
        ("whole.npz", {}, "all", slice(0, None)),
        ("parts.npz", {}, "test", slice(9, None)),
        ("parts.npz", {"part": "test"}, "test", slice(9, None)),
        ("parts.npz", {"part": "train"}, "train", slice(0, 9)),
    ):
        found = evaluated(regression, tmp_path / name, **choice)
        outputs, _ = net.forward(NETWORK, weights_of(regression), inputs[rows])
        assert (found.part, found.data, found.metrics.samples) == (part, str(tmp_path / name), len(outputs))
        assert found.metrics.loss == pytest.approx(net.loss(NETWORK, outputs, targets[rows]), rel=1e-12)
        assert found.metrics.r2 == pytest.approx(net.r2(outputs, targets[rows]), rel=1e-10)


def test_csv_takes_its_target_columns_from_the_run_or_from_the_call(tmp_path: Path) -> None:
    def table(name: str, header: str) -> Path:
        generator = np.random.default_rng(3)
        lines = [",".join(map(str, row)) for row in generator.normal(size=(20, 3)).tolist()]
        (tmp_path / name).write_text("\n".join([header, *lines]) + "\n")
        return tmp_path / name

    data = {"file": str(table("mine.csv", "a,b,c")), "targets": ["c"]}
    train(tmp_path / "run", data=data, model={"hidden": [4]}, training={"epochs": 1, "batch_size": 5})
    expected = evaluated(tmp_path / "run", table("same.csv", "a,b,c")).metrics
    assert expected.samples == 20
    assert predicted(tmp_path / "run", tmp_path / "same.csv").columns == ("c",)
    assert evaluated(tmp_path / "run", table("other.csv", "a,b,z"), targets=("z",)).metrics == expected
    with pytest.raises(DataError, match=r"no column 'c', which holds targets; it has a, b, z"):
        evaluated(tmp_path / "run", tmp_path / "other.csv")
    (tmp_path / "whole.csv").write_text("a,b,c\n1,2,3\n4,5,6\n")  # integers, which are numbers in this run
    assert evaluated(tmp_path / "run", tmp_path / "whole.csv").metrics.accuracy is None


def test_data_of_another_kind_are_refused(regression: Path, digits: Path, tmp_path: Path) -> None:
    good = {"x_train": np.ones((4, FEATURES)), "y_train": np.ones((4, 3))}
    other = {"x_train": np.ones((20, 64)), "y_train": np.arange(20) % 11}
    for run, arrays, message in (
        (regression, good | {"x_train": np.ones((4, 6))}, "other.npz has 6 features; .*run was trained on 5"),
        (regression, good | {"y_train": np.ones((4, 2))}, "other.npz has 2 targets; .*run was trained on 3"),
        (regression, good | {"x_train": np.full((4, FEATURES), np.nan)}, "x_train is nan in row 0, column 0"),
        (digits, other, r"has 11 classes; .* was trained on 10"),
    ):
        np.savez(tmp_path / "other.npz", **arrays)  # type: ignore[arg-type]  # arrays by name
        with pytest.raises(DataError, match=message):
            evaluated(run, tmp_path / "other.npz")


def test_wrong_choices_are_refused(regression: Path) -> None:
    with pytest.raises(SettingError, match="--targets = "):
        evaluated(regression, regression.parent / "mine.npz", targets=("a",))
    with pytest.raises(SettingError, match=r"data\.name = ''"):
        evaluated(regression, "")


def predicted(run: Path, file: Path) -> Predictions:
    found = predict_file(open_run(run), ProcessGrid(), file)
    assert found is not None
    return found


def outputs_of(run: Path, network: net.Network, x: NDArray[Any]) -> NDArray[Any]:
    with np.load(run / "standardization.npz") as file:
        return net.forward(network, weights_of(run), (x - file["x_mean"]) / file["x_scale"])[0]


def test_numbers_are_in_the_units_of_the_targets(regression, tmp_path, monkeypatch) -> None:
    x = np.random.default_rng(4).normal(size=(37, FEATURES)) * 20
    np.savez(tmp_path / "x.npz", x=x, unused=np.zeros(2))
    with np.load(regression / "standardization.npz") as file:
        expected = outputs_of(regression, NETWORK, x) * file["y_scale"] + file["y_mean"]
    for block_elements in (inference.BLOCK_ELEMENTS, 1):  # at once, and in portions
        monkeypatch.setattr(inference, "BLOCK_ELEMENTS", block_elements)
        found = predicted(regression, tmp_path / "x.npz")
        np.testing.assert_allclose(found.values, expected, rtol=1e-12)
        assert found.classes is None
        assert found.columns == ("target_0", "target_1", "target_2")


@pytest.mark.filterwarnings("error")
def test_a_prediction_that_overflows_is_refused(regression: Path, tmp_path: Path) -> None:
    x = np.ones((3, FEATURES))
    x[1:] = 1.7e308
    np.savez(tmp_path / "x.npz", x=x)
    with pytest.raises(
        DataError, match=r"x\.npz: the prediction overflows \(2 rows, first row 2\): its inputs are far"
    ):
        predicted(regression, tmp_path / "x.npz")


def test_float32_keeps_small_changes_about_a_large_mean(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    x = generator.normal(size=(60, 2)) + 1e6
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=x[:, :1] + 1e7)
    train(tmp_path / "run", data={"file": str(tmp_path / "mine.npz")}, model={"hidden": [4]}, training={"epochs": 1})
    np.savez(tmp_path / "x.npz", x[:9])
    found = predicted(tmp_path / "run", tmp_path / "x.npz").values
    with np.load(tmp_path / "run" / "standardization.npz") as file:
        expected = outputs_of(tmp_path / "run", net.Network((2, 4, 1)), x[:9]) * file["y_scale"] + file["y_mean"]
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)  # a float32 of this size is right to 0.5


def test_classes_and_probabilities(digits: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(4).integers(17, size=(21, 64))
    np.savez(tmp_path / "x.npz", x=x)
    found = predicted(digits, tmp_path / "x.npz")
    outputs = outputs_of(digits, net.Network((64, 12, 10)), x)
    np.testing.assert_allclose(found.values, [np.exp(net.log_softmax(row)) for row in outputs], rtol=1e-11)
    assert found.classes.tolist() == [int(np.argmax(row)) for row in outputs]
    assert found.columns[3] == "probability_3"


@pytest.mark.parametrize(("sign", "other"), [(".", ","), (",", ".")])
def test_a_file_with_the_other_decimal_sign_is_refused(sign: str, other: str, tmp_path: Path) -> None:
    table = np.random.default_rng(3).normal(size=(20, 3))
    text = "a;b;y\n" + "\n".join(";".join(f"{number:.4f}" for number in row) for row in table)
    for name, of_file in (("mine.csv", sign), ("other.csv", other)):
        (tmp_path / name).write_text(text.replace(".", of_file))
    data = {"file": str(tmp_path / "mine.csv"), "targets": ["y"], "csv": {"decimal": sign}}
    train(tmp_path / "run", data=data, model={"hidden": [4]}, training={"epochs": 1, "batch_size": 5})
    message = rf"other\.csv: a: no cell is a number \('\S*\{other}\S*' in row 1"
    with pytest.raises(DataError, match=message):
        predicted(tmp_path / "run", tmp_path / "other.csv")
    with pytest.raises(DataError, match=message):
        evaluate_run(open_run(tmp_path / "run"), ProcessGrid(), str(tmp_path / "other.csv"))
    (tmp_path / "text.csv").write_text(f"a;b\n1;x\n2;1{other}5\n")
    with pytest.raises(DataError, match=r"text\.csv: b: no cell is a number \('x' in row 1, '1.5' in row 2\)"):
        predicted(tmp_path / "run", tmp_path / "text.csv")


def test_without_standardization_numbers_are_taken_as_they_are(tmp_path: Path) -> None:
    x = np.random.default_rng(3).normal(size=(20, 2))
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=x.sum(axis=1))
    settings = {"model": {"hidden": [4]}, "training": {"epochs": 1, "dtype": "float64"}}
    train(tmp_path / "run", data={"file": str(tmp_path / "mine.npz"), "standardize": False}, **settings)
    np.savez(tmp_path / "x.npz", x)
    expected, _ = net.forward(net.Network((2, 4, 1)), weights_of(tmp_path / "run"), x)
    np.testing.assert_allclose(predicted(tmp_path / "run", tmp_path / "x.npz").values, expected, rtol=1e-12)


def test_files_hold_every_digit() -> None:
    values = np.array([[0.1 + 0.2, 1e-300], [1 / 3, 2.0]])
    for columns, classes, arrays in (
        (("a, b", "c"), None, {"predictions": values.tolist()}),
        (("probability_0", "probability_1"), [0, 1], {"classes": [0, 1], "probabilities": values.tolist()}),
    ):
        found = Predictions(columns, values, None if classes is None else np.array(classes))
        header, *rows = csv.reader(io.StringIO(found.to_csv().decode()))
        first = 0 if classes is None else 1
        assert header == [*["class"][:first], *columns]
        assert [[float(cell) for cell in row[first:]] for row in rows] == values.tolist()
        assert [row[:first] for row in rows] == [[str(one)][:first] for one in classes or (0, 1)]
        with np.load(io.BytesIO(found.to_npz())) as file:
            assert {name: file[name].tolist() for name in file} == arrays


GRIDS = {3: [(1, 3, 1), (3, 1, 1), (1, 1, 3)], 4: [(2, 2, 1), (1, 2, 2), (2, 1, 2)]}


def make_grid(comm: MPI.Intracomm, shape: tuple[int, int, int]) -> ProcessGrid:
    return ProcessGrid(comm, pipeline=shape[0], batch=shape[1], model=shape[2])


def shared_folder(comm: MPI.Intracomm, folder: Path) -> Path:
    return Path(broadcast_text(ProcessGrid(comm).world, str(folder), 0))


def own_run(comm: MPI.Intracomm, tmp_path: Path, shape: tuple[int, int, int], distribution: str = "local") -> Path:
    """Return the folder of a run, the same on every rank, trained on a grid."""
    folder = shared_folder(comm, tmp_path)
    if comm.rank == 0:
        regression_file(folder / "mine.npz")
    data = {"file": str(folder / "mine.npz"), "distribution": distribution}
    parallel = dict(zip(("pipeline", "batch", "model"), shape, strict=True))
    last = train(folder / "run", data=data, parallel=parallel, **REGRESSION)
    (tmp_path / "expected").write_text(f"{last.validation_loss!r} {last.validation_r2!r}")
    return folder / "run"


@pytest.mark.in_process(ranks=[3, 4])
@pytest.mark.parametrize("place", [0, 1])
def test_figures_of_the_run_on_its_own_and_other_grids(comm: MPI.Intracomm, tmp_path: Path, place: int) -> None:
    shapes = GRIDS[comm.size]
    distribution = "scatter" if shapes[place][0] == 1 else "local"
    run = own_run(comm, tmp_path, shapes[place], distribution)
    loss, r2 = map(float, (tmp_path / "expected").read_text().split())
    for shape in shapes:
        grid = make_grid(comm, shape)
        found = evaluate_run(open_run(run, None, grid.world), grid)
        assert (found.part, found.metrics.samples) == ("test", 11)
        if shape == shapes[place]:
            assert (found.metrics.loss, found.metrics.r2) == (loss, r2)
        assert found.metrics.loss == pytest.approx(loss, rel=1e-12)
        assert found.metrics.r2 == pytest.approx(r2, rel=1e-10)


@pytest.mark.in_process(ranks=[3, 4])
def test_predictions_keep_their_order_on_every_grid(comm: MPI.Intracomm, tmp_path: Path) -> None:
    run = own_run(comm, tmp_path, GRIDS[comm.size][0])
    x = np.random.default_rng(8).normal(size=(37, FEATURES)) * 20
    if comm.rank == 0:
        np.savez(run / "x.npz", x)
    with np.load(run / "standardization.npz") as file:
        expected = outputs_of(run, NETWORK, x) * file["y_scale"] + file["y_mean"]
    for shape in GRIDS[comm.size]:
        grid = make_grid(comm, shape)
        found = predict_file(open_run(run, None, grid.world), grid, run / "x.npz")
        assert (found is None) == (grid.rank > 0)
        if found is not None:
            np.testing.assert_allclose(found.values, expected, rtol=1e-11)


@pytest.mark.in_process(ranks=[3])
def test_checkpoints_are_chosen_alike_on_every_rank(comm: MPI.Intracomm, tmp_path: Path) -> None:
    run = own_run(comm, tmp_path, (1, 3, 1))
    arrays = weights_of(run)
    comm.Barrier()
    if comm.rank == 0:
        (run / "weights.npz").unlink()
        write_checkpoint(run, 4, arrays)
        (write_checkpoint(run, 6, arrays) / "layers.0.bias.npy").write_bytes(b"cut")
    comm.Barrier()
    world = ProcessGrid(comm).world
    found = open_run(run, None, world)
    assert (found.source.step, len(found.source.damaged)) == (4, 1)
    np.testing.assert_array_equal(found.weights["layers.1.weight"], arrays["layers.1.weight"])
    assert open_run(run, "step-00000004", world).source.step == 4
    for name, words in (("step-00000006", "layers.0.bias.npy"), ("step-00000005", "which holds")):
        with pytest.raises(HybridnnError, match=words):
            open_run(run, name, world)


@pytest.mark.in_process(ranks=[3])
def test_mistakes_are_raised_on_every_rank(comm: MPI.Intracomm, tmp_path: Path) -> None:
    grid = ProcessGrid(comm)
    with pytest.raises(HybridnnError, match="is not a run folder"):
        open_run(tmp_path / "absent", None, grid.world)
    run = own_run(comm, tmp_path, (1, 3, 1))
    if comm.rank == 0:
        np.savez(run / "other.npz", x_train=np.ones((4, FEATURES)), y_train=np.ones((4, 3)))
    comm.Barrier()
    trained = open_run(run, None, grid.world)
    with pytest.raises(HybridnnError, match="No such file"):
        predict_file(trained, grid, run / "absent.npz")
    for source, words in (("digits", "is for classification"), ("absent.csv", "No such file"), ("digit", "digits")):
        with pytest.raises(HybridnnError, match=words):
            evaluate_run(trained, grid, source)
    with pytest.raises(HybridnnError, match="no test part"):
        evaluate_run(trained, grid, str(run / "other.npz"), part="test")


@pytest.mark.in_process(ranks=[2])
def test_bytes_of_an_epoch_do_not_depend_on_the_clock(comm, tmp_path, monkeypatch) -> None:
    folder = shared_folder(comm, tmp_path)
    sent = []
    for seconds in (0.0, 1e9):  # ranks agree on a stop after every step, or hardly ever
        monkeypatch.setattr("hybridnn.runs.callbacks.AGREEMENT_SECONDS", seconds)
        comm.Barrier()
        last = train(folder / f"run-{seconds}", data={"name": "digits"}, training={"epochs": 2, "batch_size": 64})
        sent.append(last.bytes_sent)
    assert sent[0] == sent[1] > 0
