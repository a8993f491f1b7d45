"""What a user sees of a run that stood still."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from hybridnn.cli.output import print_json
from hybridnn.diagnostics.stalls.files import FOLDER, StallRecord
from hybridnn.diagnostics.stalls.report import stall_report


def print_stall(record: StallRecord | None, run: Path, *, as_json: bool) -> None:
    """Print who did not arrive, and what every rank was doing; of a run that did not stand still, that it did not."""
    if as_json:
        findings = [] if record is None else [asdict(finding) for finding in record.findings]
        states = [] if record is None else [asdict(state) for state in record.states.values()]
        job = None if record is None or record.job is None else asdict(record.job)
        print_json({"stood_still": record is not None, "findings": findings, "job": job, "states": states})
    elif record is None:
        print(f"{run}: no rank of this run noted that it stood still")
    else:
        print(stall_report(record, run / FOLDER))
