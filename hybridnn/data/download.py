"""Search for the files of data sets on disk, download, and verification of their checksums."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from hybridnn.errors import DataError
from hybridnn.utils.files import shipped_folder
from hybridnn.utils.text import user_path

from .dataset import DatasetInfo, Member, RemoteFile


def cache_folder() -> Path:
    """Return the folder for downloads: ``$HYBRIDNN_CACHE``, or the user's cache folder of the system."""
    chosen = os.environ.get("HYBRIDNN_CACHE")
    if chosen:
        return user_path(chosen)
    import pooch

    return Path(pooch.os_cache("hybridnn"))


def locate(info: DatasetInfo, file: RemoteFile) -> Path:
    """Return the verified path of a file of a data set, after a download if the file is not on disk.

    The search covers ``$HYBRIDNN_DATA`` and then the cache folder, in each of them first a folder named after the data
    set. If a file has another checksum, or the download fails, a `DataError` gives advice.
    """
    if not file.url:
        shipped = shipped_folder("datasets") / file.name
        _verify(shipped, file.sha256)
        return shipped
    found = _find(info, file.name)
    if found is None:
        return _download(info, file, cache_folder() / (info.folder or info.name))
    _verify(found, file.sha256)
    return found


def open_members(info: DatasetInfo, archive: RemoteFile) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield (path, stream) of each verified member of an archive, in arbitrary order.

    Unpacked members in the folders of `locate` are used in place of the archive. A stream is valid until the next one
    is yielded. `DataError` as of `locate`, and if the archive cannot be read or lacks a member.
    """
    unpacked = _unpacked(info, archive)
    if unpacked:
        for member, path in unpacked:
            with path.open("rb") as stream:
                _compare(path, member.sha256, _sha256(stream))
                stream.seek(0)
                yield member.path, stream
        return
    path = locate(info, archive)
    read = _zip_members if zipfile.is_zipfile(path) else _tar_members
    try:
        yield from read(path, archive.members)
    except (KeyError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is not the expected archive ({error}): delete it to download again") from error


def fetch(info: DatasetInfo) -> list[Path]:
    """Download the missing files of a data set, verify all of them, and return their paths (see `locate`)."""
    paths = []
    for file in info.files:
        if file.members:
            deque(open_members(info, file), maxlen=0)  # iterating verifies the members
        unpacked = _unpacked(info, file)
        paths.extend([path for _, path in unpacked] or [locate(info, file)])
    return paths


def is_fetched(info: DatasetInfo) -> bool:
    """Whether all files of a data set are on disk, in the folders of `locate`; checksums are not computed."""
    needed = [file for file in info.files if file.url]
    return all(_find(info, file.name) is not None or _unpacked(info, file) for file in needed)


def _search_folders() -> list[Path]:
    own = os.environ.get("HYBRIDNN_DATA")
    if not own:
        return [cache_folder()]
    if not user_path(own).is_dir():
        raise DataError(f"HYBRIDNN_DATA = {own!r}: no such folder")
    return [user_path(own), cache_folder()]


def _find(info: DatasetInfo, name: str) -> Path | None:
    for root in _search_folders():
        own = root / (info.folder or info.name) / name
        places = [own] if info.own_folder else [own, root / name]
        for path in places:
            if path.is_file():
                return path
    return None


def _unpacked(info: DatasetInfo, archive: RemoteFile) -> list[tuple[Member, Path]]:
    """Return all members with the paths of their unpacked files; empty if one of them is missing."""
    found = [(member, _find(info, member.path)) for member in archive.members]
    present = [(member, path) for member, path in found if path is not None]
    return present if len(present) == len(found) else []


def _zip_members(path: Path, members: Sequence[Member]) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(path) as archive:
        for member in members:
            with archive.open(member.path) as stream:
                _compare(path, member.sha256, _sha256(stream), member.path)
            with archive.open(member.path) as stream:  # opened twice: a member may exceed the memory
                yield member.path, stream


def _tar_members(path: Path, members: Sequence[Member]) -> Iterator[tuple[str, IO[bytes]]]:
    wanted = {member.path: member for member in members}
    with tarfile.open(path) as archive:
        for entry in archive:  # in this order, because a compressed stream is read only forward
            stream = archive.extractfile(entry) if entry.name in wanted else None
            if stream is None:
                continue
            content = stream.read()
            _compare(path, wanted.pop(entry.name).sha256, hashlib.sha256(content).hexdigest(), entry.name)
            yield entry.name, io.BytesIO(content)
    if wanted:
        raise KeyError(f"no member {', '.join(sorted(wanted))}")


def _download(info: DatasetInfo, file: RemoteFile, folder: Path) -> Path:
    import pooch

    known = f"sha256:{file.sha256}" if file.sha256 else None
    try:  # pooch moves a temporary file into place after it has verified the checksum
        return Path(pooch.retrieve(file.url, known_hash=known, fname=file.name, path=folder))
    except OSError as error:
        response = getattr(error, "response", None)
        reason = error.strerror or ("no answer" if response is None else f"status {response.status_code}")
        message = f"{info.name}: cannot download {file.url}: {reason}; put the file into the folder {folder} by hand"
        raise DataError(message) from error
    except ValueError as error:
        raise DataError(
            f"{info.name}: what {file.url} sent is not the expected file (sha256 should be {file.sha256}): try again"
        ) from error


def _verify(path: Path, sha256: str | None) -> None:
    if sha256 is None:
        return
    with path.open("rb") as stream:
        _compare(path, sha256, _sha256(stream))


def _sha256(stream: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _compare(path: Path, expected: str, found: str, member: str = "") -> None:
    if found != expected:
        inside = f", member {member}" if member else ""
        raise DataError(
            f"{path}{inside}: sha256 is {found}, expected {expected}; the file is damaged: delete it to download again"
        )
