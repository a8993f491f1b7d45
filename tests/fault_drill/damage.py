"""What happens to files on a disk: checkpoints that are cut, changed or gone, and a disk that is full."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from fault_drill.finished import checkpoints

__all__ = ["DAMAGES", "damage", "disks_can_be_made", "fill", "make_room", "small_disk"]

ROOM = 64 << 20
ATTEMPTS = 20


def _cut(path: Path, random: Random) -> None:
    os.truncate(path, random.randrange(path.stat().st_size))


def _flip_a_bit(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def _remove(path: Path, random: Random) -> None:
    path.unlink()


_HOW: dict[str, Callable[[Path, Random], None]] = {"cut": _cut, "flipped": _flip_a_bit, "removed": _remove}
_WHAT = {"an array": "layers.*.npy", "the manifest": "manifest.json"}

DAMAGES = tuple(f"{what} {how}" for what in _WHAT for how in _HOW)


def damage(run: Path, how: str, random: Random) -> str | None:
    """Damage a file of the newest checkpoint of a run; returns its name, None where there are not two checkpoints."""
    found = checkpoints(run)
    if len(found) < 2:
        return None
    what, _, verb = how.rpartition(" ")
    path = random.choice(sorted(found[0].glob(_WHAT[what])))
    _HOW[verb](path, random)
    return f"{path.parent.name}/{path.name}"


def disks_can_be_made() -> bool:
    """Whether a small disk can be mounted here, which takes the rights of root."""
    with tempfile.TemporaryDirectory() as name:
        try:
            with small_disk(Path(name)):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Have a disk in memory at an empty folder."""
    _run("mount", "-t", "tmpfs", "-o", f"size={ROOM}", "fault-drill", str(folder))
    try:
        yield
    finally:
        _run("umount", "--lazy", str(folder))


def fill(folder: Path, room: int) -> None:
    """Make the disk so small that about `room` bytes are left on it."""
    for _ in range(ATTEMPTS):
        now = os.statvfs(folder)
        used = (now.f_blocks - now.f_bfree) * now.f_frsize
        # It is refused where the run has written more meanwhile.
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("mount", "-o", f"remount,size={max(used + room, now.f_frsize)}", str(folder))
            return
    raise RuntimeError(f"the disk at {folder} cannot be made smaller")


def make_room(folder: Path) -> None:
    """Give the disk its first size again."""
    _run("mount", "-o", f"remount,size={ROOM}", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
