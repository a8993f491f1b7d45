"""Damage of checkpoint files, and small disks that become full."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

from fault_drill.finished import checkpoints
from reference.damaged_files import CONTENT, CUTS, Damage

DISK_BYTES = 64 << 20
ATTEMPTS = 20

_HOW: dict[str, Damage] = {
    "cut": CUTS["anywhere"],
    "flipped": CONTENT["a bit flipped"],
    "removed": lambda path, random: path.unlink(),
}
_WHAT = {"an array": "layers.*.npy", "the manifest": "manifest.json"}

DAMAGES = tuple(f"{what} {how}" for what in _WHAT for how in _HOW)


def damage(run: Path, how: str, random: Random) -> str | None:
    """Damage a file of the newest of several checkpoints; return its name, or None if there are fewer than two."""
    found = checkpoints(run)
    if len(found) < 2:
        return None
    what, _, verb = how.rpartition(" ")
    path = random.choice(sorted(found[0].glob(_WHAT[what])))
    _HOW[verb](path, random)
    return f"{path.parent.name}/{path.name}"


def disks_can_be_made() -> bool:
    """Whether a small disk can be mounted, which needs root."""
    with tempfile.TemporaryDirectory() as name:
        try:
            with small_disk(Path(name)):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a disk in memory at an empty folder."""
    _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "fault-drill", str(folder))
    try:
        yield
    finally:
        _run("umount", "--lazy", str(folder))


def fill(folder: Path, free_bytes: int) -> None:
    """Reduce the size of the disk so that about `free_bytes` bytes remain free."""
    for _ in range(ATTEMPTS):
        now = os.statvfs(folder)
        used = (now.f_blocks - now.f_bfree) * now.f_frsize
        # It fails if the run has written more data meanwhile.
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("mount", "-o", f"remount,size={max(used + free_bytes, now.f_frsize)}", str(folder))
            return
    raise RuntimeError(f"the disk at {folder} cannot be made smaller")


def restore_size(folder: Path) -> None:
    """Restore the original size of the disk."""
    _run("mount", "-o", f"remount,size={DISK_BYTES}", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
