"""Environment of the tests: no launcher of the machine, no Slurm job around them, a home folder of their own."""

import os
import re
import sys
from collections.abc import MutableMapping
from pathlib import Path

LAUNCHERS = {
    *("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prun"),
    *("srun", "sinfo", "sbatch", "squeue", "scontrol", "sacct", "scancel", "salloc"),
}
"""Programs that the library looks for on PATH, and that a machine may have or not."""


SURROUNDING = ("SLURM_", "SBATCH_", "XDG_", "NO_COLOR", "FORCE_COLOR")
"""Beginnings of the names of variables that say something of a job, a desktop or a terminal around the tests."""


def needs_the_machine(markers: str) -> bool:
    """Return whether a marker expression asks for tests on what the machine has: its Slurm, its network, its GPU."""
    return re.search(r"(?<!not )\b(slurm|cluster|gpu)\b", markers) is not None


def path_without_launchers(path: str, folder: Path, own: Path) -> str:
    """Return PATH with folders of links, made in `folder`, in place of those that hold a launcher.

    The folder of the interpreter, `own`, is kept as it is and comes first.
    """
    kept = [str(own)]
    for number, place in enumerate(entry for entry in path.split(os.pathsep) if entry and Path(entry) != own):
        names = os.listdir(place) if os.path.isdir(place) else []
        if LAUNCHERS.isdisjoint(names):
            kept.append(place)
            continue
        links = folder / str(number)
        links.mkdir()
        for name in set(names) - LAUNCHERS:
            (links / name).symlink_to(os.path.abspath(os.path.join(place, name)))
        kept.append(str(links))
    return os.pathsep.join(kept)


def isolate(environment: MutableMapping[str, str], folder: Path) -> None:
    """Change an environment so that the tests find the same on every machine; caches of downloads stay where they are.

    All processes of the tests inherit it; `folder` is empty, and becomes the parent of the home folder.
    """
    home = Path(environment.get("HOME") or Path.home())
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    environment.setdefault("PIP_CACHE_DIR", str(cache / "pip"))
    environment.setdefault("MPLCONFIGDIR", str(cache / "matplotlib"))
    environment.setdefault("PLAYWRIGHT_BROWSERS_PATH", str(cache / "ms-playwright"))
    for name in [name for name in environment if name.startswith(SURROUNDING)]:
        del environment[name]
    environment["HOME"] = str(folder / "home")
    (folder / "home").mkdir()
    environment["PATH"] = path_without_launchers(environment.get("PATH", ""), folder, Path(sys.executable).parent)
