"""The catalogue of data sets, their downloads, and their loaders."""

import functools
import gzip
import hashlib
import http.server
import io
import pickle
import re
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.config.settings import load_settings
from hybridnn.data import (
    Dataset,
    DatasetInfo,
    RemoteFile,
    SyntheticSpec,
    catalogue,
    dataset_info,
    fetch,
    load_dataset,
    loaders,
    locate,
)
from hybridnn.data.dataset import Member
from hybridnn.data.download import open_members
from hybridnn.data.loaders import ETHYLENE, FASHION_MNIST, read_batch, read_idx
from hybridnn.data.rows import ArrayRows
from hybridnn.errors import DataError, SettingError
from reference.damaged_files import Malicious

AllOf = Callable[..., tuple[NDArray[Any], NDArray[Any]]]


def assert_as_catalogued(dataset: Dataset) -> None:
    info = dataset_info(dataset.name)
    assert (dataset.task, dataset.features, dataset.outputs) == (info.task, info.features, info.outputs)
    assert dataset.train.samples == info.train_samples
    assert (dataset.test.samples if dataset.test else 0) == info.test_samples
    for rows in filter(None, (dataset.train, dataset.test)):
        assert rows.features == info.features
        assert rows.targets_shape == ((info.outputs,) if info.task == "regression" else ())


def test_digits_without_any_file_or_network(all_of: AllOf) -> None:
    dataset = load_dataset("digits")
    assert_as_catalogued(dataset)
    x, y = all_of(dataset.train)
    assert np.bincount(y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (x.min(), x.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(x[0, :8] * 16, [0, 0, 5, 13, 9, 1, 0, 0])
    assert y[:10].tolist() == list(range(10))


@pytest.mark.usefixtures("real_files")
def test_airfoil_with_all_features_and_without_the_displacement_thickness(all_of: AllOf) -> None:
    dataset = load_dataset("airfoil")
    assert_as_catalogued(dataset)
    x, y = all_of(dataset.train)
    np.testing.assert_array_equal(x[0], [800, 0, 0.3048, 71.3, 0.00266337])
    assert y[0] == 126.201
    paper = load_dataset("airfoil-4")
    assert (paper.features, paper.outputs) == (4, 1)
    np.testing.assert_array_equal(all_of(paper.train)[0], x[:, :4])
    np.testing.assert_array_equal(all_of(paper.train)[1], y)


@pytest.mark.usefixtures("real_files")
def test_mnist(all_of: AllOf) -> None:
    dataset = load_dataset("mnist")
    assert_as_catalogued(dataset)
    x, y = all_of(dataset.train, np.float32)
    assert y[:5].tolist() == [5, 0, 4, 1, 9]
    assert (x.min(), x.max()) == (0, 1)
    assert x.mean(dtype=np.float64) == pytest.approx(0.1307, abs=1e-4)
    assert x.std(dtype=np.float64) == pytest.approx(0.3081, abs=1e-4)


@pytest.mark.usefixtures("real_files")
def test_cifar10(all_of: AllOf) -> None:
    dataset = load_dataset("cifar10")
    assert_as_catalogued(dataset)
    _, y = all_of(dataset.test)
    assert np.bincount(y).tolist() == [1000] * 10
    x, y = np.empty((3, 3072), np.float32), np.empty(3, np.int64)
    dataset.train.take(np.array([0, 1, 49_999]), x, y)
    assert y.tolist() == [6, 9, 1]
    np.testing.assert_array_equal(np.rint(x[0, :3] * 255), [59, 43, 50])


def test_ethylene_reads_sensors_and_gases_of_the_first_rows_of_the_verified_member(
    all_of: AllOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = np.round(np.random.default_rng(0).uniform(0, 500, (20, 19)), 2)
    text = io.StringIO()
    np.savetxt(text, table, fmt="%.2f", header="Time, Methane, Ethylene, sensor readings (16 channels)", comments="")
    with zipfile.ZipFile(tmp_path / ETHYLENE.files[0].name, "w") as archive:
        archive.writestr("ethylene_methane.txt", text.getvalue())
    monkeypatch.setenv("HYBRIDNN_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"member ethylene_methane\.txt: sha256 is .* expected a00f383f"):
        load_dataset("ethylene")
    member = Member("ethylene_methane.txt", hashlib.sha256(text.getvalue().encode()).hexdigest())
    info = replace(ETHYLENE, train_samples=7, files=(replace(ETHYLENE.files[0], members=(member,)),))
    x, y = all_of(ETHYLENE.load(info).train)
    np.testing.assert_array_equal(x, table[:7, 3:])
    np.testing.assert_array_equal(y, table[:7, 1:3])


def idx(array: NDArray[np.uint8]) -> bytes:
    return gzip.compress(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


def test_fashion_mnist_beside_mnist_files_of_the_same_name(
    all_of: AllOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.arange(2 * 784, dtype=np.int64).astype(np.uint8).reshape(2, 28, 28)
    contents = [idx(images), idx(np.array([3, 9], np.uint8)), idx(images[:1]), idx(np.array([1], np.uint8))]
    (tmp_path / "fashion-mnist").mkdir()
    files = []
    for file, content in zip(FASHION_MNIST.files, contents, strict=True):
        (tmp_path / file.name).write_bytes(b"a file of MNIST")
        (tmp_path / "fashion-mnist" / file.name).write_bytes(content)
        files.append(replace(file, sha256=hashlib.sha256(content).hexdigest()))
    monkeypatch.setenv("HYBRIDNN_DATA", str(tmp_path))
    dataset = FASHION_MNIST.load(replace(FASHION_MNIST, files=tuple(files)))
    x, y = all_of(dataset.train)
    np.testing.assert_array_equal(x, images.reshape(2, 784) / 255)
    assert y.tolist() == [3, 9]
    assert all_of(dataset.test)[1].tolist() == [1]


@pytest.mark.parametrize("content", [b"\0\0\x0d\1\0\0\0\1\0", b"\0\0\x08\1\0\0\0\5\0"], ids=["floats", "too short"])
def test_idx_of_another_form_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=r"bad\.gz"):
        read_idx(tmp_path / "bad.gz")


def test_pickled_batch_of_arrays_is_read() -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 6)
    batch = {b"data": pixels, b"labels": [3, 9], b"filenames": [b"a.png", b"b.png"], b"batch_label": "one"}
    rows = read_batch(io.BytesIO(pickle.dumps(batch, protocol=4)))
    np.testing.assert_array_equal(rows.pixels, pixels)
    assert rows.labels.tolist() == [3, 9]


@pytest.mark.parametrize("name", ["numpy.load", "numpy.core.multiarray.fromfile", "builtins.eval", "os.system"])
def test_pickle_may_name_nothing_but_arrays(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    with pytest.raises(DataError, match=f"refers to {name}"):
        read_batch(io.BytesIO(f"c{module}\n{attribute}\n.".encode()))


def test_changed_cifar10_batch_is_not_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYBRIDNN_DATA", str(tmp_path))
    for member in dataset_info("cifar10").files[0].members:
        path = tmp_path / member.path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(DataError, match=r"data_batch_1: sha256 is .*delete it to download again"):
        load_dataset("cifar10")


def test_rows_keeps_the_first_training_samples(all_of: AllOf) -> None:
    x, y = all_of(load_dataset("digits").train)
    dataset = load_dataset("digits", rows=5)
    np.testing.assert_array_equal(all_of(dataset.train)[0], x[:5])
    np.testing.assert_array_equal(all_of(dataset.train)[1], y[:5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, r"data.rows = 0: must be a whole number, at least 1"),
        ({"rows": 1798}, r"data.rows = 1798: digits has 1797"),
        ({"synthetic": SyntheticSpec()}, r"data.name = 'digits'"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        load_dataset("digits", **options)


NAMES = ["digits", "airfoil", "airfoil-4", "ethylene", "mnist", "fashion-mnist", "cifar10", "synthetic"]


def test_every_entry_is_complete_and_cannot_be_changed() -> None:
    assert list(catalogue()) == NAMES  # the default first
    for name, info in catalogue().items():
        assert info.name == name
        assert all([info.title, info.description, info.licence, info.citation, info.source])
        assert info.files or name == "synthetic"
        for file in info.files:
            sums = [part.sha256 for part in file.members] + ([file.sha256] if file.sha256 else [])
            assert sums, f"nothing tells whether {file.name} is right"
            assert all(re.fullmatch("[0-9a-f]{64}", checksum) for checksum in sums)
            assert file.name == file.url.rpartition("/")[2] or name == "digits"
    with pytest.raises(TypeError):
        catalogue()["mine"] = dataset_info("digits")  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "message"), [("CIFAR-10", "did you mean cifar10"), ("zzz", "known are digits, airfoil, airfoil-4")]
)
def test_unknown_name_suggests_the_nearest_or_all(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        dataset_info(name)


TABLE = b"1 2 7\n3 4 8\n5 6 9\n"


def load_mine(info: DatasetInfo) -> Dataset:
    """As docs/extending.md describes a loader."""
    for _, stream in open_members(info, info.files[0]):
        table = np.loadtxt(stream)
    return info.dataset(ArrayRows(table[:, : info.features], table[:, -1:]))


MINE = DatasetInfo(
    name="mine",
    title="Mine",
    task="regression",
    features=2,
    outputs=1,
    train_samples=3,
    test_samples=0,
    description="Three samples.",
    licence="none",
    citation="none",
    source="https://example.org",
    load=load_mine,
    files=(
        RemoteFile(
            name="mine.zip",
            url="https://example.org/mine.zip",
            sha256=None,
            size=None,
            members=(Member("mine.dat", hashlib.sha256(TABLE).hexdigest()),),
        ),
    ),
)


def test_a_data_set_is_added_by_its_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_of: Callable[..., Any]
) -> None:
    monkeypatch.setattr(loaders, "ENTRIES", (*loaders.ENTRIES, MINE))
    monkeypatch.setenv("HYBRIDNN_DATA", str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.dat").write_bytes(TABLE)
    x, y = all_of(load_settings(None, ["data.name=mine"]).data.load().train)
    assert (x.tolist(), y.tolist()) == ([[1, 2], [3, 4], [5, 6]], [[7], [8], [9]])
    settings = load_settings(None, ["data.name=mine", "data.rows=2"])
    assert (settings.data.describe().features, settings.data.load().train.samples) == (2, 2)
    (tmp_path / "mine" / "mine.dat").write_bytes(TABLE + b"0 0 0\n")
    with pytest.raises(DataError, match=r"mine\.dat: sha256 is .* delete it to download again"):
        settings.data.load()


CONTENT = b"1 2 3\n"
NOWHERE = "http://127.0.0.1:9/toy.txt"  # the discard port refuses connections, like a machine without network


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def toy(file: RemoteFile) -> DatasetInfo:
    return replace(dataset_info("airfoil"), name="toy", files=(file,))


def plain(url: str = NOWHERE) -> RemoteFile:
    return RemoteFile("toy.txt", url, checksum(CONTENT), len(CONTENT))


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Yield a folder and the URL under which a server of this machine offers it."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("place", ["toy.txt", "toy/toy.txt"])
@pytest.mark.parametrize("variable", ["HYBRIDNN_DATA", "HYBRIDNN_CACHE"])
def test_file_on_disk_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, variable: str
) -> None:
    path = tmp_path / "mine" / place
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    monkeypatch.setenv(variable, str(tmp_path / "mine"))
    assert locate(toy(plain()), plain()) == path


def test_file_on_disk_with_another_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDNN_DATA", str(tmp_path))
    (tmp_path / "toy.txt").write_bytes(b"damaged")
    with pytest.raises(DataError) as caught:
        locate(toy(plain()), plain())
    for part in (str(tmp_path / "toy.txt"), checksum(b"damaged"), checksum(CONTENT), "delete it to download again"):
        assert part in str(caught.value)
    info = dataset_info("digits")  # which is part of the package
    with pytest.raises(DataError, match=r"digits\.npz: sha256 is"):
        locate(info, replace(info.files[0], sha256="0" * 64))


def test_missing_data_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDNN_DATA", str(tmp_path / "gone"))
    with pytest.raises(DataError, match=r"HYBRIDNN_DATA = .*gone.*: no such folder"):
        load_dataset("mnist")


@pytest.mark.parametrize("name", ["airfoil", "ethylene", "mnist", "fashion-mnist", "cifar10"])
def test_without_network_the_error_names_url_and_folder(
    name: str, no_files_of_this_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pooch.retrieve", Mock(side_effect=ConnectionError("Max retries exceeded " * 30)))
    with pytest.raises(DataError, match=r"no answer; put the file into the folder \S+ by hand$") as caught:
        load_dataset(name)
    assert dataset_info(name).files[0].url in str(caught.value)
    assert str(no_files_of_this_machine / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_download_lands_in_the_cache_and_is_not_repeated(
    served: tuple[Path, str], no_files_of_this_machine: Path
) -> None:
    folder, url = served
    file = plain(f"{url}/toy.txt")
    (folder / "toy.txt").write_bytes(CONTENT[:3])
    with pytest.raises(DataError, match=r"not the expected file"):
        locate(toy(file), file)
    assert not [path for path in no_files_of_this_machine.rglob("*") if path.is_file()]
    (folder / "toy.txt").write_bytes(CONTENT)
    path = locate(toy(file), file)
    assert path == no_files_of_this_machine / "toy" / "toy.txt"
    assert path.read_bytes() == CONTENT
    (folder / "toy.txt").unlink()
    assert locate(toy(file), file) == path


def archive_of(path: Path, kind: str, names: tuple[str, ...] = ("in/a.txt", "in/b.txt")) -> RemoteFile:
    """Write an archive of small members and of one unused file."""
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as packed:
            for name in ("other.txt", *names):
                packed.writestr(name, name)
    else:
        with tarfile.open(path, "w:gz") as packed_tar:
            for name in ("other.txt", *names):
                entry = tarfile.TarInfo(name)
                entry.size = len(name)
                packed_tar.addfile(entry, io.BytesIO(name.encode()))
    members = tuple(Member(name, checksum(name.encode())) for name in ("in/b.txt", "in/a.txt"))
    return RemoteFile(path.name, NOWHERE, checksum(path.read_bytes()), None, members)


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_members_come_out_of_the_verified_archive(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDNN_DATA", str(tmp_path))
    file = archive_of(tmp_path / f"toy.{kind}", kind)
    read = {path: stream.read() for path, stream in open_members(toy(file), file)}
    assert read == {"in/a.txt": b"in/a.txt", "in/b.txt": b"in/b.txt"}
    assert fetch(toy(file)) == [tmp_path / f"toy.{kind}"]
    wrong = replace(file, members=(Member("in/a.txt", checksum(b"else")),))
    with pytest.raises(DataError, match=r"member in/a\.txt: sha256"):
        fetch(toy(wrong))
    lacking = archive_of(tmp_path / f"toy.{kind}", kind, names=("in/b.txt",))
    with pytest.raises(DataError, match=r"not the expected archive.*in/a\.txt"):
        fetch(toy(lacking))
    (tmp_path / f"toy.{kind}").write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="not the expected archive"):
        fetch(toy(replace(file, sha256=None)))


def test_unpacked_members_are_preferred_and_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDNN_DATA", str(tmp_path))
    file = replace(archive_of(tmp_path / "toy.zip", "zip"), sha256="0" * 64)  # opening the archive would fail
    for name in ("a.txt", "b.txt"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_text(f"in/{name}")
    assert sorted(fetch(toy(file))) == [tmp_path / "in" / "a.txt", tmp_path / "in" / "b.txt"]
    (tmp_path / "in" / "a.txt").write_text("changed")
    with pytest.raises(DataError, match=r"a\.txt: sha256 is"):
        fetch(toy(file))


def test_fetch_of_official_shipped_and_generated_sets(real_files: Path) -> None:
    assert fetch(dataset_info("airfoil")) == [real_files / "airfoil_self_noise.dat"]
    assert {path.parent for path in fetch(dataset_info("mnist"))} == {real_files / "mnist"}
    assert [path.name for path in fetch(dataset_info("digits"))] == ["digits.npz"]
    assert fetch(dataset_info("synthetic")) == []
