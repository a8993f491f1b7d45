"""The CUDA source compiles for all supported devices with the compiler that CuPy calls; it is not run."""

import ctypes
import locale
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridnn.gpu.cupy_launch import FOLDER, OPTIONS, restore_locale, source
from mpi_runner.slowness import deadline
from reference.emulated_kernels import without_compiler

pytestmark = pytest.mark.slow

WANTED = {12: ("70", "80", "90", "100"), 13: ("80", "90", "100")}
"""Volta, Ampere, Hopper and Blackwell, by version of CUDA; CUDA 13 dropped Volta."""
TARGETS = [(version, architecture) for version, architectures in WANTED.items() for architecture in architectures]

FLAGS_OF_CUPY = ("-ftz=true", "--device-as-default-execution-space")
"""Options that CuPy 14 adds: subnormal float32 become zero."""
NEWEST = "nvidia-cuda-nvrtc>=13"
SECONDS = 100
EARLIER = {
    "12.0": "nvidia-cuda-nvrtc-cu12",
    "12.4": "nvidia-cuda-nvrtc-cu12",
    "12.8": "nvidia-cuda-nvrtc-cu12",
    "13.0": "nvidia-cuda-nvrtc",
}
"""Versions that clusters have, and their wheels."""


def nvrtc_libraries() -> list[str]:
    """Names of NVRTC libraries, the compiler that CuPy calls: those of wheels, and those of the system."""
    folders = [Path(entry) / "nvidia" for entry in sys.path]
    wheels = {str(path) for folder in folders for path in folder.glob("*/lib/libnvrtc.so.1?")}
    system = ["libnvrtc.so.12", "libnvrtc.so.13"]
    return [*sorted(wheels), *(name for name in system if not any(wheel.endswith(name) for wheel in wheels))]


class Nvrtc:
    def __init__(self, name: str) -> None:
        self._library = ctypes.CDLL(name)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version, count = major.value, ctypes.c_int()
        self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        architectures = (ctypes.c_int * count.value)()
        self._library.nvrtcGetSupportedArchs(architectures)
        self.architectures = {str(number) for number in architectures}

    def compile(self, code: str, options: tuple[str, ...]) -> tuple[int, str]:
        """Return the status, 0 for success, and the compiler's messages."""
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._library.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"kernels.cu", 0, None, None)
        arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = self._library.nvrtcCompileProgram(program, len(options), arguments)
        self._library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        messages = ctypes.create_string_buffer(size.value)
        self._library.nvrtcGetProgramLog(program, messages)
        self._library.nvrtcDestroyProgram(ctypes.byref(program))
        return status, messages.value.decode()


def loadable() -> Iterator[Nvrtc]:
    for name in nvrtc_libraries():
        try:
            yield Nvrtc(name)
        except OSError:
            continue


@pytest.fixture(autouse=True)
def _locale() -> Iterator[None]:
    """Compilers leave the thread with the locale "C", in which other tests would read files as ASCII."""
    yield
    restore_locale()


@pytest.mark.parametrize("version", WANTED)
def test_the_locale_is_that_of_before(compilers: dict[int, Nvrtc], version: int) -> None:
    before = locale.nl_langinfo(locale.CODESET)
    compiler_of(compilers, version).compile(source(), (*OPTIONS, "-DREAL=float", *FLAGS_OF_CUPY))
    restore_locale()
    assert locale.nl_langinfo(locale.CODESET) == before


@pytest.fixture(scope="module")
def compilers() -> dict[int, Nvrtc]:
    """NVRTC by version of CUDA."""
    return {compiler.version: compiler for compiler in loadable()}


def compiler_of(compilers: dict[int, Nvrtc], version: int) -> Nvrtc:
    if version not in compilers:
        without_compiler(f"no NVRTC {version}: pip install '{'nvidia-cuda-nvrtc-cu12' if version == 12 else NEWEST}'")
    return compilers[version]


@pytest.mark.parametrize("real", ["float", "double"])
@pytest.mark.parametrize(("version", "architecture"), TARGETS)
def test_nvrtc_compiles(compilers: dict[int, Nvrtc], version: int, architecture: str, real: str) -> None:
    compiler = compiler_of(compilers, version)
    if architecture not in compiler.architectures:
        without_compiler(f"this NVRTC {version} does not know sm_{architecture}: install its last version")
    require_compiles(compiler, architecture, real)


@pytest.fixture(scope="module", params=EARLIER)
def earlier_compiler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Nvrtc:
    """An NVRTC of a version that clusters have, from its wheel."""
    folder = tmp_path_factory.mktemp("nvrtc")
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    wanted = f"{EARLIER[request.param]}=={request.param}.*"
    done = subprocess.run([*download, wanted], capture_output=True, text=True, timeout=deadline(SECONDS))
    if done.returncode != 0:
        without_compiler(f"pip cannot download {wanted}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    # That of 13.0 does not look for its second library beside itself.
    ctypes.CDLL(str(next(folder.glob("nvidia/*/lib/libnvrtc-builtins.so.*"))))
    return Nvrtc(str(next(folder.glob("nvidia/*/lib/libnvrtc.so.1?"))))


@pytest.mark.parametrize("real", ["float", "double"])
def test_earlier_versions_compile(earlier_compiler: Nvrtc, real: str) -> None:
    """NVRTC before 12.9 refuses an option that is given twice, once by the package and once by CuPy."""
    known = [one for one in WANTED[earlier_compiler.version] if one in earlier_compiler.architectures]
    assert {"80", "90"} <= set(known)
    for architecture in known:
        require_compiles(earlier_compiler, architecture, real)


def require_compiles(compiler: Nvrtc, architecture: str, real: str) -> None:
    options = (*OPTIONS, f"-DREAL={real}", *FLAGS_OF_CUPY, f"-arch=sm_{architecture}")
    status, messages = compiler.compile(source(), options)
    assert status == 0, messages
    assert "error" not in messages


@pytest.mark.parametrize("version", WANTED)
def test_compiler_messages_name_the_file(compilers: dict[int, Nvrtc], version: int) -> None:
    broken = source().replace("KERNEL row_sums(", "KERNEL row_sums(Nothing nothing, ")
    status, messages = compiler_of(compilers, version).compile(broken, (*OPTIONS, "-DREAL=float", *FLAGS_OF_CUPY))
    assert status != 0
    assert "layers.cu(" in messages


def test_all_source_files_are_compiled() -> None:
    files = {path.name for path in FOLDER.iterdir()}
    parts = {line.split('"')[1] for line in source().splitlines() if line.startswith("#line 1 ")}
    assert parts == files | {"activations"}  # these are generated from the table of activation functions
