"""Files of data sets are found, verified and downloaded, and errors say what is missing."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hybridnn.data import DatasetInfo, RemoteFile, dataset_info, fetch, load_dataset, locate
from hybridnn.data.dataset import Member
from hybridnn.data.download import open_members
from hybridnn.errors import DataError

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


def test_a_failed_download_is_a_short_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDNN_CACHE", str(tmp_path))
    monkeypatch.setattr("pooch.retrieve", Mock(side_effect=ConnectionError("Max retries exceeded " * 30)))
    with pytest.raises(DataError, match=r"no answer; put the file into the folder \S+ by hand$"):
        locate(toy(plain()), plain())


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
    def unreachable(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr("pooch.retrieve", unreachable)
    with pytest.raises(DataError) as caught:
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
