"""`hybridnn stall`: why a run stalled, from the files of its ranks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from hybridnn.cli.options import Format, OutputFormat, RunFolder
from hybridnn.cli.output import write_json
from hybridnn.cli.ranks import first_rank_alone

if TYPE_CHECKING:
    from hybridnn.diagnostics.stalls.diagnosis import StallRecord


def stall(run: RunFolder, output_format: OutputFormat = Format.text) -> None:
    """Show which rank a stalled run waited for, and what every rank was doing."""
    from hybridnn.diagnostics.stalls.diagnosis import stall_report
    from hybridnn.diagnostics.stalls.files import FOLDER, read_stall
    from hybridnn.errors import DataError
    from hybridnn.runs.run_files import run_status

    with first_rank_alone():
        record = read_stall(run)
        if record is None and run_status(run) == "absent":
            raise DataError(f"{run}: this folder holds no run of hybridnn")
        if output_format is Format.json:
            write_json(_facts(record))
        elif record is None:
            print(f"{run}: no rank of this run noted that it stood still")
        else:
            print(stall_report(record, run / FOLDER))


def _facts(record: StallRecord | None) -> dict[str, object]:
    return {
        "stalled": record is not None,
        "findings": [] if record is None else [asdict(finding) for finding in record.findings],
        "job": None if record is None or record.job is None else asdict(record.job),
        "states": [] if record is None else [asdict(state) for state in record.states.values()],
    }
