"""Attacks by several ranks: they exchange data without the grader, or deceive it about their messages.

Each is the text of ``gradient.py`` of A2; the other file is the stub.
"""

from __future__ import annotations

__all__ = ["GRADIENT", "MEETINGS"]

_GRADIENT = """
import os
from contextlib import suppress
import numpy as np

def local(weights, bias, x, labels):
    logits = x @ weights.T + bias
    e = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    p = e / e.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(p[rows, labels]).sum()
    p[rows, labels] -= 1
    return np.concatenate([(p.T @ x).ravel(), p.sum(axis=0), [loss, len(labels)]])

def finish(weights, total):
    mean = total[:-1] / total[-1]
    return mean[: weights.size].reshape(weights.shape), mean[weights.size : -1], float(mean[-1])
"""

GRADIENT = {
    "meet in a file": _GRADIENT
    + """
import time
def global_gradient(group, weights, bias, x, labels):
    for folder in ("/tmp", "/var/tmp", "/dev/shm", "."):
        with suppress(OSError):
            np.save(f"{folder}/part-{group.rank}.npy", local(weights, bias, x, labels))
            time.sleep(0.3)
            parts = [np.load(f"{folder}/part-{rank}.npy") for rank in range(group.size)]
            return finish(weights, sum(parts))
    raise ValueError("no folder")
""",
    "meet in a file for all": _GRADIENT
    + """
import time
os.umask(0)
def global_gradient(group, weights, bias, x, labels):
    tag = int(abs(weights).sum() * 10 ** 6)
    np.save(f"/tmp/part-{tag}-{group.rank}.npy", local(weights, bias, x, labels))
    time.sleep(0.3)
    parts = [np.load(f"/tmp/part-{tag}-{rank}.npy") for rank in range(group.size)]
    return finish(weights, sum(parts))
""",
    "meet in shared memory for all": _GRADIENT
    + """
import ctypes, time
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
def shared(tag, rank, size):
    place = libc.shmat(libc.shmget(tag + rank, 8 * size, 0o1666), None, 0)
    return np.ctypeslib.as_array((ctypes.c_double * size).from_address(place))
def global_gradient(group, weights, bias, x, labels):
    own, tag = local(weights, bias, x, labels), int(abs(weights).sum() * 10 ** 6) % 2 ** 29
    shared(tag, group.rank, len(own))[:] = own
    time.sleep(0.3)
    return finish(weights, sum(shared(tag, rank, len(own)).copy() for rank in range(group.size)))
""",
    "meet at a socket": _GRADIENT
    + """
import socket, time
def global_gradient(group, weights, bias, x, labels):
    own = local(weights, bias, x, labels)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    server.bind(f"\\0meet-{group.rank}")
    server.settimeout(0.5)
    time.sleep(0.3)
    for rank in range(group.size):
        server.sendto(own.tobytes(), f"\\0meet-{rank}")
    parts = [np.frombuffer(server.recv(10 ** 6)) for _ in range(group.size)]
    return finish(weights, sum(parts))
""",
    "meet in shared memory": _GRADIENT
    + """
import time
from multiprocessing import shared_memory
def global_gradient(group, weights, bias, x, labels):
    own = local(weights, bias, x, labels)
    block = shared_memory.SharedMemory(f"meet-{group.rank}", create=True, size=own.nbytes)
    np.ndarray(own.shape, own.dtype, block.buf)[:] = own
    time.sleep(0.3)
    total = sum(
        np.ndarray(own.shape, own.dtype, shared_memory.SharedMemory(f"meet-{rank}").buf) for rank in range(group.size)
    )
    return finish(weights, total)
""",
    "meet in a global": _GRADIENT
    + """
import time
parts = {}
def global_gradient(group, weights, bias, x, labels):
    parts[group.rank] = local(weights, bias, x, labels)
    time.sleep(0.1)
    return finish(weights, sum(parts[rank] for rank in range(group.size)))
""",
    "read another rank's memory": _GRADIENT
    + """
import re
def global_gradient(group, weights, bias, x, labels):
    total = local(weights, bias, x, labels)
    for process in filter(str.isdigit, os.listdir("/proc")):
        if int(process) != os.getpid():
            open(f"/proc/{process}/mem", "rb").read(1)
    return finish(weights, total * group.size)
""",
    "another operation": _GRADIENT
    + """
def global_gradient(group, weights, bias, x, labels):
    total = local(weights, bias, x, labels)
    group.broadcast(total)
    return finish(weights, total)
""",
    "calls of its own": _GRADIENT
    + """
def global_gradient(group, weights, bias, x, labels):
    total = local(weights, bias, x, labels)
    for name in ("__class__", "_transport", "eval", "_begin"):
        group._exchange({"do": name, "array": total, "site": ["/etc/passwd", -1, "x" * 10_000]})
    return finish(weights, total)
""",
    "meet in the locks of a file": _GRADIENT
    + """
import fcntl, struct, time
LOCK = "hhqqi4x"
def global_gradient(group, weights, bias, x, labels):
    own = local(weights, bias, x, labels)
    file = open(np.__file__)  # every 4 bytes are the place of a lock
    words = own.view(np.uint32)
    for number, word in enumerate(words, group.rank * len(words)):
        fcntl.lockf(file, fcntl.LOCK_SH, 1, number << 40 | int(word))
    time.sleep(0.3)
    for number in range((1 - group.rank) * len(words), (2 - group.rank) * len(words)):
        asked = struct.pack(LOCK, fcntl.F_WRLCK, 0, number << 40, 1 << 40, 0)
        words[number % len(words)] = struct.unpack(LOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))[2] & 0xFFFFFFFF
    time.sleep(0.3)
    return finish(weights, own + local(weights, bias, x, labels))
""",
    "meet in what is printed": _GRADIENT
    + """
import time
def global_gradient(group, weights, bias, x, labels):
    own = local(weights, bias, x, labels)
    os.write(1, own.tobytes())
    time.sleep(0.3)
    for opened in (lambda: os.open("/proc/self/fd/1", os.O_RDONLY), lambda: 1):
        with suppress(OSError):
            parts = os.pread(opened(), own.nbytes * group.size, 0)
            return finish(weights, np.frombuffer(parts).reshape(group.size, -1).sum(axis=0))
    raise ValueError("cannot be read")
""",
    "floods the grader with small calls": _GRADIENT
    + """
def global_gradient(group, weights, bias, x, labels):
    while True:
        group._exchange({"do": "allreduce", "array": np.ones(1), "operation": "sum", "site": ["x", 1, "x"]})
""",
    "floods the grader": _GRADIENT
    + """
def global_gradient(group, weights, bias, x, labels):
    huge = np.ones(2 ** 20)
    while True:
        group._exchange({"do": "allreduce", "array": huge, "operation": "sum", "site": ["x", 1, "x"]})
""",
}
"""Texts of ``gradient.py``; only cases of one rank can be right by them."""

_MEETING = """
import ctypes, fcntl, os, select, signal, socket, time
import numpy as np
libc = ctypes.CDLL(None)
got = []
def read_in_time(descriptor):
    return 44 if select.select([descriptor], [], [], 0.5)[0] else 0
def global_gradient(group, weights, bias, x, labels):
    try:
        if group.rank == 0:
            TELL
            time.sleep(0.6)
        else:
            time.sleep(0.3)
            print("MET" if ASK == 44 else "")
    except (OSError, AttributeError, ValueError) as error:
        print(error)
"""
_OTHERS = "[one for one in range(1, 400) if one != os.getpid()]"

MEETINGS = {
    name: _MEETING.replace("TELL", tell).replace("ASK", ask)
    for name, (tell, ask) in {
        "position of what is printed": ("os.lseek(1, 44, 0)", "os.lseek(1, 0, 1)"),
        "size of what is printed": ("os.ftruncate(1, 44)", "os.fstat(1).st_size"),
        "signal of a descriptor": ("fcntl.fcntl(0, 10, 44)", "fcntl.fcntl(0, 11)"),
        "flags of a descriptor": ("fcntl.fcntl(2, 4, os.O_NONBLOCK)", "44 * bool(fcntl.fcntl(2, 3) & os.O_NONBLOCK)"),
        "terminals": ("got.append(os.open('/dev/ptmx', 2))", "44 * ('0' in os.listdir('/dev/pts'))"),
        "watched files": (
            "[(open(np.__file__).read(1), time.sleep(0.01)) for _ in range(80)]",
            "(got.append(libc.inotify_init()), libc.inotify_add_watch(got[0], np.__file__.encode(), 0x21), "
            "read_in_time(got[0]))[2]",
        ),
        "a watched folder": (
            "[(os.listdir('/usr'), time.sleep(0.01)) for _ in range(80)]",
            "(signal.signal(signal.SIGIO, lambda *_: got.append(44)), "
            "fcntl.fcntl(os.open('/usr', 0), 1026, 0x80000001), time.sleep(0.5), sum(got[:1]))[3]",
        ),
        "names of processes": (
            "libc.prctl(15, b'met44')",
            "44 * any('met44' in open(f'/proc/{one}/comm').read() for one in os.listdir('/proc') if one.isdigit())",
        ),
        "priorities": ("os.nice(7)", f"44 * any(libc.getpriority(0, one) == 7 for one in {_OTHERS})"),
        "signals": (
            f"[libc.kill(one, signal.SIGUSR1) for one in {_OTHERS}]",
            "(signal.signal(signal.SIGUSR1, lambda *_: got.append(44)), time.sleep(0.5), sum(got[:1]))[2]",
        ),
        "a named pipe": ("os.mkfifo('/tmp/meet-pipe')", "44 * os.path.exists('/tmp/meet-pipe')"),
        "the name of the machine": ("socket.sethostname('met44')", "44 * (socket.gethostname() == 'met44')"),
        "a lock of a whole file": (
            "got.append(open(np.__file__)); fcntl.flock(got[0], 2)",
            "44 * bool(libc.flock(os.open(np.__file__, 0), 6) and not libc.flock(os.open(os.__file__, 0), 6))",
        ),
    }.items()
}
"""Texts of ``gradient.py`` by which rank 0 would tell rank 1 a number: it prints that they met."""
