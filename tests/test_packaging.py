"""The wheel has what the package needs and works where only it is installed; recipes agree with `setup.py`."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hybridnn import __version__
from mpi_runner.slowness import deadline

ROOT = Path(__file__).parents[1]
PACKAGING = ROOT / "packaging"
FOLDERS = {"hybridnn": "hybridnn", "datasets": "hybridnn/datasets", "hpc_jobs": "hybridnn/hpc_jobs"}
FOLDERS["assignments"] = "hybridnn/assignments"

pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="not in a checkout")


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s<>=!~;\[]", text, maxsplit=1)[0].lower() for text in requirements}


def required() -> set[str]:
    """Requirements in `setup.py`."""
    for node in ast.walk(ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "install_requires":
            return names_of(ast.literal_eval(node.value))
    raise AssertionError("no install_requires")


# -- the wheel --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from the files that git knows."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a checkout of git")
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=deadline(240))
    assert done.returncode == 0, done.stderr
    (found,) = out.glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    expected = set()
    for name in listed:
        folder, _, rest = name.partition("/")
        if folder in FOLDERS and rest and (ROOT / name).exists() and not name.endswith(".md"):
            expected.add(f"{FOLDERS[folder]}/{rest}")
    handouts = {name for name in found if name.endswith("handout.md")}
    templates = {name for name in found if "/templates/" in name}
    assert len(handouts) == 8
    assert found - handouts - templates == expected - templates


@pytest.mark.slow
def test_the_wheel_trains_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """With ``-S``, Python does not read the file by which the checkout may be installed."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    paths = [str(tmp_path / "installed"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "OPENBLAS_NUM_THREADS": "1"}
    work = tmp_path / "empty"
    work.mkdir()

    def run(*arguments: str) -> str:
        command = [sys.executable, "-S", *arguments]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=deadline(120))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = run("-c", "import hybridnn, hybridnn.datasets; print(hybridnn.__file__)")
    assert where.startswith(str(tmp_path / "installed"))
    assert "accuracy" in run("-m", "hybridnn", "train", "--epochs", "1", "-q", "--out", "one")
    assert "accuracy" in run("-m", "hybridnn", "train", "--in-process", "2", "--epochs", "1", "-q", "--out", "two")
    assert "handout.md" in run("-m", "hybridnn", "course", "start", "a2")


# -- recipes ----------------------------------------------------------------------------------------------------------


def test_the_recipe_for_conda_has_the_requirements_of_the_package() -> None:
    text = (PACKAGING / "conda-forge/recipe.yaml").read_text(encoding="utf-8")
    yaml = pytest.importorskip("yaml")
    recipe: dict[str, Any] = yaml.safe_load(text)
    assert recipe["context"]["version"] == __version__
    names = names_of(recipe["requirements"]["run"]) - {"python"}
    assert {name.removesuffix("-base") for name in names} == required()


def test_the_recipe_for_spack_has_the_requirements_of_the_package() -> None:
    tree = ast.parse((PACKAGING / "spack/package.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    texts = {node.func.id: [] for node in calls if isinstance(node.func, ast.Name)}  # type: dict[str, list[str]]
    for node in calls:
        if node.args and isinstance(node.args[0], ast.Constant):
            texts[node.func.id].append(str(node.args[0].value))  # type: ignore[union-attr]
    assert texts["version"] == [__version__]
    found = {re.split("[@+]", text)[0].removeprefix("py-") for text in texts["depends_on"]}
    assert found - {"python", "setuptools", "cupy"} == required()


def test_the_containers_install_the_package_with_known_extras() -> None:
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    known = set(re.findall(r'^        "(\w+)": ', setup, re.MULTILINE))
    docker = (PACKAGING / "containers/Dockerfile").read_text(encoding="utf-8")
    instructions = {line.split()[0] for line in docker.splitlines() if re.match(r"[A-Z]+ ", line)}
    assert instructions == {"ARG", "FROM", "COPY", "RUN", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
    assert {"openmpi", "mpich", "cuda12"} <= known
    for text in (docker, (PACKAGING / "containers/hybridnn.def").read_text(encoding="utf-8")):
        assert "hybridnn --version" in text
        assert {name for name in re.findall(r"(?:=|\[|,)(openmpi|mpich|cuda\d+)", text)} <= known


def test_the_citation_has_the_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in text
    yaml = pytest.importorskip("yaml")
    fields = yaml.safe_load(text)
    assert {"cff-version", "message", "title", "authors", "license", "type"} <= set(fields)


def test_the_workflow_calls_the_same_command_as_everywhere() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["all"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["bash .ci/run"]
    assert workflow["jobs"]["all"]["timeout-minutes"] == 90


def test_all_supported_versions_of_python_are_in_the_matrix() -> None:
    pythons = ast.literal_eval(re.search(r"^PYTHONS = (\(.*\))$", (ROOT / "noxfile.py").read_text(), re.MULTILINE)[1])  # type: ignore[index]
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    assert tuple(re.findall(r'Python :: (3\.\d+)"', setup)) == pythons
    assert f'python_requires=">={pythons[0]}"' in setup
