"""`hybridnn calibrate`: the file, the tables, and wrong input; not what was measured."""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from hybridnn.cli.machine import _fit_table
from hybridnn.cli.output import print_table
from hybridnn.cost.calibration.communication import TimedCase
from hybridnn.cost.calibration.computation import ComputeError
from hybridnn.cost.calibration.fit import fit_operations
from hybridnn.cost.machine_file import read_machine
from mpi_runner.launch import JobResult
from reference.command_line import Run, error_line, output_of

TWICE = """
import sys
from pathlib import Path
from hybridnn.cli import machine
from hybridnn.cli.main import main
from hybridnn.cli.output import make_console
from hybridnn.cli.ranks import launch_rank
from hybridnn.cost.calibration import calibrate
from hybridnn.cost.machine_file import read_machine

calibrate.calibrate_compute = lambda *_: (read_machine("cluster-1024").compute, [])
calibrate.correct = lambda machine, steps: machine
facts = machine._facts

def with_text(found, out):
    machine._print_calibration(make_console(), found, out)
    print("-" * 30)
    return facts(found, out)

machine._facts = with_text
command = ["calibrate", "--out", "two.toml", "--seconds", "0.1"]
try:
    main([*command, "--force", "--format", "json"])
except SystemExit as end:
    assert end.code == 0, end.code
before = Path("two.toml").read_bytes() if launch_rank() == 0 else None
try:
    main(command)
finally:
    assert before is None or Path("two.toml").read_bytes() == before
"""
"""A program that measures messages, with the text before the JSON, and without ``--force``."""


@pytest.mark.timeout(240)
def test_two_ranks_write_one_file_and_print_once(run_mpi: Callable[..., JobResult], tmp_path: Path) -> None:
    # Forced: so short a time on a busy machine gives no good figures.
    result = run_mpi(2, TWICE, timeout=180, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert result.stderr.count("Error: --out = 'two.toml': is there already; --force replaces it") == 1
    text, json_text = result.stdout.split(f"{'-' * 30}\n")
    machine = read_machine(tmp_path / "two.toml")
    assert {cost.operation for cost in machine.collectives} == {"allreduce", "allgather", "broadcast", "barrier"}
    assert machine.compute == read_machine("cluster-1024").compute
    assert [path.name for path in tmp_path.iterdir()] == ["two.toml"]
    assert text.count("two.toml: use it with `hybridnn plan SETTINGS.toml --ranks N --machine two.toml`") == 1
    first_words = [line.split()[0] for line in text.splitlines() if line.strip()]
    for operation in ("send", "allreduce", "allgather", "broadcast", "iallreduce", "overlap:", "verdict:"):
        assert first_words.count(operation) == 1
    assert max(len(line) for line in text.splitlines() if not line.startswith("verdict: ")) <= 100
    found = json.loads(json_text)
    assert found["machine"] == json.loads(machine.model_dump_json())
    assert (found["file"], found["verdict"]) == ("two.toml", machine.quality.summary)
    for fit in found["communication"]:
        assert fit["ranks"] == 2
        assert all(segment["alpha_seconds"] >= 0 for segment in fit["segments"])
        held_out = [one["nbytes"] for one in fit["samples"] if one["held_out"]]
        assert len(held_out) < len(fit["samples"])
        if fit["operation"] != "barrier":
            assert fit["held_out_error"]["sizes"] == len(held_out) > 0


def test_one_rank_prints_what_cannot_be_measured(run_hybridnn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    known = read_machine("cluster-1024").compute
    right = [ComputeError("float32", 1, "forward", 9, 0.2, 3.0)]
    monkeypatch.setattr("hybridnn.cost.calibration.calibrate.calibrate_compute", lambda *arguments: (known, right))
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 20.0, 20.0))
    out = output_of(run_hybridnn("calibrate", "--seconds", "0.5"))
    for what in ("messages need 2 ranks", "collectives need 2 ranks", "overlap needs 2 ranks"):
        assert f"not measured: {what}" in out
    assert "verdict: good: held-out error up to 20% (passes in float32 with 1 busy rank), noise 0%, load" in out
    machine = read_machine("machine.toml")
    assert (machine.name, machine.collectives) == (machine.about["host"], ())
    assert "messages need 2 ranks" in machine.about["not_measured"]


def test_a_busy_machine_is_not_measured_without_force(run_hybridnn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "hybridnn.cost.calibration.calibrate"
    monkeypatch.setattr(f"{module}.calibrate_compute", lambda *arguments: pytest.fail("measured"))
    monkeypatch.setattr(f"{module}.measure_communication", lambda *arguments: pytest.fail("measured"))
    monkeypatch.setattr("os.getloadavg", lambda: (20000.0, 1.0, 1.0))
    code, out, err = run_hybridnn("calibrate", "--seconds", "0.5")
    assert (code, out) == (2, "")
    assert "the machine is busy: load average 20000.0, more than the job's own " in err
    assert err.endswith("; calibrate it when it is idle, or with --force\n")


BAD_PASSES = [ComputeError("float32", 2, kind, 9, error, 3.0) for kind, error in (("forward", 2.0), ("update", 0.1))]


def test_doubtful_calibrations_are_written_only_with_force(run_hybridnn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    known = read_machine("cluster-1024").compute[0]
    module = "hybridnn.cost.calibration.calibrate"
    measured = [known.model_copy(update={"noise": noise}) for noise in (0.1, 0.85)]
    monkeypatch.setattr(f"{module}.calibrate_compute", lambda *arguments: (tuple(measured), BAD_PASSES))
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 1.0, 1.0))
    verdict = (
        "verdict: doubtful: held-out error 105% (passes in float32 with 2 busy ranks), more than 25%; "
        "noise 85%, more than 30%"
    )
    code, out, err = run_hybridnn("calibrate", "--seconds", "0.5", "--out", "bad.toml")
    assert (code, err) == (1, "")
    assert verdict in out
    assert "no machine file was written" in out
    assert not Path("bad.toml").exists()
    monkeypatch.setattr("os.getloadavg", lambda: (20.0, 1.0, 1.0))
    code, out, _ = run_hybridnn("calibrate", "--seconds", "0.5", "--out", "bad.toml", "--force")
    assert code == 0
    assert f"{verdict}; load average 20.0, more than the job's own " in out
    quality = read_machine("bad.toml").quality
    assert (quality.held_out_error, quality.noise, quality.load_average) == (pytest.approx(1.05), 0.85, 20.0)
    Path("settings.toml").write_text("[model]\nhidden = [8]\n")
    for command in (("plan",), ("simulate", "settings.toml"), ("simulate", "settings.toml", "--curve", "weak")):
        out = output_of(run_hybridnn(*command, "--ranks", "1", "--machine", "bad.toml"))
        assert out.count("machine file: doubtful: held-out error 105%") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seconds", "0"], "--seconds = 0.0: "),
        (["--seconds", "nan"], "--seconds = nan: "),
        (["--out", "machine.yaml"], "--out = 'machine.yaml': the name of the file must end in .toml"),
        (["--out", "no/machine.toml"], "--out = 'no/machine.toml': there is no folder no"),
        (["--out", "folder.toml"], "--out = 'folder.toml': is a folder, not a file"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(run_hybridnn: Run, arguments: list[str], message: str) -> None:
    Path("folder.toml").mkdir()
    assert message in error_line(run_hybridnn("calibrate", *arguments))


@pytest.mark.parametrize("width", [40, 80])
def test_the_table_is_complete_in_a_narrow_log(width: int) -> None:
    """Groups on several nodes and sizes of many digits, in the 80 columns of a batch job or fewer."""
    console = Console(file=StringIO(), width=width)
    samples = [
        TimedCase("barrier", 313, True, 0, 5e-6, False),
        *(TimedCase("allgather", 313, True, size, 1e-6 + size * 1e-9, False) for size in range(10**9, 10**9 + 20)),
        *(TimedCase("allgather", 313, True, size, 1e-6 + size * 1e-8, False) for size in range(10, 30)),
    ]
    print_table(console, _fit_table(fit_operations(samples)))
    text = console.file.getvalue()
    assert "…" not in text
    assert "313 across nodes" in text
    assert "dissemination" in text
    assert console.width == width
