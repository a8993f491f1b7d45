"""Isolation of a submission: limits of its processes, another user, and separate namespaces.

``user``: this process is root; each rank gets a user of its own, and where the system allows it, no network, System V
memory of its own, and of all files only the system and Python. ``bwrap``: the processes run inside bubblewrap, which
shows them the system and Python, read-only, and no network; ranks of one submission are not isolated from one another.
``none``: limits only, for the student's own computer.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import resource
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from hybridnn.errors import EnvironmentProblem, SettingError
from hybridnn.utils.checks import require_choice
from hybridnn.utils.files import shipped_folder
from hybridnn_course.system_calls import refuse_calls

MODES = ("auto", "bwrap", "user", "none")
FIRST_USER = 30_000
"""First of the numeric users of ranks; they need no account, and accounts are left out."""

USERS = 32  # of one worker, and so the most ranks of a case
WORKERS = 500  # at the same time on a machine
TRIED_USER = FIRST_USER + WORKERS * USERS  # of what is tried before: no grader ends its processes
LOCK = "\0hybridnn-course-users-"  # name of a socket, with the number of a worker
MEMORY_BYTES = 2 << 30
MEMORY_LEFT = 2 * MEMORY_BYTES  # of the machine, by which only a limit refuses memory
FILE_BYTES = 64 << 10  # of a file, and of what is printed
DESCRIPTORS = 64
PROCESSES = 64  # processes and threads of the user of a rank, or of all ranks in bubblewrap

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWNET = 0x00020000, 0x08000000, 0x40000000
MS_REC, MS_PRIVATE, MS_BIND, MS_NOSUID, MS_NODEV = 16384, 1 << 18, 4096, 2, 4
O_PATH = 0o10000000
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_SET_DUMPABLE = 1, 36, 38, 4
WRITABLE = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/dev/mqueue")
SOFTWARE = ("bin", "dev", "etc", "gnu", "lib", "lib32", "lib64", "libx32", "nix", "opt", "proc", "sbin", "sys", "usr")
"""Folders of the system; in all others there may be files of people."""
INSTALLED = ("site-packages", "dist-packages")
PACKAGES = ("hybridnn", "hybridnn_course", "hybridnn_course_staff")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
BWRAP = (
    *(word for path in SYSTEM for word in ("--ro-bind-try", path, path)),
    *("--dev", "/dev", "--remount-ro", "/dev", "--proc", "/proc"),
    *("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
)


def choose_isolation(mode: str) -> str:
    """The isolation to use; `EnvironmentProblem` where `mode` is ``"auto"`` and none can be had."""
    require_choice("isolation", mode, MODES)
    if mode in ("auto", "user") and sys.platform == "linux" and os.geteuid() == 0:
        if _can_read_solutions():
            folders = " ".join(_solution_folders())
            raise EnvironmentProblem(
                f"submissions could read the solutions in {folders}, as this system allows no namespaces: close what "
                f"has them to other users (chmod 700 {folders}), or give the container the capability SYS_ADMIN"
            )
        return "user"
    if mode in ("auto", "bwrap") and _bwrap_works():
        return "bwrap"
    if mode == "none":
        return "none"
    if mode == "user":
        raise SettingError("--isolation", mode, "needs root on Linux: another user is switched to")
    if mode == "bwrap":
        raise SettingError("--isolation", mode, "needs bubblewrap (bwrap), which does not work here")
    raise EnvironmentProblem(
        "submissions cannot be isolated here: grade as root on Linux, or install bubblewrap (bwrap); "
        "--isolation none runs them with the rights of this user"
    )


def _can_read_solutions() -> bool:
    """Whether the process of a rank that has a user of its own could read the solutions."""

    def cannot_read() -> bool:
        confine("user", TRIED_USER, 10)
        return not any(os.listdir(folder) for folder in _solution_folders() if os.access(folder, os.R_OK | os.X_OK))

    return not _holds(cannot_read)


def _bwrap_works() -> bool:
    """Whether bubblewrap works, and hides the solutions."""
    if shutil.which("bwrap") is None:
        return False
    program = "import os, sys; sys.exit(any(map(os.listdir, filter(os.path.isdir, sys.argv[1:]))))"
    # PATH may lead where only the caller may go.
    command = [*command_prefix("bwrap"), sys.executable, "-I", "-c", program, *_solution_folders()]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
    return False


class ReservedUsers:
    """The users of the ranks of one worker, which no other grader on this machine uses at the same time.

    The end of a case ends all processes of its users, so that two graders with the same users would end each other's.
    """

    def __init__(self) -> None:
        for number in range(WORKERS):
            self.first = FIRST_USER + number * USERS
            self._holder = socket.socket(socket.AF_UNIX)
            with contextlib.suppress(OSError):
                self._holder.bind(f"{LOCK}{number}")
                if not any(map(_has_account, range(self.first, self.first + USERS))):
                    return
            self._holder.close()
        raise EnvironmentProblem(f"{WORKERS} submissions are graded on this machine already")

    def release(self) -> None:
        """Leave the users to another worker."""
        self._holder.close()


def command_prefix(mode: str) -> list[str]:
    """What precedes the command of a worker."""
    if mode != "bwrap":
        return []
    path = shutil.which("bwrap")
    assert path is not None
    shown = [word for folder in _needed_folders() for word in ("--ro-bind", str(folder), str(folder))]
    solutions = filter(os.path.isdir, _solution_folders())
    hidden = [word for folder in solutions for word in ("--tmpfs", folder, "--remount-ro", folder)]
    return [path, *BWRAP, *shown, *hidden, "--remount-ro", "/", "--"]


def _has_account(user: int) -> bool:
    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    return True


def become_worker() -> None:
    """In the process that starts ranks: end with the grader, adopt processes of ended ranks, and be traced by none."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_DUMPABLE, 0)


def confine(mode: str, user: int, seconds: int) -> bool:
    """In the process of a rank: give up rights and set limits, before the submission is loaded.

    False where the system did not allow namespaces of its own that the mode needs, or refuses no system calls.
    """
    is_separate = True
    os.setsid()
    os.umask(0o022)  # the user of the rank reads the folders that root makes
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    limits = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: FILE_BYTES,
        resource.RLIMIT_NOFILE: DESCRIPTORS,
        resource.RLIMIT_CORE: 0,
    }
    if sys.platform == "linux":
        limits[resource.RLIMIT_AS] = MEMORY_BYTES
    if mode != "none":  # the user of this mode has other processes
        limits[resource.RLIMIT_NPROC] = PROCESSES
    if mode == "user":
        is_separate = _own_namespaces()
    for limit, value in limits.items():
        _, hard = resource.getrlimit(limit)
        last = value + (limit == resource.RLIMIT_CPU)  # so that the first signal is one that nothing else sends
        last = last if hard == resource.RLIM_INFINITY else min(last, hard)
        resource.setrlimit(limit, (min(value, last), last))
    if mode == "user":
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user resets it
    os.umask(0o077)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    if mode != "none" and sys.platform == "linux":
        is_separate = refuse_calls() and is_separate
    return is_separate


def _own_namespaces() -> bool:
    """No network, no shared memory of others, no files of people, no solutions, and no folder that others can write to.

    All is read-only, where the system can do that. Every folder with other files than those of the system is covered by
    an empty one, in which only what Python imports is seen. Where the system allows no namespaces, the folders stay as
    they are; False then, and where a part of it is not allowed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    is_separate = not any([libc.unshare(flag) for flag in (CLONE_NEWNET, CLONE_NEWIPC)])
    if libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
        return False
    read_only = struct.pack("QQQQ", MOUNT_ATTR_RDONLY, 0, 0, 0)
    libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, read_only, ctypes.c_size_t(len(read_only)))
    needed = _needed_folders()
    for folder in _covered(needed):
        inside = [path for path in needed if path.is_relative_to(folder)]
        held = [os.open(path, O_PATH) for path in inside]
        if _cover(libc, folder, b"size=64k,nr_inodes=256,mode=1777"):
            is_separate = False
            continue
        for path, descriptor in zip(inside, held, strict=True):
            path.mkdir(parents=True, exist_ok=True)
            libc.mount(f"/proc/self/fd/{descriptor}".encode(), str(path).encode(), None, MS_BIND | MS_REC, None)
            os.close(descriptor)
    # In a folder that is covered already, they cannot be seen.
    solutions = filter(os.path.isdir, _solution_folders())
    return is_separate and not any(_cover(libc, folder, b"size=4k,mode=755") for folder in solutions)


def _solution_folders() -> list[str]:
    """What has the solutions: the package of the staff, and in a repository its history and tests."""
    found = _locations("hybridnn_course_staff")
    found += [root / name for root in _checkouts() for name in (".git", "course/tests")]
    return [str(path) for path in found if path.exists()]


def _locations(package: str) -> list[Path]:
    found = find_spec(package)
    return list(map(Path, (found and found.submodule_search_locations) or ()))


def _checkouts() -> set[Path]:
    """Folders outside of an installation from which packages are imported: of a repository the whole one."""
    found = set()
    for folder in (path.resolve().parent for name in PACKAGES for path in _locations(name)):
        above = (folder, *folder.parents[:-1])
        if folder.name not in INSTALLED and not any(folder.glob("hybridnn*.dist-info")):
            found.add(next((path for path in above if (path / ".git").exists()), folder))
    return found


def _cover(libc: ctypes.CDLL, folder: str, options: bytes) -> int:
    failed: int = libc.mount(b"tmpfs", folder.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, options)
    return failed


def _covered(needed: Sequence[Path]) -> list[str]:
    """Folders of people, those that all may write to, and those on the way to Python that only root may enter."""
    others = (entry for entry in os.scandir("/") if entry.name not in SOFTWARE)
    covered = {entry.path for entry in others if entry.is_dir(follow_symlinks=False)}
    covered |= {folder for folder in WRITABLE if Path(folder).is_dir()} | set(map(str, _checkouts()))
    covered |= {closed for folder in needed if (closed := _closed_folder(folder))}
    return sorted(folder for folder in covered if not any(Path(other) in Path(folder).parents for other in covered))


def _needed_folders() -> list[Path]:
    """Folders that Python imports from, and those of data sets and machines, without those inside another one.

    Of a repository, and of the folder in which the grader was started, only the packages.
    """
    checkouts, here = _checkouts(), Path.cwd()
    paths = [path for path in map(Path, filter(None, sys.path)) if path.resolve() != here]
    paths = [path for path in paths if not any(map(path.resolve().is_relative_to, checkouts))]
    packages = (*_locations("hybridnn"), *_locations("hybridnn_course"))
    shipped = (shipped_folder("datasets"), shipped_folder("hpc_jobs"))  # of hybridnn, in a repository beside it
    found = {Path(sys.base_prefix), Path(sys.prefix), *paths, *packages, *shipped}
    found |= {path.resolve() for path in found}
    existing = sorted(path for path in found if path.is_dir() and path != Path("/"))
    return [path for path in existing if not any(other in path.parents for other in existing)]


def _closed_folder(path: Path) -> str:
    """The outermost folder on the way to `path` that other users may not enter; empty if there is none."""
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & 0o001:
            return str(folder)
    return ""


def close_to_others(folder: Path) -> None:
    """Take the rights of other users: no process of a submission that has one may read the folder."""
    try:
        os.chmod(folder, stat.S_IMODE(folder.stat().st_mode) & ~stat.S_IRWXO)
    except OSError as error:
        raise EnvironmentProblem(f"{folder}: cannot be closed to other users: {error.strerror}") from None


def can_import(mode: str, user: int) -> bool:
    """Whether a confined process can read the files of Python and of this package."""

    def can_read() -> bool:
        confine(mode, user, 10)
        return all(os.access(path, os.R_OK) for path in (os.__file__, __file__))

    return _holds(can_read)


def _holds(condition: Callable[[], bool]) -> bool:
    """Whether a condition holds in another process."""
    pid = os.fork()
    if pid == 0:
        holds = False
        with contextlib.suppress(Exception):
            holds = condition()
        os._exit(0 if holds else 1)
    return os.waitpid(pid, 0)[1] == 0


def missing_protection(mode: str) -> str:
    """What the system does not allow here, in one line; empty where nothing is missing."""
    if mode == "none":
        return "nothing is isolated: submissions have the rights of this user, and can read the solutions"
    if mode != "user" or _holds(lambda: confine(mode, TRIED_USER, 10)):
        return ""
    return (
        "this system does not allow namespaces: ranks see the network, and each other's files in /tmp and the like "
        "until a case has ended; a container needs the capability SYS_ADMIN for them"
    )


def has_memory() -> bool:
    """Whether the machine has so much memory that only its limit refuses some to a submission; as Linux says."""
    try:
        lines = (line.split() for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    except OSError:
        return False
    return any(name == "MemAvailable:" and int(number) << 10 >= MEMORY_LEFT for name, number, *_ in lines)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def reaped() -> dict[int, tuple[int, float]]:
    """The processes that have ended: how, and their seconds of processor time."""
    found = {}
    with contextlib.suppress(ChildProcessError):
        while (one := os.wait4(-1, os.WNOHANG))[0]:
            found[one[0]] = one[1], one[2].ru_utime + one[2].ru_stime
    return found


def end_ranks(users: range) -> dict[int, tuple[int, float]]:
    """End every process that this process started, also those that left their session or changed their parent.

    Returns what `reaped` says of them.

    Parameters
    ----------
    users : range
        The users of the ranks, whose files are removed, too; empty where they have none of their own.
    """
    found: dict[int, tuple[int, float]] = {}
    for user in users:
        _end_processes_of(user)
    deadline = time.monotonic() + 10
    while (children := _children(os.getpid())) and time.monotonic() < deadline:
        for child in children:
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        found |= reaped()
        time.sleep(0.001)
    for folder in WRITABLE if users else ():
        _remove_files(folder, users)
    return found


def _remove_files(folder: str, users: range) -> None:
    """Remove the files of users, also in folders inside that all may write to."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                is_folder = stat.S_ISDIR(status.st_mode)
                if status.st_uid in users and is_folder:  # of any depth
                    subprocess.run(["rm", "-rf", "--", entry.path], stderr=subprocess.DEVNULL, check=False)
                elif status.st_uid in users:
                    os.unlink(entry.path)
                elif is_folder and status.st_mode & stat.S_IWOTH:
                    _remove_files(entry.path, users)


def _end_processes_of(user: int) -> None:
    """End all processes of a user at once, so that none can start another one in between."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(user, user, user)
            os.kill(-1, signal.SIGKILL)  # spares the caller
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _children(parent: int) -> list[int]:
    """Processes whose parent is `parent`, and on Linux also their descendants."""
    try:
        parents = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    stat = Path("/proc", entry, "stat").read_text(encoding="utf-8", errors="replace")
                    parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    except OSError:  # no /proc: only the children that are known
        return []
    found, level = [], {parent}
    while level:
        level = {pid for pid, above in parents.items() if above in level}
        found += sorted(level)
    return found
