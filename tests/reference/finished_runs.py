"""Run folders and studies with chosen results, written line by line."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from hybridnn.config.settings import settings_from, to_toml
from hybridnn.pipeline.layout import Layout
from hybridnn.runs.run_files import CONFIG_END
from hybridnn.study.results import StudyResults, read_results


def prediction_line(seconds_per_step: float, **changes: Any) -> dict[str, Any]:
    """Return a line of kind "prediction" for epochs of ten steps."""
    parts = {"computing": 0.6, "communication": 0.2, "communication_hidden": 0.1, "bubble": 0.0, "overhead": 0.2}
    return {
        "kind": "prediction",
        "machine": "laptop",
        "seconds_per_step": seconds_per_step,
        "seconds_per_epoch": 10 * seconds_per_step,
        "bytes_per_step": 4000,
        "parts": {name: share * seconds_per_step for name, share in parts.items()},
        "instructions": {"forward": 0.2 * seconds_per_step, "update": 0.1 * seconds_per_step},
        **changes,
    }


def load_line(others: float, *, cores: int = 2, threads: int = 2) -> dict[str, Any]:
    """Return a line of kind "load" of two nodes, of which the second has processes of others in the training."""
    idle = {"others": 0.0, "cores": cores, "threads": threads}
    return {"kind": "load", "before": [idle, idle], "during": [idle, {**idle, "others": others}]}


def measured_line(epoch: int, seconds: float, **changes: Any) -> dict[str, Any]:
    """Return a line of kind "measured": half computing, 30 % communication and 10 % waiting."""
    return {
        "kind": "measured",
        "epoch": epoch,
        "seconds_per_step": seconds,
        "instructions": {"forward": 0.2 * seconds, "backward": 0.3 * seconds},
        "communication": 0.3 * seconds,
        "waiting": 0.1 * seconds,
        **changes,
    }


def write_study(
    folder: Path,
    runs: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]],
    missing: Mapping[str, Mapping[str, Any]] | None = None,
    baseline: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """Write a study of runs by id: the values of their axes, and options of `write_run`; `missing` cells never ran.

    `more` are other keys of the manifest.
    """
    cells = []
    for name, (values, options) in runs.items():
        write_run(folder / "cells" / name, **options)
        cells.append({"id": name, "ranks": options.get("ranks", 1), "values": values})
    cells += [{"id": name, "ranks": 1, "values": values} for name, values in (missing or {}).items()]
    about = {"format": 1, "name": "my-study", "description": "a <b>bold</b> study", "reduced": False}
    about |= {"cells": cells, "baseline": baseline or {}, **(more or {})}
    (folder / "study.json").write_text(json.dumps(about))
    return folder


def write_run(
    folder: Path,
    *,
    ranks: int = 1,
    grid: tuple[int, int, int] | None = None,
    seconds: Sequence[float] = (9.0, 2.0, 1.0, 3.0),
    communication_share: float = 0.25,
    hidden: Sequence[int] = (64, 64),
    threads: int = 1,
    nodes: int = 1,
    samples: int = 1000,
    test_samples: int = 10,
    batch_size: int = 100,
    steps: int = 10,
    accuracy: float | None = 0.5,
    method: str | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    hosts: Mapping[str, Any] | None = None,
    lines: Sequence[Mapping[str, Any]] = (),
    ended: bool = True,
    in_process: bool = False,
) -> Path:
    """Write a run of so many steps per epoch on digits.

    The ranks of the grid are along pipeline, batch and model; by default, all along batch. `seconds` are those of each
    epoch. The accuracy is that of the last epoch, and twice that of the others; None writes an R² of 0.75. Several
    stages have 1f1b by default. `settings` are others by section, `hosts` the fields that differ from those of one
    node, and `lines` follow the header.
    """
    pipeline, batch, model = grid or (1, ranks, 1)
    folder.mkdir(parents=True, exist_ok=True)
    parallel = {"pipeline": pipeline, "batch": batch, "model": model}
    given = {"parallel": parallel, "training": {"batch_size": batch_size}, "model": {"hidden": list(hidden)}}
    for section, values in (settings or {}).items():
        given[section] = {**given.get(section, {}), **values}
    (folder / "config.toml").write_text(to_toml(settings_from(given)) + CONFIG_END)
    memory = dict.fromkeys(
        ("weight_bytes", "optimizer_bytes", "weight_version_bytes", "activation_bytes", "buffer_bytes"), 0
    )
    layout = Layout.uniform([(batch, model)] * pipeline, pipeline)
    sizes = [64, *hidden, 10]
    header = {
        "kind": "header",
        "ranks": ranks,
        "layout": asdict(replace(layout, method=method or ("1f1b" if pipeline > 1 else "sequential"))),
        "memory": [memory] * pipeline,
        "nodes": nodes,
        "threads_per_rank": threads,
        "data": "digits",
        "train_samples": samples,
        "test_samples": test_samples,
        "sizes": sizes,
        "parameters": sum(n * (m + 1) for m, n in pairwise(sizes)),
        "dtype": "float32",
        "optimizer": "sgd",
        "versions": {"hybridnn": "0.0", "MPI": "Some MPI & <more>"},
        "folder": str(folder),
        "in_process": in_process,
        "hosts": {
            "names": ["n1"],
            "ranks": [ranks],
            "processors": ["Some CPU"],
            "cores": [8],
            "binding": "none",
            "launcher": "srun",
            "blas": "openblas 1",
            **(hosts or {}),
        },
    }
    epochs = [
        {
            "kind": "epoch",
            "step": steps * number,
            "epoch": number,
            "train_loss": 1 / number,
            "learning_rate": 0.1,
            "validation_loss": 0.5 if accuracy is None else None,
            "validation_accuracy": accuracy if accuracy is None or number == len(seconds) else accuracy / 2,
            "validation_r2": 0.75 if accuracy is None else None,
            "samples_per_second": samples / taken,
            "compute_seconds": (1 - communication_share) * taken,
            "communication_seconds": communication_share * taken,
            "bytes_sent": 5000 * number,
        }
        for number, taken in enumerate(seconds, 1)
    ]
    end = {
        "kind": "end",
        "steps": steps * len(seconds),
        "seconds": sum(seconds),
        "metric_name": "x",
        "metric": accuracy,
    }
    written = [header, *lines, *epochs, *([end] if ended else [])]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written))
    return folder


def runs_by_ranks(seconds: dict[int, float], **options: Any) -> dict[str, tuple[Any, Any]]:
    """Runs for `write_study`, on numbers of ranks with these seconds per epoch."""
    return {
        str(ranks): ({"ranks": ranks}, {"ranks": ranks, "seconds": [taken, taken], **options})
        for ranks, taken in seconds.items()
    }


def made_study(folder: Path, *arguments: Any, **options: Any) -> StudyResults:
    """The results of `write_study`."""
    return read_results(write_study(folder, *arguments, **options))
