"""Parts of the pages that are generated from the package: settings, study files, commands, Python, algorithms.

``python docs/reference_pages.py`` writes them into the pages, between lines ``<!-- generated: NAME -->`` and
``<!-- end of NAME -->``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer.models import ArgumentInfo

from hybridnn.config.reference import Setting, keys_of, settings

__all__ = [
    "ANIMATIONS",
    "PAGES",
    "Setting",
    "algorithms",
    "animation",
    "command_line",
    "rewritten",
    "settings",
    "settings_table",
    "statement_keys",
    "study_keys",
    "study_table",
]

ANIMATIONS = {
    "pictures/animations/1f1b.html": {"microbatches": 8},
    "pictures/animations/pipedream.html": {"minibatches": 8},
    "pictures/animations/spectrain.html": {"minibatches": 8},
}
"""Pages that play a schedule of four stages, by their place in the site."""
DOCS = Path(__file__).resolve().parent
PAGES = tuple(DOCS / "reference" / f"{name}.md" for name in ("command-line", "papers", "python", "settings", "studies"))
"""Pages with generated parts."""
MARKED = re.compile(
    r"(?P<begin><!-- generated: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end of (?P=name) -->)", re.DOTALL
)
CODE = re.compile(r"``(.+?)``|`(.+?)`")


def settings_table() -> str:
    """A table for every section of the settings, with the first sentences of their descriptions."""
    parts = []
    for section, rows in groupby(settings(), lambda row: row.name.rpartition(".")[0]):
        parts += [f"## [{section}]", _rows("setting", (replace(row, description=row.summary) for row in rows))]
    return "\n\n".join(parts)


def study_keys() -> list[Setting]:
    """All keys of a study file, by the schema that checks it; ``NAME`` stands for a name and ``[]`` for elements."""
    from hybridnn.study.study_file import StudyFile

    return list(keys_of(StudyFile))


def statement_keys() -> list[Setting]:
    """The keys of a study file that hybridnn-papers checks."""
    from hybridnn_papers.statements import Conclusions

    return list(keys_of(Conclusions))


def measure_table() -> str:
    """The measures of runs that statements compare."""
    from hybridnn_papers.measures import MEASURES

    lines = ["| measure | description | kind |", "|---|---|---|"]
    lines += [f"| `{name}` | {measure.description} | {measure.kind} |" for name, measure in MEASURES.items()]
    return "\n".join(lines)


def study_table() -> str:
    """The keys of a study file, and the axes."""
    from hybridnn.study.axes import AXES

    axes = ["| axis | in tables and names | values |", "|---|---|---|"]
    axes += [f"| `{axis.name}` | {axis.label} | {_words(axis.description)} |" for axis in AXES.values()]
    return "\n".join(["## Keys", "", _rows("key", study_keys()), "", "## Axes", "", *axes])


def _rows(head: str, rows: Iterable[Setting]) -> str:
    """A table of settings or keys."""
    lines = [f"| {head} | allowed | default | description |", "|---|---|---|---|"]
    cells = ((f"`{row.name}`", row.allowed, row.default, row.description) for row in rows)
    return "\n".join(lines + [f"| {' | '.join(map(_words, row))} |" for row in cells])


def command_line() -> str:
    """Every command with its arguments and options."""
    from hybridnn.cli.main import application

    return "\n\n".join(_commands("hybridnn", application()))


def _commands(name: str, app: Any) -> Iterator[str]:
    for command in app.registered_commands:
        yield from _command(f"{name} {command.name or command.callback.__name__.replace('_', '-')}", command.callback)
    for group in app.registered_groups:
        yield from _commands(f"{name} {group.name}", group.typer_instance)


def _command(name: str, callback: Callable[..., None]) -> Iterator[str]:
    rows, arguments = [], []
    for parameter in inspect.signature(callback, eval_str=True).parameters.values():
        kind, info = get_args(parameter.annotation)[:2]
        value = info.metavar or " or ".join(_values(kind))
        default = "" if parameter.default in (parameter.empty, None, False) else parameter.default
        if isinstance(info, ArgumentInfo):
            arguments.append(value if parameter.default is parameter.empty or value[0] == "[" else f"[{value}]")
            names = f"`{arguments[-1]}`"
        else:
            # In Annotated, Typer stores the first name of an option as its default.
            given = [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str)]
            given = given or [f"--{parameter.name.replace('_', '-')}"]
            names = ", ".join(f"`{name}`" for name in [*given[:-1], f"{given[-1]} {value}".strip()])
            default = "required" if parameter.default is parameter.empty else default
        shown = str(getattr(default, "value", default))
        rows.append(f"| {_words(names)} | {_words(info.help)}{f' [{_words(shown)}]' if shown else ''} |")
    yield f"## {name}\n\n{_words((inspect.getdoc(callback) or '').partition(chr(10) * 2)[0])}"
    yield f"```text\n{' '.join([name, '[OPTIONS]', *arguments])}\n```"
    if rows:
        yield "| argument or option | description [default] |\n|---|---|\n" + "\n".join(rows)


def _values(kind: Any) -> Iterator[str]:
    """What an option without a name for its value accepts: the choices, nothing for a flag."""
    for choice in (kind,) if get_origin(kind) is Literal else get_args(kind) or (kind,):
        if get_origin(choice) is Literal:
            yield ", ".join(get_args(choice))
        elif choice in (int, float, str, Path):
            yield {int: "N", float: "X", str: "TEXT", Path: "PATH"}[choice]


def python_names() -> str:
    """The names on the page of the Python API, each with the first sentence of its docstring."""
    lines = ["| name | what it is |", "|---|---|"]
    for name in re.findall(r"^::: ([\w.]+)$", (DOCS / "reference" / "python.md").read_text(encoding="utf-8"), re.M):
        module, _, attribute = name.rpartition(".")
        value = getattr(import_module(module), attribute)
        text = inspect.getdoc(value) or f"One of ``{'``, ``'.join(get_args(value))}``."
        lines.append(f"| `{name}` | {_code(_words(text.partition(chr(10) * 2)[0]))} |")
    return "\n".join(lines)


def algorithms() -> str:
    """The table of algorithms in the docstring of `hybridnn_papers.laugier_algorithms`, with the text around it."""
    from hybridnn_papers import laugier_algorithms

    text = laugier_algorithms.__doc__ or ""
    rule = re.compile(r"^=[= ]+$\n", re.MULTILINE)
    before, heads, rows, after = rule.split(text)
    starts = [column.start() for column in re.finditer(r"=+", rule.findall(text)[0])]
    columns = [slice(start, end) for start, end in pairwise([*starts, None])]
    lines = [[_code(line[column]).strip() for column in columns] for line in (heads + rows).splitlines()]
    lines.insert(1, ["---"] * len(columns))
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return "\n\n".join([_code(before.partition("\n\n")[2].strip()), table, _code(after.strip())])


def animation(place: str) -> str:
    """A page of `ANIMATIONS`, as ``hybridnn schedule METHOD --out FILE.html`` writes it."""
    from hybridnn.drawing.animation import html_page
    from hybridnn.drawing.timelines import schedule

    return html_page(schedule(Path(place).stem, stages=4, **ANIMATIONS[place]).animation)


def _code(text: str) -> str:
    """Text of a docstring with the marks of code in Markdown."""
    return CODE.sub(lambda code: f"`{code[1] or code[2]}`", text)


def _words(text: str | None) -> str:
    """A help text on one line, as Markdown in a table."""
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")


MARKERS = {
    "settings": settings_table,
    "study-file": study_table,
    "statements": lambda: _rows("key", statement_keys()),
    "measures": measure_table,
    "command-line": command_line,
    "python": python_names,
    "algorithms": algorithms,
}
"""What stands between the two lines of a name."""


def rewritten(text: str) -> str:
    """The text of a page with its generated parts as they should be."""
    return MARKED.sub(lambda found: f"{found['begin']}\n{MARKERS[found['name']]()}\n\n{found['end']}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")
