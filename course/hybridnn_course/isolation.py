"""Isolation of a submission, which the kernel enforces, and limits of its processes.

``bwrap``: the processes run inside bubblewrap, as a user without rights, where the system and Python are read-only, and
neither ``/proc`` nor a network is. Each rank has namespaces of its own for users, processes, network and System V
memory, so that ranks meet nowhere but at the grader. ``user``: in a container that holds one submission, this process
is root, and all ranks are one user to whom the kit's files are closed. ``none``: limits only, on the student's own
computer and for submissions that are trusted.
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
import subprocess
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from hybridnn.errors import EnvironmentProblem, SettingError
from hybridnn.utils.checks import require_choice
from hybridnn.utils.files import shipped_folder
from hybridnn_course.system_calls import refuse_calls

MODES = ("auto", "bwrap", "user", "none")
TRUSTED = "nothing is isolated: submissions have the rights of this user, and can read the solutions"
FIRST_USER = 30_000
"""First of the numeric users that may be that of submissions, which has no account."""

CLAIM = "\0hybridnn-course-user"  # name of a socket
MEMORY_BYTES = 2 << 30  # of a process, and of all processes of a submission
MEMORY_LEFT = 2 * MEMORY_BYTES  # of the machine, by which only a limit refuses memory
FILE_BYTES = 64 << 10  # of a file, and of what is printed
DESCRIPTORS = 64
PROCESSES = 64  # processes and threads of a rank, or of all ranks of the one user

OWN_NAMESPACES = 0x10000000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000  # user, PID, network, IPC, host name
CAPABILITIES_VERSION = 0x20080522
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_SET_DUMPABLE = 1, 36, 38, 4
INSTALLED = ("site-packages", "dist-packages")
PACKAGES = ("hybridnn", "hybridnn_course", "hybridnn_course_staff")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")  # without terminals, by which ranks could meet
BWRAP = (
    *(word for path in ("/dev", "/etc") for word in ("--perms", "0755", "--dir", path)),
    *(word for path in SYSTEM for word in ("--ro-bind-try", path, path)),
    *(word for path in DEVICES for word in ("--dev-bind-try", path, path)),
    *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session"),
    *("--cap-drop", "ALL"),
)
BECOMING_A_USER = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")  # of root, who may do nothing else there
TRY = """
import sys; sys.path[:0] = {paths!r}
from hybridnn_course.isolation import is_isolated
sys.exit(not is_isolated({folders!r}))
"""


def choose_isolation(mode: str) -> str:
    """The isolation to use; `EnvironmentProblem` where `mode` is ``"auto"`` and none can be had."""
    require_choice("isolation", mode, MODES)
    if mode == "none" or (mode in ("auto", "bwrap") and _bwrap_works()):
        return "none" if mode == "none" else "bwrap"
    if mode == "bwrap":
        raise SettingError("--isolation", mode, "needs bubblewrap (bwrap), which does not work here")
    if sys.platform == "linux" and os.geteuid() == 0:
        if _can_read_solutions():
            folders = " ".join(_solution_folders())
            raise EnvironmentProblem(
                f"submissions could read the solutions in {folders}: install bubblewrap (bwrap), or in a container "
                f"that holds one submission close them to other users: chmod 700 {folders}"
            )
        return "user"
    if mode == "user":
        raise SettingError("--isolation", mode, "needs root on Linux: another user is switched to")
    raise EnvironmentProblem(
        "submissions cannot be isolated here: install bubblewrap (bwrap), or grade as root in a container that holds "
        "one submission; --trust-submissions runs them with the rights of this user"
    )


def _can_read_solutions() -> bool:
    """Whether the user of submissions could read the solutions."""

    def cannot_read() -> bool:
        confine("user", 10)
        return _are_hidden(_solution_folders())

    return not _holds(cannot_read)


def _are_hidden(folders: list[str]) -> bool:
    return not any(os.listdir(folder) for folder in folders if os.access(folder, os.R_OK | os.X_OK))


@lru_cache(maxsize=1)
def _bwrap_works() -> bool:
    """Whether bubblewrap works, gives ranks namespaces of their own, and hides the solutions."""
    if shutil.which("bwrap") is None:
        return False
    program = TRY.format(paths=import_paths(), folders=_solution_folders())
    # PATH may lead where only the caller may go.
    command = [*command_prefix("bwrap"), sys.executable, "-I", "-B", "-c", program]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    return False


def is_isolated(folders: list[str]) -> bool:
    """Inside bubblewrap: whether a rank is the first but one process that it sees, and sees nothing in the folders."""
    become_user("bwrap")

    def is_alone() -> bool:
        enter_namespaces()
        confine("bwrap", 10)
        if not (os.getpid() == 2 and not os.path.exists("/proc/self") and _are_hidden(folders)):
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    return _holds(is_alone)


def import_paths() -> list[str]:
    """Where this process imports its packages from."""
    return [path for path in sys.path if path and os.path.isdir(path)]


def submission_user() -> int:
    """The numeric user of submissions, which has no account."""
    return next(user for user in range(FIRST_USER, 1 << 30) if not _has_account(user))


def claim_user() -> socket.socket:
    """Keep other graders from the user of submissions, as the end of a case ends all its processes."""
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(CLAIM)
    except OSError:
        holder.close()
        raise EnvironmentProblem(
            "another submission is graded here already: with users as isolation, a container holds one submission"
        ) from None
    return holder


def command_prefix(mode: str) -> list[str]:
    """What precedes the command of a worker."""
    if mode != "bwrap":
        return []
    path = shutil.which("bwrap")
    assert path is not None
    needed = _needed_folders()
    above = sorted({parent for folder in needed for parent in folder.parents if parent != Path("/")})
    shown = [word for folder in above for word in ("--perms", "0755", "--dir", str(folder))]
    shown += [word for folder in needed for word in ("--ro-bind", str(folder), str(folder))]
    solutions = filter(os.path.isdir, _solution_folders())
    hidden = [word for folder in solutions for word in ("--tmpfs", folder, "--remount-ro", folder)]
    rights = BECOMING_A_USER if os.geteuid() == 0 else ("--unshare-user",)
    return [path, *BWRAP, *rights, *shown, *hidden, "--remount-ro", "/", "--"]


def _has_account(user: int) -> bool:
    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    return True


def become_worker(mode: str) -> None:
    """In the process that starts ranks: end with the grader, adopt processes of ended ranks, and be traced by none."""
    become_user(mode)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_DUMPABLE, 0)


def become_user(mode: str) -> None:
    """Inside bubblewrap that root has started: become the user of submissions, for whom all limits hold."""
    if mode == "bwrap" and os.geteuid() == 0:
        _switch_to(submission_user())


def _switch_to(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def enter_namespaces() -> None:
    """In a process that was forked for a rank: go on in a process of namespaces of its own, as whose this one ends.

    The rank is not the first process of its namespace, which no signal from inside ends. The kernel ends all others
    when that one ends, which it does after the rank: with the signal that ended the rank as its exit code.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(OWN_NAMESPACES):
        raise OSError(ctypes.get_errno(), "no namespaces of its own")
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for is_first in (False, True):
        if child := os.fork():
            _prctl(PR_SET_DUMPABLE, 0)
            _, status = os.waitpid(child, 0)
            os._exit(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0 if is_first else os.WEXITSTATUS(status))
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def confine(mode: str, seconds: int) -> None:
    """In the process of a rank: give up rights and set limits, before the submission is loaded."""
    os.setsid()
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
    for limit, value in limits.items():
        _, hard = resource.getrlimit(limit)
        last = value + (limit == resource.RLIMIT_CPU)  # so that the first signal is one that nothing else sends
        last = last if hard == resource.RLIM_INFINITY else min(last, hard)
        resource.setrlimit(limit, (min(value, last), last))
    if mode == "user":
        _switch_to(submission_user())
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user resets it
    os.umask(0o077)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    if mode != "none" and sys.platform == "linux":
        _drop_capabilities()
        if not refuse_calls():
            raise OSError("this machine does not refuse system calls")


def _drop_capabilities() -> None:
    """Give up the rights in its own namespaces."""
    header, none = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, none):
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")


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


def close_to_others(folder: Path) -> None:
    """Take the rights of other users: no process of a submission that has one may read the folder."""
    try:
        os.chmod(folder, stat.S_IMODE(folder.stat().st_mode) & ~stat.S_IRWXO)
    except OSError as error:
        raise EnvironmentProblem(f"{folder}: cannot be closed to other users: {error.strerror}") from None


def can_import(mode: str) -> bool:
    """Whether a confined process can read the files of Python and of this package."""

    def can_read() -> bool:
        confine(mode, 10)
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


Ends = dict[int, tuple[int, float]]
"""By process: how it ended, and its seconds of processor time."""


def reap(found: Ends) -> bool:
    """Add the processes that have ended; whether there are others."""
    with contextlib.suppress(ChildProcessError):
        while (one := os.wait4(-1, os.WNOHANG))[0]:
            found[one[0]] = one[1], one[2].ru_utime + one[2].ru_stime
        return True
    return False


def end_ranks(mode: str, found: Ends) -> None:
    """End every process that this process started, also those that left their session or changed their parent."""
    deadline = time.monotonic() + 10
    while reap(found) and time.monotonic() < deadline:
        _send_kill(mode)
        time.sleep(0.001)


def _send_kill(mode: str) -> None:
    """End all processes at once where they are all that this one sees, or have a user of their own."""
    with contextlib.suppress(ProcessLookupError):
        if mode == "bwrap":
            os.kill(-1, signal.SIGKILL)  # spares the caller
    if mode == "user":
        _end_processes_of(submission_user())
    for child in _children(os.getpid()) if mode == "none" else ():
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)


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
