"""What `hybridnn partition` prints: the costs of the layers, the partitions, and what they are expected to cost."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from hybridnn.cli.output import make_console, print_json
from hybridnn.pipeline.partition.layer_profile import LayerProfile
from hybridnn.pipeline.partition.stage_partition import (
    LinkCost,
    PartitionPlan,
    balanced_partition,
    plan_partition,
    replicated_partition,
    uniform_partition,
)

if TYPE_CHECKING:
    from rich.table import Table


Plans = Mapping[str, PartitionPlan]


@dataclass(frozen=True)
class LayerCosts:
    """Costs of the layers and where they come from.

    Attributes
    ----------
    profile : tuple of LayerProfile
    sizes : tuple of int or None
        Widths of the network, where its settings are known.
    source : mapping
        How the costs were measured, or the file they were read from.
    """

    profile: tuple[LayerProfile, ...]
    sizes: tuple[int, ...] | None
    source: Mapping[str, object]


def make_plans(profile: tuple[LayerProfile, ...], link: LinkCost, stages: int | None, ranks: int | None) -> Plans:
    """Partition uniformly, by the profile, and for `ranks` with replicated stages; without `stages` as that chooses."""
    message, reduction = link.message_seconds, link.reduction_seconds
    plans: dict[str, PartitionPlan] = {}
    if ranks is not None:
        layers, replicas = zip(
            *replicated_partition(profile, ranks, stages, message_seconds=message, reduction_seconds=reduction),
            strict=True,
        )
        stages = len(layers)
        plans["replicated"] = plan_partition(
            profile, layers, replicas, message_seconds=message, reduction_seconds=reduction
        )
    assert stages is not None, "either the stages or the ranks are given"
    one_rank_each = {
        "uniform": uniform_partition(len(profile), stages),
        "profile": balanced_partition(profile, stages, message_seconds=message),
    }
    compared = {
        name: plan_partition(profile, counts, message_seconds=message) for name, counts in one_rank_each.items()
    }
    return compared | plans


def print_plans(costs: LayerCosts, link: LinkCost, plans: Plans, *, as_json: bool) -> None:
    """Print everything on standard output."""
    if as_json:
        print_json(_facts(costs, link, plans))
        return
    console = make_console(sys.stdout)
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
        console.print(f"{name}: {_setting(plan)}", soft_wrap=True)


def _facts(costs: LayerCosts, link: LinkCost, plans: Plans) -> dict[str, object]:
    layers = [asdict(layer) for layer in costs.profile]
    if costs.sizes is not None:
        for layer, inputs, outputs in zip(layers, costs.sizes, costs.sizes[1:], strict=False):
            layer |= {"inputs": inputs, "outputs": outputs}
    summaries = {
        name: {**asdict(plan), "bottleneck": plan.bottleneck, "balance": plan.balance} for name, plan in plans.items()
    }
    return {"source": costs.source, "alpha": link.alpha, "beta": link.beta, "layers": layers, **summaries}


def _layer_table(costs: LayerCosts) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for title in ("layer", "widths", "forward\nms", "backward\nms", "output\nbytes", "parameter\nbytes"):
        table.add_column(title, justify="right", vertical="bottom", no_wrap=True)
    for index, layer in enumerate(costs.profile):
        widths = "-" if costs.sizes is None else f"{costs.sizes[index]} > {costs.sizes[index + 1]}"
        times = (_milliseconds(layer.forward_seconds), _milliseconds(layer.backward_seconds))
        table.add_row(str(index), widths, *times, f"{layer.output_bytes:,.0f}", f"{layer.parameter_bytes:,.0f}")
    return table


def _stage_table(plans: Plans) -> Table:
    """One row per stage and partition; the first of a partition says what is expected of it as a whole."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    table.add_column("partition", vertical="bottom", no_wrap=True)
    for title in ("slowest\nms", "balance", "stage", "layers", "ranks", "stage\nms", "message\nms"):
        table.add_column(title, justify="right", vertical="bottom", no_wrap=True)
    for name, plan in plans.items():
        first = 0
        for stage, count in enumerate(plan.stages):
            whole = (name, _milliseconds(plan.bottleneck), f"{plan.balance:.2f}") if stage == 0 else ("", "", "")
            layers = f"{first}-{first + count - 1}" if count > 1 else str(first)
            message = _milliseconds(plan.message_seconds[stage]) if stage < len(plan.message_seconds) else ""
            own = (str(plan.replicas[stage]), _milliseconds(plan.stage_seconds[stage]), message)
            table.add_row(*whole, str(stage), layers, *own, end_section=stage == len(plan.stages) - 1)
            first += count
    return table


def _setting(plan: PartitionPlan) -> str:
    """The settings that choose this partition."""
    text = f"parallel.partition = {list(plan.stages)}"
    if max(plan.replicas) == 1:
        return text
    return f"{text}, parallel.stages = [{', '.join(f'{{batch = {replicas}}}' for replicas in plan.replicas)}]"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"
