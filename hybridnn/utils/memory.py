"""Memory that is left: of this node for the processes of a job, and of this process."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from types import MappingProxyType

from hybridnn.utils.files import memory_bytes

CONTROL_GROUPS = Path("/sys/fs/cgroup")
GROUP_FILES: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "": ("memory.max", "memory.current", ""),
        "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    }
)
"""Files with the limit and the use of a control group, and what precedes kinds of memory in its statistics."""


def proc_value(path: Path, key: str) -> str:
    """Text after the first ``key:`` of a file of ``/proc``; empty if there is none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:  # long on many cores; the first line is enough
            return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), "")
    except OSError:
        return ""


def available_memory() -> float:
    """Bytes that this node can still give to the processes of this job, within the limits of their control groups.

    All its memory where the system does not say.
    """
    available = proc_value(Path("/proc/meminfo"), "MemAvailable")
    free = 1024.0 * int(available.split()[0]) if available else float(memory_bytes())
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):  # the control groups of Linux, in version 2 and in version 1
                root, names = CONTROL_GROUPS / controllers, GROUP_FILES[controllers]
                folder = root / path.lstrip("/")
                groups = (group for group in (folder, *folder.parents) if group.is_relative_to(root))
                free = min([free, *(_free_in_group(group, *names) for group in groups)])
    return free


def _free_in_group(folder: Path, limit: str, usage: str, prefix: str) -> float:
    """Bytes below the limit of a control group; what files occupy in memory counts as free."""
    try:
        most, used = (int((folder / name).read_text()) for name in (limit, usage))
        kinds = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group here, or "max"
        return inf
    return most - used + float(sum(int(kinds.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive")))


def free_address_space() -> float:
    """Bytes that this process may still allocate by its limits (``ulimit -v`` and ``-d``); infinite without limits."""
    try:
        pages = Path("/proc/self/statm").read_text().split()
    except OSError:
        return inf
    free, page = inf, resource.getpagesize()
    for kind, used in ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5])):
        limit = resource.getrlimit(kind)[0]
        free = free if limit == resource.RLIM_INFINITY else min(free, float(limit - int(used) * page))
    return free
