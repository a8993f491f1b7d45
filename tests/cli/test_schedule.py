"""`hybridnn schedule`: figures, the JSON with every instruction, drawings, schedules from files, and wrong input."""

import json
import re
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from hybridnn import schedule
from hybridnn.cli.output import print_drawing
from hybridnn.drawing.animation import html_page
from hybridnn.drawing.drawing import Box, Drawing, Row
from hybridnn.drawing.timelines import KINDS, read_schedule
from hybridnn.drawing.timelines import schedule as make_timeline
from hybridnn.errors import DataError, HybridnnError, SettingError
from hybridnn.pipeline.checks.lint import lint
from hybridnn.pipeline.schedules.instructions import COMPUTATIONS
from hybridnn.pipeline.schedules.methods import METHODS, make_schedule
from reference.command_line import Run, error_line, facts_of, output_of


@pytest.fixture
def run(run_hybridnn: Run) -> Run:
    """Run ``hybridnn schedule`` in an empty folder."""
    return partial(run_hybridnn, "schedule")


def test_comparison_of_the_exact_methods(run: Run) -> None:
    size = ("--stages", "4", "--microbatches", "8")
    assert "zb-h1              27    11.1%              4         48" in output_of(run("--compare", *size))
    rows = {row["method"]: row for row in facts_of(run, "--compare", *size, "--message", "1", "--in-flight", "6")}
    assert list(rows) == sorted(rows, key=lambda name: rows[name]["time"])
    within = [name for name, row in rows.items() if row["in_flight"] <= 6 and METHODS[name].chunks[-1] == 1]
    assert within[0] == "searched"
    assert len(within) == 3
    assert (rows["searched"]["in_flight"], rows["gpipe"]["in_flight"], rows["interleaved"]["messages"]) == (6, 8, 112)
    Path("net.toml").write_text("[model]\nhidden = [64, 96, 32, 64]\n")
    machine = ("net.toml", "--machine", "cluster-1024", "--compare")
    on_machine = facts_of(run, *machine, "--stages", "4")
    assert {row["method"] for row in on_machine} == {
        *("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "searched")  # too few layers for chunks
    }
    assert "at most 5, the number of layers" in error_line(run(*machine, "--stages", "6"))


def test_json_holds_every_instruction_with_its_versions_and_times(run: Run) -> None:
    found = facts_of(run, "pipedream", "--stages", "3", "--minibatches", "5", "--backward", "1")
    about = (found["method"], len(found["stages"]), found["minibatches"], found["microbatches"])
    assert about == ("pipedream", 3, 5, 1)
    assert [rank["stage"] for rank in found["stages"]] == [0, 1, 2]
    for rank in found["stages"]:
        k = rank["stage"]
        by_name: dict[str, list[dict[str, Any]]] = {}
        for item in rank["instructions"]:
            by_name.setdefault(item["instruction"], []).append(item)
        expected = {"forward", "backward", "reduce gradients", "update"}
        expected |= {"load"} if k == 0 else {"receive activations", "send gradients"}
        expected |= {"load"} if k == 2 else {"send activations", "receive gradients"}
        assert set(by_name) == expected
        for items in by_name.values():
            assert [item["minibatch"] for item in items] == [0, 1, 2, 3, 4]
        for name in ("forward", "backward"):
            assert [item["version"] for item in by_name[name]] == [max(0, t - (2 - k)) for t in range(5)]
            assert all(item["end"] - item["start"] == 1 for item in by_name[name])
        assert all(item["version"] is None and item["ahead"] is None for item in by_name["update"])
        assert by_name["forward"][0]["start"] == k
    assert found["staleness"][-1]["forward"] == {"version": 4, "ahead": 0}
    assert found["durations"] == {"forward": 1.0, "backward": 1.0, "weight": 0.5, "message": 0.0}
    assert [(row["stage"], row["minibatch"], row["staleness"]) for row in found["staleness"]] == [
        (k, t, min(t, 2 - k)) for k in range(3) for t in range(5)
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["pipedream"], (4, 8, 1, 1)),
        (["sequential", "--stages", "3"], (3, 6, 1, 1)),
        (["gpipe"], (4, 1, 8, 1)),
        (["zb-h1", "--stages", "2", "--minibatches", "3"], (2, 3, 4, 1)),
        (["interleaved", "--stages", "2"], (2, 1, 4, 2)),
        (["interleaved", "--stages", "2", "--chunks", "3", "--microbatches", "6"], (2, 1, 6, 3)),
    ],
)
def test_default_counts(run: Run, arguments: list[str], expected: tuple[int, ...]) -> None:
    found = facts_of(run, *arguments)
    counts = (found[key] for key in ("minibatches", "microbatches", "chunks"))
    assert (len(found["stages"]), *counts) == expected


def test_options_reach_the_schedule(run: Run) -> None:
    synchronized = facts_of(run, "pipedream-vsync", "--stages", "3", "--minibatches", "5")
    assert all(row["forward"]["version"] == max(0, row["minibatch"] - 2) for row in synchronized["staleness"])
    slow = facts_of(run, "sequential", "--stages", "2", "--minibatches", "1", "--message", "0.5")
    assert slow["summary"]["makespan"] == 2 * (1 + 2) + 2 * 0.5


def test_text_shows_drawing_figures_lint_and_versions(run: Run) -> None:
    text = output_of(run("pipedream", "--stages", "4", "--minibatches", "5", "--backward", "1"))
    assert "stage 3  .........F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 ........." in text
    assert "makespan 16, bubble fraction 37.50%" in text
    assert "lint: ok" in text
    peaks = re.findall(r"^ +([0-3]) +(\d+) +(\d+) +(\d+) +10 +37\.5% *$", text, re.MULTILINE)
    # Stage 0 would hold four versions, but the five minibatches read only two of its old ones.
    assert peaks == [("0", "4", "4", "3"), ("1", "3", "3", "3"), ("2", "2", "2", "2"), ("3", "1", "1", "1")]
    # The fifth minibatch, as in section 2.2.2 of Kang 2019.
    assert re.search(r"^ +5 +1/1 +2/2 +3/3 +4/4 *$", text, re.MULTILINE)
    assert re.search(r"^ +staleness +3 +2 +1 +0 *$", text, re.MULTILINE)
    assert "same weights: yes" in text


def test_versions_are_shown_where_they_differ_or_on_demand(run: Run) -> None:
    assert "same weights: no" in run("vanilla", "--stages", "3")[1]
    for method in ("spectrain", "lwp", "pipemare"):
        assert "aim at the same version: yes" in run(method, "--stages", "3")[1]
    assert "weights read" not in run("gpipe")[1]
    assert re.search(r"^ +2 +1/1 +1/1 *$", run("gpipe", "--stages", "2", "--minibatches", "2", "--versions")[1], re.M)
    # The table is bounded.
    short = run("ddg", "--stages", "3", "--minibatches", "30")[1]
    assert "shown: 3 of 3 stages and 12 of 30 minibatches" in short
    assert re.search(r"^ +30 +26/26", run("ddg", "--minibatches", "30", "--versions")[1], re.MULTILINE)
    wide = run("ddg", "--stages", "20")[1]
    assert "shown: 7 of 20 stages and 22 of 40 minibatches" in wide
    assert max(map(len, wide.splitlines())) <= 100
    assert "…" not in wide


def test_without_a_method_the_methods_are_listed(run: Run) -> None:
    text = output_of(run())
    assert [line.split()[0] for line in text.splitlines()] == list(METHODS)
    assert all(method.summary in text for method in METHODS.values())


def test_files_of_every_format_by_their_names(run: Run, run_as_ranks: Run) -> None:
    arguments = ("1f1b", "--stages", "2", "--microbatches", "3")
    for name in ("a.svg", "a.png", "a.pdf", "a.json", "a.txt"):
        assert run_as_ranks("schedule", *arguments, "--out", name) == (0, f"{name}\n", "")
    assert ElementTree.parse("a.svg").getroot().attrib["viewBox"]
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    assert Path("a.pdf").read_bytes().startswith(b"%PDF")
    assert json.loads(Path("a.json").read_text()) == facts_of(run, *arguments)
    assert Path("a.txt").read_text() == run(*arguments)[1]
    assert run(*arguments, "--format", "svg")[1] == Path("a.svg").read_text()
    # An existing file is replaced.
    assert run("gpipe", "--out", "a.svg")[0] == 0
    assert "gpipe" in Path("a.svg").read_text()


def test_pictures_show_versions_messages_and_a_width(run: Run, tmp_path: Path) -> None:
    """Arrows and a width in every format, and versions of an exact method: one minibatch reads the initial weights."""
    arguments = ("1f1b", "--stages", "2", "--microbatches", "3")
    for name in ("plain.svg", "plain.pdf", "plain.png"):
        assert run(*arguments, "--out", name)[0] == 0
        assert run(*arguments, "--versions", "--messages", "--width", "8", "--out", f"more-{name}")[0] == 0
        assert Path(name).read_bytes() != Path(f"more-{name}").read_bytes()
    plain, more = (Path(name).read_text() for name in ("plain.svg", "more-plain.svg"))
    assert (plain.count(">v0<"), more.count(">v0<")) == (0, 2 * 2 * 3)
    assert (plain.count("<polygon"), more.count("<polygon")) == (0, 2 * 3)
    assert 'width="302.362"' in more


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pipdream"], "parallel.method = 'pipdream': did you mean pipedream?"),
        (["gpipe", "--stages", "0"], "--stages"),
        (["gpipe", "--microbatches", "0"], "--microbatches"),
        (["pipedream", "--minibatches", "-1"], "--minibatches"),
        (["gpipe", "--chunks", "2"], "parallel.chunks = 2"),
        (["gpipe", "--weight", "3"], "weight = 3.0: at most 2.0"),
        (["gpipe", "--message", "inf"], "message = inf"),
        (["gpipe", "--forward", "-1"], "--forward"),
        (["gpipe", "--format", "gif"], "gif"),
        (["gpipe", "--format", "png"], "--format = 'png': needs a file"),
        (["gpipe", "--messages"], "--messages = True: needs a picture"),
        (["gpipe", "--width", "8"], "--width = 8.0: needs a picture"),
        (["gpipe", "--width", "1", "--out", "a.svg"], "--width = 1.0: 5 to 150 centimetres"),
        (["gpipe", "--width", "nan", "--out", "a.svg"], "--width = nan: "),
        (["gpipe", "--out", "a.gif"], "--out = 'a.gif': the name of the file must end in .txt, .json, .svg"),
        (
            ["gpipe", "--format", "svg", "--out", "a.png"],
            "--out = 'a.png': with --format svg the file must end in .svg",
        ),
        (["gpipe", "--out", "no/a.svg"], "--out = 'no/a.svg': there is no folder no"),
        (["gpipe", "--out", "."], "--out = '.': is a folder"),
        (["gpipe", "--format", "svg", "--out", "/dev/full"], "--out = '/dev/full': cannot be written: No space left"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(run: Run, arguments: list[str], message: str) -> None:
    assert message in error_line(run(*arguments))
    assert list(Path.cwd().iterdir()) == []


def test_terminals_show_colours_and_the_same_text() -> None:
    drawing = Drawing("title", (Row("stage 0", (Box(0, 1, "1", "forward", 0), Box(1, 3, "1", "backward", 0))),), 4)
    texts = []
    for terminal in (False, True):
        stream = StringIO()
        colours = "truecolor" if terminal else None
        print_drawing(
            Console(file=stream, width=60, force_terminal=terminal, color_system=colours, _environ={}), drawing
        )
        texts.append(stream.getvalue())
    plain, coloured = texts
    assert "\x1b[38;2;16;36;60;48;2;127;178;234mF1\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_a_page_that_plays_the_schedule(run: Run) -> None:
    assert run("pipedream", "--stages", "3", "--out", "page.html") == (0, "page.html\n", "")
    page = Path("page.html").read_text(encoding="utf-8")
    assert "<title>pipedream: 3 stages, 6 minibatches</title>" in page
    assert page == html_page(make_timeline("pipedream", stages=3).animation)


TWO_STAGES: dict[str, Any] = {
    "method": "mine",
    "stages": [
        ["forward 0.0", "forward 0.1", "backward 0.0", "backward 0.1", "reduce gradients 0", "update 0"],
        ["forward 0.0", "backward 0.0", "forward 0.1", "backward 0.1", "reduce gradients 0", "update 0"],
    ],
}


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("method", list(METHODS))
def test_what_the_command_writes_is_read_as_the_same_schedule(run_hybridnn: Run, method: str) -> None:
    assert run_hybridnn("schedule", method, "--stages", "3", "--format", "json", "--out", "a.json")[0] == 0
    made = schedule(method, stages=3).timeline.schedule
    found = read_schedule("a.json")
    assert found.orders == made.orders
    for name in ("stages", "chunks", "minibatches", "microbatches", "policy", "method", "placement"):
        assert getattr(found, name) == getattr(made, name)
    assert run_hybridnn("schedule", "a.json", "--format", "json", "--out", "b.json")[0] == 0
    first, second = (json.loads(Path(name).read_text()) for name in ("a.json", "b.json"))
    assert first == second


@pytest.mark.parametrize("method", ["zb-h1", "interleaved", "spectrain", "zb-v"])
def test_computations_as_texts_get_their_messages(tmp_path: Path, method: str) -> None:
    microbatches = 6 if METHODS[method].cuts_minibatches else 1
    chunks = METHODS[method].chunks[0]
    made = make_schedule(method, stages=3, minibatches=4, microbatches=microbatches, chunks=chunks)
    stages = [[str(item) for item in order if isinstance(item, COMPUTATIONS)] for order in made.orders]
    content = {"stages": stages, "weight_policy": made.policy.name, "placement": made.placement.name}
    found = read_schedule(write(tmp_path / "own.json", content))
    assert found.orders == made.orders
    assert found.method == "own"
    lint(found)


def test_a_schedule_of_ones_own_is_drawn_and_timed(run_hybridnn: Run) -> None:
    write(Path("mine.json"), TWO_STAGES)
    text = output_of(run_hybridnn("schedule", "mine.json"))
    assert "mine: 2 stages, 1 minibatch, 2 microbatches each" in text
    # Stage 0 computes 2 x (1 + 2), and waits for 1 while stage 1 computes backward 0.0, and 2 for backward 0.1.
    assert "makespan 9, bubble fraction 33.33%" in text
    assert "lint: ok" in text
    assert repr(schedule("mine.json")) == "<mine: 2 stages, 1 minibatch of 2 microbatches, makespan 9, bubble 33.3%>"
    assert run_hybridnn("schedule", "mine.json", "--out", "mine.svg")[0] == 0
    assert Path("mine.svg").read_text().startswith("<svg")


FORWARD = ["forward 0"]
PASSES = ["forward 0", "backward 0", "reduce gradients 0", "update 0"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "not a schedule: it must be an object with"),
        ({"stages": [3]}, "stage 0: not a list of at most 1,000,000 instructions"),
        ({"stages": [[]]}, "there is no instruction"),
        ({"stages": [["forwrd 0"]]}, "stage 0, instruction 0: no instruction 'forwrd'; did you mean forward?"),
        ({"stages": [["forward"], ["0"]]}, "stage 1, instruction 0: '0' is not an instruction such as 'forward 0'"),
        ({"stages": [[None]]}, "stage 0, instruction 0: neither a text nor an object"),
        ({"stages": [[{"instruction": "forward", "minibatch": -1}]]}, "minibatch = -1: must be a whole number from 0"),
        ({"stages": [[{"instruction": "forward", "chunk": True}]]}, "chunk = True: must be a whole number"),
        ({"stages": [FORWARD], "weight_policy": "none"}, "weight_policy = 'none': must be one of exact, initial"),
        ({"stages": [FORWARD], "placement": 2}, "placement = 2: must be one of loop, waves"),
        ({"stages": [FORWARD], "minibatches": 0}, "minibatches = 0: must be a whole number from 1"),
        ({"stages": [PASSES, FORWARD]}, "stage 1: backward 0 is missing"),
    ],
)
def test_file_that_is_no_schedule(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError) as error:
        read_schedule(write(tmp_path / "mine.json", content))
    assert "mine.json: " in str(error.value)
    assert message in str(error.value)


def test_a_schedule_that_does_not_work_is_refused_by_the_linter(run_hybridnn: Run) -> None:
    for stages, message in (
        ([PASSES, ["backward 0", "forward 0", *PASSES[2:]]], "stage 1, instruction 0 (backward 0): comes before fo"),
        ([PASSES, PASSES[:-1]], "stage 1, end of the list: update 0 is missing"),
        ([[*PASSES, "forward 0"], PASSES], "stage 0, "),
    ):
        write(Path("mine.json"), {"stages": stages})
        assert message in error_line(run_hybridnn("schedule", "mine.json"))
    assert "none.json: cannot be read" in error_line(run_hybridnn("schedule", "none.json"))
    line = error_line(run_hybridnn("schedule", "mine.json", "--chunks", "2"))
    assert line == "Error: chunks = 2: mine.json has the instructions of every stage"
    with pytest.raises(SettingError, match="microbatches = 3"):
        schedule("mine.json", microbatches=3)


INSTRUCTIONS = st.builds(
    lambda name, *numbers: {
        "instruction": name,
        **dict(zip(("minibatch", "microbatch", "chunk"), numbers, strict=True)),
    },
    st.sampled_from(sorted(KINDS)),
    *[st.integers(0, 2)] * 3,
)
TEXTS = st.sampled_from(
    [*PASSES, "forward 0.1", "backward 0.1", "input gradient 0", "weight gradient 0", "recompute 0"]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(TEXTS | INSTRUCTIONS, max_size=8) | st.permutations(PASSES), min_size=1, max_size=3),
    st.sampled_from(["exact", "stashed", "current", "predicted", "vertical sync", "double-buffered"]),
)
def test_any_lists_are_a_schedule_or_one_line(tmp_path: Path, stages: list[Any], policy: str) -> None:
    path = write(tmp_path / "mine.json", {"stages": stages, "weight_policy": policy})
    refusal = ""
    try:
        lint(schedule(str(path)).timeline.schedule)
    except HybridnnError as error:
        refusal = str(error)
    assert not refusal or refusal.isprintable()
