"""`hybridnn formulas`: the formulas of the papers with one's own numbers, section by section."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hybridnn.cli.options import OutputFormat, command_group, count, option
from hybridnn.cli.output import MISSING, make_console, new_table, print_table, require_place, write_file, write_json
from hybridnn.errors import SettingError

if TYPE_CHECKING:
    from hybridnn.cost.collectives import CommunicationCounts
    from hybridnn_papers.grid_map import GridMap

Facts = dict[str, Any]

MICROSECONDS = 1e6
MOST_NUMBERS = 10_000  # layers of a network, or cells along one axis of a map
MOST_RANKS = 1 << 20

app = command_group("Evaluate the formulas of the papers, section by section.")

Network = Annotated[
    str, option("Input width, outputs of every layer; NxW are N layers of width W.", "WIDTHS", "--network")
]
Minibatch = Annotated[int, count("Samples of a minibatch, B.", "--batch")]
P = Annotated[int, count("Ranks, P.", "--ranks")]
Alpha = Annotated[float, option("Seconds per message.", "SECONDS", "--alpha", least=0.0)]
Beta = Annotated[float, option("Seconds per byte.", "SECONDS", "--beta", least=0.0)]
Itemsize = Annotated[int, count("Bytes of an element.", "--itemsize")]

ONE_MICROSECOND = 1e-6  # latency of Cori in Laugier et al. 2018, section 7
EIGHT_GIGABYTES = 1.25e-10  # seconds per byte: 8 GB/s, the bandwidth of MPI on Cori that NERSC states


@app.command("laugier")
def laugier(
    network: Network = "16-3x512-2",
    batch: Minibatch = 100,
    ranks: P = 32,
    alpha: Alpha = ONE_MICROSECOND,
    beta: Beta = EIGHT_GIGABYTES,
    itemsize: Itemsize = 4,
    output_format: OutputFormat = "text",
) -> None:
    """Laugier et al. 2018, sections 5 to 7: communication of a step with batch, model and integrated parallelism."""
    from hybridnn.parallel.grid import fitting_grids
    from hybridnn_papers.formulas import batch_step, integrated_step, model_step

    widths = _widths(network)
    _require_numbers({"--alpha": alpha, "--beta": beta}, {"--ranks": ranks})
    grids = [grid for grid in sorted(fitting_grids(ranks), reverse=True) if grid[0] <= batch]
    steps: list[tuple[str, tuple[int, int], Callable[..., CommunicationCounts]]] = [
        ("5 batch", (ranks, 1), partial(batch_step, widths, ranks)),
        ("6 model", (1, ranks), partial(model_step, widths, batch, ranks)),
        *(("7 integrated", grid, partial(integrated_step, widths, batch, *grid)) for grid in grids),
    ]
    facts = {
        "widths": widths,
        "weights": _weights(widths),
        "batch": batch,
        "ranks": ranks,
        "alpha_seconds": alpha,
        "beta_seconds_per_byte": beta,
        "itemsize": itemsize,
        "steps": [
            {"section": section, "batch_ranks": grid[0], "model_ranks": grid[1]}
            | _both(partial(step, itemsize=itemsize), alpha, beta)
            for section, grid, step in steps
        ],
        "scatters": [_scatter_facts(grid, batch, widths[0] * itemsize, alpha, beta) for grid in grids],
    }
    if output_format == "json":
        write_json(facts)
    else:
        _print_laugier(facts)


def _both(step: Callable[..., CommunicationCounts], alpha: float, beta: float) -> Facts:
    """Counts and seconds of a step with the factor (P-1)/P and with the printed P/(P-1), None where it is undefined."""
    exact = step(formula="exact")
    facts = {"messages": exact.messages, "exact_bytes": exact.nbytes, "exact_seconds": exact.seconds(alpha, beta)}
    try:
        paper = step(formula="paper")
    except SettingError as error:
        if error.setting != "formula":
            raise
        return facts | {"paper_bytes": None, "paper_seconds": None}
    return facts | {"paper_bytes": paper.nbytes, "paper_seconds": paper.seconds(alpha, beta)}


def _scatter_facts(grid: tuple[int, int], batch: int, sample_bytes: int, alpha: float, beta: float) -> Facts:
    """Both ways of scattering a minibatch to a grid, with the sum of the two axes and with the printed maximum."""
    from hybridnn_papers.formulas import scatter_broadcast, scatter_direct, scatter_threshold

    nbytes = ceil(batch / grid[0]) * sample_bytes
    twice = {
        formula: scatter_broadcast(nbytes, *grid, formula=formula).seconds(alpha, beta)
        for formula in ("exact", "paper")
    }
    return {
        "batch_ranks": grid[0],
        "model_ranks": grid[1],
        "process_bytes": nbytes,
        "direct_seconds": scatter_direct(nbytes, *grid).seconds(alpha, beta),
        "scatter_broadcast_seconds": twice["exact"],
        "paper_scatter_broadcast_seconds": twice["paper"],
        "threshold_bytes": scatter_threshold(*grid, alpha, beta),
        "paper_threshold_bytes": scatter_threshold(*grid, alpha, beta, formula="paper"),
    }


def _print_laugier(facts: Facts) -> None:
    console = make_console()
    console.print(
        f"network {'-'.join(map(str, facts['widths']))}: {facts['weights']:,} weights without biases, minibatch "
        f"{facts['batch']:,}, {facts['ranks']:,} ranks, {facts['itemsize']} bytes per element",
        soft_wrap=True,
    )
    console.print(f"alpha {facts['alpha_seconds']:g} s per message, beta {facts['beta_seconds_per_byte']:g} s per byte")
    console.print()
    console.print("communication of a step on the critical path: with the factor (P-1)/P, and with P/(P-1) as printed")
    titles = ("P_c\nbatch", "P_r\nmodel", "messages", "bytes", "us", "bytes\nprinted", "us\nprinted")
    table = new_table(("section",), titles)
    for row in facts["steps"]:
        cells = [row["exact_bytes"], _micro(row["exact_seconds"]), row["paper_bytes"], _micro(row["paper_seconds"])]
        ranks = (str(row["batch_ranks"]), str(row["model_ranks"]), str(row["messages"]))
        table.add_row(row["section"], *ranks, *map(_number, cells))
    print_table(console, table)
    console.print("section 7: from one process to all with the samples of each: direct, or scatter and broadcast")
    ways = ("direct\nus", "scatter,\nbroadcast us", "printed\nus")
    limits = ("direct is faster\nbelow bytes", "printed\nthreshold")
    table = new_table((), ("P_c\nbatch", "P_r\nmodel", "bytes of a\nprocess", *ways, *limits))
    for row in facts["scatters"]:
        seconds = (row["direct_seconds"], row["scatter_broadcast_seconds"], row["paper_scatter_broadcast_seconds"])
        cells = [row["process_bytes"], *map(_micro, seconds), row["threshold_bytes"], row["paper_threshold_bytes"]]
        table.add_row(str(row["batch_ranks"]), str(row["model_ranks"]), *map(_number, cells))
    print_table(console, table)
    console.print("P_r = 1 is batch parallelism (section 9.0.1). The paper calls the second way method one.")


@app.command("kang")
def kang(
    stages: Annotated[int, count("Devices, K.")] = 4,
    forward: Annotated[float, option("Forward pass of a minibatch, T_F.", "TIME", least=0.0)] = 1.0,
    backward: Annotated[float, option("Backward pass of a minibatch, T_B.", "TIME", least=0.0)] = 2.0,
    output_format: OutputFormat = "text",
) -> None:
    """Kang 2019, Table 1: time per minibatch of sequential, DDG, FR and PipeDream, and what every device stores."""
    from hybridnn_papers.pipeline_formulas import KANG_METHODS, minibatch_time, stored_states

    _require_numbers({"--forward": forward, "--backward": backward}, {"--stages": stages})
    rows: list[Facts] = [
        {
            "method": method,
            "time": minibatch_time(method, stages, forward, backward),
            "paper_time": minibatch_time(method, stages, forward, backward, formula="paper"),
            "stored": [stored_states(method, device, stages)._asdict() for device in range(1, stages + 1)],
        }
        for method in KANG_METHODS
    ]
    if output_format == "json":
        write_json({"stages": stages, "forward": forward, "backward": backward, "methods": rows})
        return
    console = make_console()
    console.print(f"K = {stages} equal devices, T_F = {forward:g}, T_B = {backward:g}, without the time of messages")
    table = new_table(("method",), ("time per minibatch", "printed", "times as fast\nas sequential"))
    for row in rows:
        speed_up = rows[0]["time"] / row["time"] if row["time"] else 1.0
        table.add_row(row["method"], f"{row['time']:.6g}", f"{row['paper_time']:.6g}", f"{speed_up:.4g}")
    print_table(console, table)
    console.print("stored on device k, sections 2.1 to 2.4: weight versions / activations / inputs of minibatches")
    table = new_table(("method",), [f"k = {device}" for device in range(1, stages + 1)])
    for row in rows:
        cells = [f"{state['weights']}/{state['activations']}/{state['inputs']}" for state in row["stored"]]
        table.add_row(row["method"], *cells)
    print_table(console, table)
    console.print("ddg and fr: with barriers; by the printed time of fr, no device computes its forward pass again.")


@app.command("chen")
def chen(
    network: Network = "3072-32x2048-10", batch: Minibatch = 128, ranks: P = 4, output_format: OutputFormat = "text"
) -> None:
    """Chen et al. 2018, Figure 3: bytes of a step of data parallelism, of a layer pipeline, and their ratio."""
    from hybridnn_papers.formulas import data_parallel_bytes, pipeline_bytes

    widths = _widths(network)
    if len(widths) <= ranks:
        raise SettingError("--ranks", ranks, f"at most {len(widths) - 1}, the layers of the network")
    data, model = data_parallel_bytes(widths, ranks), pipeline_bytes(widths, batch, ranks)
    facts = {
        "widths": widths,
        "weights": _weights(widths),
        "batch": batch,
        "ranks": ranks,
        "data_parallel_bytes": data,
        "pipeline_bytes": model,
        "ratio": data / model if model else None,
    }
    if output_format == "json":
        write_json(facts)
        return
    console = make_console()
    console.print(f"W = {facts['weights']:,} weights, B = {batch:,}, P = {ranks}, 4 bytes per element")
    rows = [
        ("data parallelism, 2 (P-1) W", f"{data:,}"),
        ("layer pipeline, 2 B d at every boundary", f"{model:,}"),
        ("ratio, W / (B d) where all boundaries have width d", f"{data / model:.1f}" if model else MISSING),
    ]
    print_table(console, new_table(("Figure 3",), ("bytes per step, all ranks",), rows))
    console.print("The paper prints 13.4 on average over its six networks, and up to 528.")


@app.command("book")
def book(
    gpus: Annotated[int, count("GPUs, N.", "--gpus")] = 3,
    inputs: Annotated[int, count("Inputs of a batch, or its microbatches, M.", "--inputs")] = 3,
    output_format: OutputFormat = "text",
) -> None:
    """Book chapter 6, Figures 6.1 to 6.10: idle time of vanilla model parallelism, slots of pipelined inputs."""
    from hybridnn_papers.pipeline_formulas import forward_slots, idle_slots, utilisation

    facts: Facts = {
        "gpus": gpus,
        "inputs": inputs,
        "vanilla": {
            "slots": 2 * gpus,
            "working_slots": 2,
            "idle_slots": idle_slots(gpus),
            "utilisation": utilisation(gpus),
        },
        "one_after_another_slots": forward_slots(gpus, inputs, pipelined=False),
        "pipelined_slots": forward_slots(gpus, inputs),
        "pipelined_utilisation": utilisation(gpus, inputs),
    }
    if output_format == "json":
        write_json(facts)
        return
    vanilla = facts["vanilla"]
    rows = [
        ("a training iteration", "2 N", f"{vanilla['slots']} slots"),
        ("a GPU works", "2", f"{vanilla['working_slots']} slots"),
        ("a GPU is idle", "2 (N-1)", f"{vanilla['idle_slots']} slots"),
        ("utilisation", "1/N", f"{vanilla['utilisation']:.2%}"),
        ("forward, inputs one after another (6.7)", "N M", f"{facts['one_after_another_slots']} slots"),
        ("forward, pipelined (6.9); backward the same (6.10)", "N + M - 1", f"{facts['pipelined_slots']} slots"),
        ("utilisation with pipelined inputs", "M / (N+M-1)", f"{facts['pipelined_utilisation']:.2%}"),
    ]
    console = make_console()
    console.print(f"N = {gpus} GPUs, M = {inputs} inputs; a pass of one input through one GPU takes one slot")
    print_table(console, new_table(("chapter 6",), ("formula", "value"), rows))


@app.command("map")
def map_grids(
    ranks: P = 32,
    layers: Annotated[int, count("Layers of width x width weights.")] = 3,
    widths: Annotated[str, option("Widths of the rows.", "N,N,…")] = "64,256,1024,4096,16384",
    batches: Annotated[str, option("Minibatches of the columns.", "N,N,…")] = "32,128,512,2048,8192",
    alpha: Alpha = ONE_MICROSECOND,
    beta: Beta = EIGHT_GIGABYTES,
    machine: Annotated[str | None, option("Map whole steps by a machine too (default: formulas only).", "FILE")] = None,
    plot: Annotated[Path | None, option("Draw the maps too (default: only print them).", "FILE.png|.svg|.pdf")] = None,
    output_format: OutputFormat = "text",
) -> None:
    """Map where batch, model or integrated parallelism is fastest (the future work of Laugier et al. 2018)."""
    from hybridnn.cost.machine_file import require_machine
    from hybridnn.drawing.figures import require_format
    from hybridnn_papers.grid_map import grid_map_picture, map_of_formulas, map_of_machine

    rows, columns = _counts("--widths", widths), _counts("--batches", batches)
    _require_numbers({"--alpha": alpha, "--beta": beta}, {"--ranks": ranks, "--layers": layers})
    picture = ""
    if plot is not None:
        picture = require_format(plot, "--plot")
        require_place("--plot", plot)
    cluster = None if machine is None else require_machine(machine)
    maps = [map_of_formulas(layers, rows, columns, ranks, alpha, beta)]
    if cluster is not None:
        maps.append(map_of_machine(layers, rows, columns, ranks, cluster))
    drawn = grid_map_picture(maps, picture) if plot is not None else b""
    if output_format == "json":
        write_json([_map_facts(found) for found in maps])
    else:
        _print_maps(maps, layers)
    if plot is not None:
        write_file(drawn, plot)


def _print_maps(maps: Sequence[GridMap], layers: int) -> None:
    console = make_console()
    for found in maps:
        console.print(f"{found.title}; {layers} layers; cells: batch, model, or batch x model ranks", soft_wrap=True)
        table = new_table((), ("width \\ minibatch", *(f"{batch:,}" for batch in found.batches)))
        for width, names in zip(found.widths, found.names(), strict=True):
            table.add_row(f"{width:,}", *names)
        print_table(console, table)


def _map_facts(found: GridMap) -> Facts:
    cells = [
        {"width": width, "batch": batch, "grid": None if grid is None else list(grid)}
        for width, row in zip(found.widths, found.grids, strict=True)
        for batch, grid in zip(found.batches, row, strict=True)
    ]
    return {"title": found.title, "ranks": found.ranks, "cells": cells}


def _require_numbers(times: Mapping[str, float], counts: Mapping[str, int]) -> None:
    """Refuse infinite times, and counts that would take for ever."""
    from hybridnn.utils.checks import require_number, require_whole

    for name, value in times.items():
        require_number(name, value, at_least=0)
    for name, number in counts.items():
        require_whole(name, number, 1, MOST_RANKS if name == "--ranks" else MOST_NUMBERS)


def _widths(network: str) -> list[int]:
    """The widths of ``16-3x512-2``."""
    widths: list[int] = []
    for part in network.split("-"):
        found = re.fullmatch(r"(?:(\d{1,9})x)?(\d{1,9})", part)
        times, width = (int(found[1] or 1), int(found[2])) if found else (0, 0)
        if not times or not width or len(widths) + times > MOST_NUMBERS:
            raise SettingError("--network", network, "widths like 16-512-512-2, or 16-2x512-2")
        widths += [width] * times
    if len(widths) < 2:
        raise SettingError("--network", network, "the input width and the outputs of at least one layer")
    return widths


def _counts(name: str, text: str) -> list[int]:
    parts = text.split(",")
    if len(parts) > MOST_NUMBERS or not all(re.fullmatch(r"[1-9]\d{0,8}", part.strip()) for part in parts):
        raise SettingError(name, text, "whole numbers from 1, with commas between them")
    return [int(part) for part in parts]


def _weights(widths: Sequence[int]) -> int:
    return sum(inputs * outputs for inputs, outputs in pairwise(widths))


def _micro(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * MICROSECONDS


def _number(value: float | None) -> str:
    """Bytes as whole numbers, times with three digits or more."""
    if value is None:
        return MISSING
    if value == float("inf"):
        return "always"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
