"""Write the recipes for conda-forge and Spack, and the version in ``CITATION.cff``, from ``setup.py``.

``python packaging/recipes.py`` writes them; with ``--check`` it names those that differ, with exit code 1.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "# requirements, by packaging/recipes.py", "# end of requirements"
CONDA_NAMES = {"matplotlib": "matplotlib-base"}  # without a window system
ONLY_OLD = re.compile(r"; python_version < '3\.(\d+)'$")


def requirements() -> list[str]:
    """Requirements of the library in ``setup.py``."""
    for node in ast.walk(ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "install_requires":
            return list(ast.literal_eval(node.value))
    raise RuntimeError("setup.py has no install_requires")


def parts(requirement: str) -> tuple[str, str, str]:
    """Name, oldest version and the last Python that needs it of a requirement; either may be empty."""
    name, _, oldest = ONLY_OLD.sub("", requirement).partition(">=")
    old = ONLY_OLD.search(requirement)
    return name, oldest, f"3.{int(old[1]) - 1}" if old else ""


def conda(name: str, oldest: str, _: str) -> str:
    """A line of the recipe for conda-forge; a package for all Pythons has the requirements of each."""
    return f"    - {CONDA_NAMES.get(name, name)}{f' >={oldest}' if oldest else ''}\n"


def spack(name: str, oldest: str, python: str) -> str:
    """A line of the recipe for Spack."""
    when = f', when="^python@:{python}"' if python else ""
    return f'    depends_on("py-{name}{f"@{oldest}:" if oldest else ""}", type=("build", "run"){when})\n'


def rewritten(text: str, release: str, lines: str = "") -> str:
    """A file with the version and, between the two comments, the requirements."""
    text = re.sub(
        r'^((?:  )?version: "?|    pypi = "hybridnn/hybridnn-|    version\(")\d[\w.]*?(?="|\.tar|$)',
        rf"\g<1>{release}",
        text,
        flags=re.M,
    )
    return re.sub(rf"( *{BEGIN}\n).*?( *{END}\n)", lambda found: found[1] + lines + found[2], text, flags=re.S)


def files() -> dict[Path, str]:
    """What each file should hold."""
    (release,) = re.findall(
        r'^__version__ = "(.+)"$', (ROOT / "hybridnn/_version.py").read_text(encoding="utf-8"), re.M
    )
    needed = [parts(requirement) for requirement in requirements()]
    lines = {
        ROOT / "packaging/conda-forge/recipe.yaml": "".join(conda(*part) for part in needed),
        ROOT / "packaging/spack/package.py": "".join(spack(*part) for part in needed),
        ROOT / "CITATION.cff": "",
    }
    return {path: rewritten(path.read_text(encoding="utf-8"), release, text) for path, text in lines.items()}


def main() -> None:
    """Write the files, or compare them."""
    changed = {path: text for path, text in files().items() if path.read_text(encoding="utf-8") != text}
    if "--check" in sys.argv:
        sys.exit("\n".join(f"{path.relative_to(ROOT)} differs: python packaging/recipes.py" for path in changed) or 0)
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
