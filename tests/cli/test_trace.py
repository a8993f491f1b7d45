"""`hybridnn trace`: the breakdown, the drawing, the JSON with the same figures, and wrong input."""

import json
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hybridnn.comm.recorder import Event
from hybridnn.pipeline.schedules.instructions import Backward, Forward, ReceiveActivations, Update
from reference.command_line import Run, error_line, facts_of, output_of
from reference.traces import communication, compute, phase, trace_document, two_stages


@pytest.fixture
def run(run_hybridnn: Run) -> Run:
    """Run ``hybridnn trace`` beside the run folder `done`."""
    write(two_stages())
    return partial(run_hybridnn, "trace")


def write(lists: list[list[Event]], widths: list[tuple[int, int]] | None = None, **about: Any) -> None:
    content = trace_document(widths or [(1, 1), (1, 1)], lists)
    content["otherData"] |= about
    Path("done").mkdir(exist_ok=True)
    (Path("done") / "trace.json").write_text(json.dumps(content))


def facts(run: Run, *arguments: str) -> Any:
    return facts_of(run, "done", *arguments)


NAMES = ("computing", "transfer", "transfer_idle", "imbalance_idle", "other")


def seconds(parts: dict[str, Any]) -> list[float]:
    assert tuple(parts["seconds"]) == tuple(parts["shares"]) == NAMES
    return list(parts["seconds"].values())


def test_json_breakdown_of_the_last_epoch(run: Run) -> None:
    found = facts(run)
    about = [found[key] for key in ("method", "epoch", "whole", "minibatches")]
    assert about == ["pipedream", 2, True, [*range(10)]]
    breakdown = found["breakdown"]
    assert (found["seconds"], breakdown["seconds"]) == (pytest.approx(0.12), pytest.approx(0.12))
    # Ten minibatches of 12 ms.
    expected = [[0.05, 0.01, 0.02, 0.04, 0.0], [0.03, 0.01, 0.02, 0.02, 0.04]]
    for rank, item in enumerate(breakdown["ranks"]):
        assert (item["rank"], item["stage"], item["batch_rank"], item["model_rank"]) == (rank, rank, 0, 0)
        assert seconds(item) == pytest.approx(expected[rank])
        assert list(item["shares"].values()) == pytest.approx([part / 0.12 for part in expected[rank]])
    assert [seconds(item) for item in breakdown["stages"]] == [pytest.approx(row) for row in expected]
    total = [sum(column) for column in zip(*expected, strict=True)]
    assert seconds(breakdown["total"]) == pytest.approx(total)


def test_json_holds_the_boxes(run: Run) -> None:
    drawing = facts(run, "--minibatches", "2")["drawing"]
    assert (drawing["from"], drawing["to"], drawing["unit"]) == (pytest.approx(0.012), pytest.approx(0.024), "ms")
    boxes = [
        [(*(box[key] for key in ("kind", "label", "start", "end")), box["minibatch"]) for box in row["boxes"]]
        for row in drawing["rows"]
    ]
    assert [[(*box[:2], round(box[2], 6), round(box[3], 6), box[4]) for box in row] for row in boxes] == [
        [
            ("forward", "2", 0, 2, 1),
            ("send", "", 2, 3, 1),
            ("wait", "", 3, 9, 1),
            ("backward", "2", 9, 11, 1),
            ("update", "2", 11, 12, 1),
        ],
        [
            ("wait", "", 0, 4, 1),
            ("forward", "2", 4, 6, 1),
            ("other", "", 6, 6.5, 1),
            ("backward", "2", 6.5, 7, 1),
            ("send", "", 7, 8, 1),
        ],
    ]
    assert [row["label"] for row in drawing["rows"]] == ["stage 0", "stage 1"]


def test_text_draws_and_breaks_down(run: Run) -> None:
    text = output_of(run("done"))
    lines = [line.strip() for line in text.splitlines()]
    assert lines[0] == "pipedream, 2 stages, measured in epoch 2, minibatches 1 to 8 of 10"
    assert lines[2].startswith("time in ms")
    assert lines[3].startswith("stage 0     F1== > ~============= B1= U1 F2== ")
    assert "seconds of epoch 2, which took 0.1200, and their shares" in lines
    table = [line.split() for line in lines if line.endswith("%")]
    # The schedule of ten minibatches on two stages costs 1/11 of the time: 10.9 ms, in a bubble.
    assert table == [
        ["0", "0.0500", "41.7%", "0.0100", "8.3%", "0.0109", "9.1%", "0.0491", "40.9%", "0.0000", "0.0%"],
        ["1", "0.0300", "25.0%", "0.0100", "8.3%", "0.0109", "9.1%", "0.0291", "24.2%", "0.0400", "33.3%"],
        ["total", "0.0800", "33.3%", "0.0200", "8.3%", "0.0218", "9.1%", "0.0782", "32.6%", "0.0400", "16.7%"],
    ]
    assert max(map(len, text.splitlines())) <= 100
    assert "not in the trace" not in text


@pytest.mark.parametrize(
    ("arguments", "begin", "end"),
    [
        ([], 0, 0.096),  # four minibatches for each of two stages
        (["--epoch", "1"], 0, 0.096),
        (["--minibatches", "3-4"], 0.024, 0.048),
    ],
)
def test_spans(run: Run, arguments: list[str], begin: float, end: float) -> None:
    found = facts(run, *arguments)
    assert found["epoch"] == (1 if "--epoch" in arguments else 2)
    assert (found["drawing"]["from"], found["drawing"]["to"]) == (pytest.approx(begin), pytest.approx(end))
    # The breakdown is of a given span too.
    whole = not set(arguments) - {"--epoch", "1"}
    assert found["breakdown"]["seconds"] == pytest.approx(0.12 if whole else end - begin)
    for row in found["drawing"]["rows"]:
        assert all(0 <= box["start"] < box["end"] <= (end - begin) * 1e3 + 1e-6 for box in row["boxes"])
        ends = [0, *(box["end"] for box in row["boxes"])]
        assert all(box["start"] >= before - 1e-6 for box, before in zip(row["boxes"], ends, strict=False))
    assert f"measured in epoch {found['epoch']}, " in run("done", *arguments)[1]


def test_microbatches_and_chunks_are_numbered(run: Run) -> None:
    one_rank = [phase(1, 0, 50)]
    for chunk in range(2):
        one_rank += [
            compute("forward", 10 * chunk + 4 * m, 10 * chunk + 4 * m + 4, Forward(2, m, chunk)) for m in range(2)
        ]
    one_rank += [compute("weight gradient", 30, 40, Backward(2, -1, 1)), compute("update", 40, 44, Update(2))]
    write([one_rank], [(1, 1)])
    (row,) = facts(run)["drawing"]["rows"]
    assert [box["label"] for box in row["boxes"]] == ["3.1a", "3.2a", "3.1b", "3.2b", "3b", "3"]
    text = run("done")[1]
    assert "number: minibatch.microbatch, from 1; letter after it: chunk" in text
    assert "minibatch 3 of 3" in text


def test_messages_within_a_pass_belong_to_it(run: Run) -> None:
    one_rank = [
        phase(1, 0, 50),
        compute("forward", 0, 10, Forward(0)),
        communication("allgather", 2, 4, axis="model"),
        communication("receive", 10, 11, ReceiveActivations(1)),
        communication("allreduce", 11, 14, axis="batch"),
        communication("allreduce.test", 14, 15, axis="batch"),
        compute("update", 20, 30, Update(0)),
        communication("broadcast", 22, 28),
    ]
    write([one_rank, [phase(1, 0, 50)]], [(1, 2)])
    rows = facts(run)["drawing"]["rows"]
    assert [row["label"] for row in rows] == ["stage 0 model 0", "stage 0 model 1"]
    assert [(box["kind"], round(box["start"])) for box in rows[0]["boxes"]] == [
        ("forward", 0),
        ("reduce", 11),
        ("update", 20),
        ("other", 22),
    ]


def test_stages_of_several_ranks_are_means(run: Run) -> None:
    lists = [[phase(1, 0, 10), compute("forward", 0, length, Forward(0))] for length in (2, 4, 10)]
    write(lists, [(2, 1), (1, 1)])
    breakdown = facts(run)["breakdown"]
    for part, means in (("ranks", [0.002, 0.004, 0.010]), ("stages", [0.003, 0.010])):
        assert [item["seconds"]["computing"] for item in breakdown[part]] == pytest.approx(means)
    assert breakdown["total"]["seconds"]["computing"] == pytest.approx(0.016)
    assert breakdown["total"]["shares"]["computing"] == pytest.approx(16 / 30)
    text = run("done")[1]
    assert "(mean)" in text
    assert "stage 0 batch 1" in text


def test_incomplete_epochs(run: Run) -> None:
    write(two_stages(), complete_since_us=1_030_000)
    found = facts(run)
    assert (found["whole"], found["minibatches"]) == (False, [*range(2, 10)])
    assert found["seconds"] == pytest.approx(0.09)
    assert "the beginning of epoch 2 is not in the trace" in run("done")[1]
    assert run("done", "--epoch", "1")[2] == "Error: --epoch = 1: the trace holds 2\n"


@pytest.mark.usefixtures("run")
def test_a_picture_has_tooltips(run_as_ranks: Run) -> None:
    assert run_as_ranks("trace", "done/trace.json", "--out", "a.svg") == (0, "a.svg\n", "")
    root = ElementTree.parse("a.svg").getroot()
    titles = [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "receive.wait (receive gradients 1), from 3 ms for 6 ms" in titles


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: there is no such run folder or trace"),
        (["empty"], "empty: holds no trace.json; train with --set output.trace=true"),
        (["other.json"], "other.json: not a trace of hybridnn"),
        (["idle.json"], "idle.json: the trace holds nothing of an epoch"),
        (["bare.json"], "bare.json: the trace holds no minibatch of epoch 4"),
        (["done", "--epoch", "3"], "--epoch = 3: the trace holds 1, 2"),
        (["done", "--minibatches", "0-3"], "--minibatches = '0-3': a range within 1-10"),
        (["done", "--minibatches", "4-3"], "--minibatches = '4-3'"),
        (["done", "--minibatches", "9-11"], "--minibatches = '9-11'"),
        (["done", "--minibatches", "some"], "--minibatches = 'some'"),
        (["done", "--format", "png"], "--format = 'png': needs a file"),
        (["done", "--out", "no/a.svg"], "--out = 'no/a.svg': "),
        ([], "RUN"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(run: Run, arguments: list[str], message: str) -> None:
    Path("empty").mkdir()
    Path("other.json").write_text('{"traceEvents": []}')
    Path("idle.json").write_text(json.dumps(trace_document([(1, 1)], [[compute("forward", 0, 1, Forward(0))]])))
    Path("bare.json").write_text(json.dumps(trace_document([(1, 1)], [[phase(4, 0, 1)]])))
    before = sorted(Path.cwd().iterdir())
    assert message in error_line(run(*arguments))
    assert sorted(Path.cwd().iterdir()) == before


def test_pictures_fit_a_page_or_the_width_that_is_given(run: Run) -> None:
    """Also where a stall makes the scale of readable labels too wide for any page."""
    lists = two_stages()
    lists[0].insert(2, communication("send.wait", 130, 9_000))
    write(lists)
    for arguments, centimetres in (((), 17.0), (("--width", "8.4"), 8.4)):
        assert run("done", "--out", "a.svg", *arguments)[0] == 0
        root = ElementTree.parse("a.svg").getroot()
        assert float(root.attrib["width"]) == pytest.approx(centimetres / 2.54 * 96, abs=0.1)
    assert error_line(run("done", "--width", "8.4")).startswith("Error: --width = 8.4: needs a picture")
    assert "5 to 150 centimetres" in error_line(run("done", "--width", "1", "--out", "a.svg"))


def test_text_of_a_long_epoch_fits_a_screen_and_is_whole(run: Run) -> None:
    passes = [phase(1, 0, 2_000)]
    for number in range(4):
        start = 500 * number
        passes += [
            compute("forward", start, start + 2, Forward(number)),
            compute("backward", start + 490, start + 492, Backward(number)),
        ]
    write([passes], [(1, 1)])
    text = output_of(run("done"))
    lines = text.splitlines()
    assert "shown up to" not in text
    bands = [number for number, line in enumerate(lines) if line.startswith("time in ms")]
    assert len(bands) * 3 <= 24
    assert max(map(len, lines)) <= 100
    drawn = "".join(lines[number + 1].removeprefix("stage 0") for number in bands)
    assert (drawn.count("F"), drawn.count("B")) == (4, 4)
