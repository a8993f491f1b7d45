"""`hybridnn partition`: cost of every layer, and partitions of the layers into pipeline stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hybridnn.cli.options import Config, Format, OutputFormat, Overrides, count, option
from hybridnn.cli.output import MISSING, make_console, new_table, require_place, write_json
from hybridnn.cli.ranks import first_rank_alone
from hybridnn.errors import DataError, SettingError
from hybridnn.pipeline.partition.stage_partition import TYPICAL_LINK
from hybridnn.utils.text import format_milliseconds

if TYPE_CHECKING:
    from rich.table import Table

    from hybridnn.config.settings import Settings
    from hybridnn.nn.mlp import MLP
    from hybridnn.pipeline.partition.layer_profile import LayerProfile
    from hybridnn.pipeline.partition.stage_partition import LinkCost, PartitionPlan


@dataclass(frozen=True)
class LayerCosts:
    """Costs of the layers.

    `sizes` are the widths of the network, None where its settings are not given. `source` has the parameters of the
    measurement, or the file that was read.
    """

    profile: tuple[LayerProfile, ...]
    sizes: tuple[int, ...] | None
    source: Mapping[str, object]


def partition(
    config: Config = None,
    overrides: Overrides = None,
    stages: Annotated[int | None, count("Stages of the pipeline; without, the fastest number for --ranks.")] = None,
    ranks: Annotated[
        int | None, count("Also choose the replicas of each stage for N ranks; without, every stage has one.")
    ] = None,
    profile: Annotated[
        Path | None, option("Read the costs of the layers (JSON) instead of timing them.", "FILE")
    ] = None,
    save_profile: Annotated[
        Path | None, option("Write the costs of the layers to this JSON file; without, they are not kept.", "FILE")
    ] = None,
    samples: Annotated[int | None, count("Samples of a timed pass; without, training.batch_size.")] = None,
    threads: Annotated[int | None, count("BLAS threads of a timed pass; without, 1.")] = None,
    alpha: Annotated[
        float, option("Seconds per message; the default is typical inside a node.", "S", least=0.0)
    ] = TYPICAL_LINK.alpha,
    beta: Annotated[
        float, option("Seconds per byte; the default is typical inside a node.", "S", least=0.0)
    ] = TYPICAL_LINK.beta,
    output_format: OutputFormat = Format.text,
) -> None:
    """Time the layers on this machine and divide them into stages: by their number, and by their time."""
    if stages is None and ranks is None:
        message = "give --stages, the number of stages, or --ranks to have it chosen"
        raise SettingError("--stages", stages, message, message)
    for name, value in (("--samples", samples), ("--threads", threads)):
        if profile is not None and value is not None:
            raise SettingError(name, value, "nothing is timed where --profile is given")
    if save_profile is not None:
        require_place("--save-profile", save_profile)

    from hybridnn.config.settings import load_settings

    settings = None if profile and not (config or overrides) else load_settings(config, overrides or ())

    # Only now, so that a wrong setting is reported without waiting for the rest to load.
    from hybridnn.pipeline.partition.layer_profile import write_profile
    from hybridnn.pipeline.partition.stage_partition import LinkCost, check_stages

    link = LinkCost(alpha, beta)

    def check(layers: int) -> None:
        check_stages(layers, stages or 1, ranks)

    with first_rank_alone():
        if profile is not None:
            costs = _read_costs(profile, settings, check)
        else:
            assert settings is not None, "there are settings wherever there is no profile"
            costs = _timed_costs(settings, samples, threads, check)
        if save_profile is not None:
            write_profile(save_profile, costs.profile)
        plans = _make_plans(costs.profile, link, stages, ranks)
        if output_format is Format.json:
            write_json(_facts(costs, link, plans))
        else:
            _print_plans(costs, link, plans)


def _timed_costs(
    settings: Settings, samples: int | None, threads: int | None, check: Callable[[int], None]
) -> LayerCosts:
    from hybridnn.pipeline.partition.layer_profile import REPEATS, time_layers

    model = _network(settings)
    check(len(model.layers))
    samples, threads = samples or settings.training.batch_size, threads or 1
    dtype = settings.training.dtype
    source = {"samples": samples, "dtype": dtype, "threads": threads, "repeats": REPEATS}
    return LayerCosts(time_layers(model, samples, dtype, threads=threads), tuple(model.sizes), source)


def _read_costs(path: Path, settings: Settings | None, check: Callable[[int], None]) -> LayerCosts:
    from hybridnn.pipeline.partition.layer_profile import read_profile

    layers = read_profile(path)
    model = None if settings is None else _network(settings)
    if model is not None and len(layers) != len(model.layers):
        raise DataError(f"{path}: {len(layers)} layers, the network of the settings has {len(model.layers)}")
    check(len(layers))
    return LayerCosts(layers, None if model is None else tuple(model.sizes), {"file": str(path)})


def _network(settings: Settings) -> MLP:
    data = settings.data.describe(settings.model.task)
    return settings.model.make(data.features, data.outputs, data.task)


def _make_plans(
    profile: tuple[LayerProfile, ...], link: LinkCost, stages: int | None, ranks: int | None
) -> dict[str, PartitionPlan]:
    """Partition uniformly, by the profile, and for `ranks` with replicated stages, which also choose `stages`."""
    from hybridnn.pipeline.partition.stage_partition import (
        balanced_partition,
        plan_partition,
        replicated_partition,
        uniform_partition,
    )

    plans = {}
    if ranks is not None:
        layers, replicas = zip(*replicated_partition(profile, ranks, stages, link), strict=True)
        stages = len(layers)
        plans["replicated"] = plan_partition(profile, layers, replicas, link)
    assert stages is not None, "either the stages or the ranks are given"
    one_rank_each = {
        "uniform": uniform_partition(len(profile), stages),
        "profile": balanced_partition(profile, stages, link),
    }
    compared = {name: plan_partition(profile, counts, link=link) for name, counts in one_rank_each.items()}
    return compared | plans


def _print_plans(costs: LayerCosts, link: LinkCost, plans: Mapping[str, PartitionPlan]) -> None:
    console = make_console()
    source = costs.source
    if "file" in source:
        how = f"read from {source['file']}"
    else:
        passes = f"{source['repeats']} passes of {source['samples']} samples"
        how = f"median of {passes} on this machine, {source['dtype']}, BLAS threads: {source['threads']}"
    console.print(f"layers: {how}")
    console.print(_layer_table(costs))
    console.print(f"stages: a message of n bytes takes {link.alpha:g} s + n x {link.beta:g} s (--alpha, --beta)")
    console.print(_stage_table(plans))
    for name, plan in plans.items():
        console.print(f"{name}: {_settings_text(plan)}", soft_wrap=True)


def _facts(costs: LayerCosts, link: LinkCost, plans: Mapping[str, PartitionPlan]) -> dict[str, object]:
    layers = [asdict(layer) for layer in costs.profile]
    if costs.sizes is not None:
        for layer, inputs, outputs in zip(layers, costs.sizes, costs.sizes[1:], strict=False):
            layer |= {"inputs": inputs, "outputs": outputs}
    summaries = {
        name: {**asdict(plan), "bottleneck": plan.bottleneck, "balance": plan.balance} for name, plan in plans.items()
    }
    return {"source": costs.source, "alpha": link.alpha, "beta": link.beta, "layers": layers, **summaries}


def _layer_table(costs: LayerCosts) -> Table:
    rows = []
    for index, layer in enumerate(costs.profile):
        widths = MISSING if costs.sizes is None else f"{costs.sizes[index]} > {costs.sizes[index + 1]}"
        times = (format_milliseconds(layer.forward_seconds, 3), format_milliseconds(layer.backward_seconds, 3))
        rows.append((str(index), widths, *times, f"{layer.output_bytes:,.0f}", f"{layer.parameter_bytes:,.0f}"))
    titles = ("layer", "widths", "forward\nms", "backward\nms", "output\nbytes", "parameter\nbytes")
    return new_table((), titles, rows)


def _stage_table(plans: Mapping[str, PartitionPlan]) -> Table:
    """One row per stage and partition; the first of a partition has its name, slowest stage and balance."""
    titles = ("slowest\nms", "balance", "stage", "layers", "ranks", "stage\nms", "message\nms")
    table = new_table(("partition",), titles)
    for name, plan in plans.items():
        first = 0
        heading = (name, format_milliseconds(plan.bottleneck, 3), f"{plan.balance:.2f}")
        stages = zip_longest(plan.stages, plan.replicas, plan.stage_seconds, plan.message_seconds)
        for stage, (layers, ranks, seconds, message) in enumerate(stages):
            span = f"{first}-{first + layers - 1}" if layers > 1 else str(first)
            sent = "" if message is None else format_milliseconds(message, 3)
            table.add_row(*heading, str(stage), span, str(ranks), format_milliseconds(seconds, 3), sent)
            heading = ("", "", "")
            first += layers
        table.add_section()
    return table


def _settings_text(plan: PartitionPlan) -> str:
    """The settings that choose this partition."""
    text = f"parallel.partition = {list(plan.stages)}"
    if max(plan.replicas) == 1:
        return text
    return f"{text}, parallel.stages = [{', '.join(f'{{batch = {replicas}}}' for replicas in plan.replicas)}]"
