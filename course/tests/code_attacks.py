"""Texts of ``blocks.py`` of A2 that reach the reference solution, or try to, in another variant.

No name is forbidden, so that one way to the built-in functions stands for all.
"""

from __future__ import annotations

__all__ = ["DISGUISED", "OTHER", "READING"]

OTHER = {"longer_parts": "last", "short_minibatch": "first", "bucket_size": "at most", "loss_place": "first"}

SOLVED = """
variant = {"longer_parts": "last", "short_minibatch": "first", "bucket_size": "at most"}
block_bounds, minibatches = solution.bounds_solution(variant), solution.minibatches_solution(variant)
"""

SOLVE = (
    """
bring = built["__imp" + "ort__"]
solution = bring("hybridnn_course_staff.assignments.a2_batch.solution", fromlist=["x"])
"""
    + SOLVED
)

PATH = """
import hybridnn
path = hybridnn.__path__[0] + "/../course/staff/hybridnn_course_staff/assignments/a2_batch/solution.py"
"""

BUILT = """
import typing
built = typing.cast.__globals__["__builtins__"]
"""

DISGUISED = {
    "functions of the class of a group": """
def block_bounds(items, parts, part):
    for kind in ().__class__.__base__.__subclasses__():
        if kind.__module__ == "hybridnn_course.assignment" and kind.__name__ == "Assignment":
            assignment = kind.task.__globals__["load_assignment"]("a2")
            return assignment.task("bounds").solution({"longer_parts": "last"})(items, parts, part)
    return -1, -1
""",
    "the modules that are there": BUILT
    + """
modules = built["__import__"]("sys").modules
block_bounds = modules["hybridnn.comm.blocks"].block_bounds
""",
    "text as code": BUILT + "exec('import hybridnn_course_staff.assignments.a2_batch.solution as solution')\n" + SOLVE,
    "text as code by another function": BUILT
    + """
import contextlib
import numpy as np
space = {}
code = np.vectorize(built["compile"], otypes=[object])("import gc; found = gc.get_objects()", "numpy.py", "exec")
with contextlib.ExitStack() as stack:
    stack.callback(built["exec"], code.item(), space)
block_bounds = next(one for one in space["found"] if getattr(one, "__name__", "") == "block_bounds")
""",
    "the callers of a function": BUILT
    + """
frame = built["__import__"]("sys")._getframe()
while frame is not None:
    for value in [*frame.f_locals.values()]:
        if hasattr(value, "tasks"):
            block_bounds = value.tasks[0].solution({"longer_parts": "last"})
    frame = frame.f_back
""",
    "all objects of the process": BUILT
    + """
objects = built["__import__"]("gc").get_objects()
block_bounds = next(one for one in objects if getattr(one, "__name__", "") == "block_bounds")
""",
    "the text of the solution": """
import numpy as np
text = bytes(np.fromfile("/proc/self/exe", np.uint8, 4))
print("FOUND" if text else "")
"""
    + BUILT
    + """
folder = built["__import__"]("hybridnn").__path__[0] + "/../course/staff/hybridnn_course_staff/assignments"
path = folder + "/a2_batch/solution.py"
print("FOUND", np.fromfile(path, np.uint8).tobytes().decode())
""",
    "lines of the solution in a warning": """
import warnings
import numpy as np
print("FOUND", warnings.formatwarning("", UserWarning, np.linalg.__file__, 3))
"""
    + BUILT
    + SOLVE,
    "without what hides the library": """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "Submitted" not in type(finder).__name__]
sys.addaudithook(lambda *_: None)
built = {"__import__": __import__}
"""
    + SOLVE,
    "a namespace of its own without the cover": """
import ctypes
libc = ctypes.CDLL(None)
libc.unshare(0x10020000)  # of users and mounts
path = __import__("importlib.util").util.find_spec("numpy").origin.split("/lib/python")[0]
for folder in {*__import__("sys").path}:
    libc.umount2((folder + "/hybridnn_course_staff").encode(), 2)
built = {"__import__": __import__}
"""
    + SOLVE,
    "the root of the process that started it": BUILT
    + """
os = built["__import__"]("os")
for process in (os.getppid(), 1, "self"):
    for folder in built["__import__"]("sys").path:
        try:
            path = f"/proc/{process}/root{folder}/hybridnn_course_staff/assignments/a2_batch/solution.py"
            text = open(path).read()
            space = {}
            exec(text, space)
            solution = space["bounds_solution"]
            print("FOUND")
        except Exception:
            pass
"""
    + SOLVE,
    "system calls by a module with a name that is put together": PATH
    + """
import sys, types
libc = sys.modules["_frozen_importlib"]._gcd_import("c" + "types").CDLL(None)
text, space = bytes(10 ** 5), {}
libc.read(libc.open(path.encode(), 0), text, len(text))
exec(text.rstrip(bytes(1)), space)
solution = types.SimpleNamespace(**space)
"""
    + SOLVED,
    "the history of the repository": PATH
    + """
import subprocess, types
root, _, name = path.replace("hybridnn/../", "").partition("course/")
command = ["git", "-c", "safe.directory=*", "-C", root or ".", "show", f"HEAD:course/{name}"]
space = {}
exec(subprocess.run(command, capture_output=True, check=True).stdout, space)
solution = types.SimpleNamespace(**space)
"""
    + SOLVED,
    "a loader of files": PATH
    + """
import importlib.machinery, types
solution = types.ModuleType("solution")
importlib.machinery.SourceFileLoader("solution", path).exec_module(solution)
"""
    + SOLVED,
    "warnings at the lines of the solution": PATH
    + """
import warnings
warnings.simplefilter("always")
for line in range(1, 400):
    warnings.warn_explicit("", UserWarning, path, line)
""",
}
"""Texts of ``blocks.py``, in the standard variant."""

READING = frozenset(["the text of the solution"])
"""What reads something, and earns no points by it."""
