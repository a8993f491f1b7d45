"""Texts of ``blocks.py`` of A2 that reach the reference solution, or try to, in another variant.

Most of them get at the variables of a module of Python, among which are the built-in functions.
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

CATCHER = """
import functools
class Catcher:
    found = {}
    def __setattr__(self, name, value):
        Catcher.found[name] = value
"""

BUILT = """
import typing
built = typing.cast.__globals__["__builtins__"]
"""

WIDE = "\uff47\uff45\uff54\uff41\uff54\uff54\uff52"
"""Letters that Python reads as ``getattr``."""

DISGUISED = {
    "update_wrapper copies variables": CATCHER
    + """
functools.update_wrapper(Catcher(), functools.wraps, assigned=("__globals__",), updated=())
built = Catcher.found["__globals__"]["__builtins__"]
"""
    + SOLVE,
    "wraps copies variables": CATCHER
    + """
functools.wraps(functools.wraps, assigned=("__glo" + "bals__",), updated=())(Catcher())
built = Catcher.found["__glo" + "bals__"]["__buil" + "tins__"]
"""
    + SOLVE,
    "code objects from bytes": """
import typing
types = typing.types
try:
    code = types.CodeType(0, 0, 0, 0, 2, 64, bytes(6), (None,), (), (), "x", "x", "x", 1, b"", b"")
    function = types.FunctionType(code, {})
except TypeError:  # the arguments are others in each version of Python
    pass
"""
    + BUILT
    + SOLVE,
    "patterns by position": """
import abc
import functools
X = type("X", (abc.ABC,), {"__match_args__": ("__globals__",)})
X.register(type(functools.wraps))
match functools.wraps:
    case X(found):
        built = found["__builtins__"]
"""
    + SOLVE,
    "names of patterns that are put together": """
import abc
import functools
X = type("X", (abc.ABC,), {"__match_" + "args__": ("__glo" + "bals__",)})
X.register(type(functools.partialmethod.mro))
X.register(type(lambda: 0))
match functools.reduce and functools.total_ordering:
    case X(found):
        built = found["__buil" + "tins__"]
"""
    + SOLVE,
    "patterns of a data class": """
import abc
import dataclasses
X = dataclasses.make_dataclass("X", ["_" + "_globals__"], bases=(abc.ABC,))
X.register(type(lambda: 0))
match dataclasses.replace:
    case X(found):
        built = found["_" + "_builtins__"]
"""
    + SOLVE,
    "format strings": """
import functools
text = "{0.__globals__[__builtins__]}".format(functools.wraps)
print("FOUND" if "__import__" in text else "")
"""
    + BUILT
    + SOLVE,
    "format strings that are put together": """
import functools
names = "__glo" + "bals__", "__buil" + "tins__"
text = ("{0." + names[0] + "[" + names[1] + "]}").format(functools.wraps)
print(text)
""",
    "copies with a state": """
import copy
class State:
    def __reduce_ex__(self, protocol):
        return (lambda: target), (), (None, {"__match_" + "args__": ("x",)})
class target:
    pass
copy.copy(State())
"""
    + BUILT
    + SOLVE,
    "attributes of a class decide": """
import functools
class Everything:
    @classmethod
    def __class_getitem__(cls, item):
        return cls
    def __getattribute__(self, name):
        return functools.wraps.__globals__["__builtins__"]
built = Everything().x
"""
    + SOLVE,
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
    "the modules of Python by a class of its library": """
import contextlib
class R(contextlib.redirect_stdout):
    _stream = "modules"
r = R({})
with r:
    modules = r._old_targets[0]
built = {"__import__": modules["builtins"].__import__}
"""
    + SOLVE,
    "code in the annotations of a data class": """
import dataclasses
code = "str(globals().update(built={'__import__': __import__})) or int"
X = type("X", (), {"__annot" + "ations__": {"x: " + code + " #": int}})
try:
    dataclasses.dataclass(init=False, eq=False, match_args=False)(X)
    repr(X())
except Exception:
    pass
"""
    + BUILT
    + SOLVE,
    "any memory as an array": """
import numpy as np
def f(): pass
def at(address, typestr, n):
    about = {"data": (address, False), "shape": (n,), "typestr": typestr, "version": 3}
    return np.asarray(type("X", (), {"__array_" + "interface__": about})())
try:
    built = at(id(f) + 16, "|O", 1)[0]["__builtins__"]
except Exception:
    pass
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
    "another name for NumPy": """
import numpy as np
n = np
built = n._core._internal.__builtins__
"""
    + SOLVE,
    "fullwidth letters": f"""
import functools
built = {WIDE}(functools.wraps, "__glo" + "bals__")["__buil" + "tins__"]
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
    "another name for a field of a data class": """
import dataclasses
@dataclasses.dataclass
class X:
    x: int = 0
dataclasses.fields(X)[0].name = "__cl" + "ass__"
(kind,) = dataclasses.asdict(X()).values()
built = kind.__init__.__globals__["__builtins__"]
"""
    + SOLVE,
    "other defaults of a function by a state": CATCHER
    + """
import copy
state = {"__defaults__": (("__glo" + "bals__",), ())}
copy.dispatch_table[Catcher] = lambda _: ((lambda: functools.update_wrapper), (), (None, state))
copy.copy(Catcher())
functools.update_wrapper(Catcher(), functools.wraps)
built = Catcher.found["__globals__"]["__builtins__"]
"""
    + SOLVE,
    "memory beside an array": """
import numpy as np
print("FOUND", np.lib.stride_tricks.as_strided(np.zeros(1), (1000,), (8,)).sum())
"""
    + BUILT
    + SOLVE,
}
"""Texts of ``blocks.py``, in the standard variant."""

READING = frozenset(["format strings that are put together", "the text of the solution"])
"""Those that read something, and earn no points by it."""
