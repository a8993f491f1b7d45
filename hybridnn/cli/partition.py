"""`hybridnn partition`: what every layer costs, and which layers each stage of a pipeline should have."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridnn.cli.output import Format
from hybridnn.cli.ranks import first_rank_alone
from hybridnn.errors import DataError, SettingError
from hybridnn.pipeline.partition.stage_partition import TYPICAL_LINK

if TYPE_CHECKING:
    from hybridnn.cli.partition_view import LayerCosts
    from hybridnn.config.settings import Settings
    from hybridnn.nn.mlp import MLP


def _count(text: str) -> Any:
    return typer.Option(min=1, help=text, metavar="N", show_default=False)


def _file(text: str) -> Any:
    return typer.Option(help=text, metavar="FILE", show_default=False)


def partition(
    config: Annotated[
        Path | None,
        typer.Argument(help="A settings file.", metavar="CONFIG.toml", show_default=False),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change any setting; may be given many times.", metavar="SECTION.KEY=VALUE"),
    ] = None,
    stages: Annotated[int | None, _count("Stages of the pipeline; without, the fastest number for --ranks.")] = None,
    ranks: Annotated[int | None, _count("Choose also how many of N ranks share each stage.")] = None,
    profile: Annotated[Path | None, _file("Read the costs of the layers (JSON) instead of timing them.")] = None,
    save_profile: Annotated[Path | None, _file("Write the costs of the layers (JSON).")] = None,
    samples: Annotated[int | None, _count("Samples of a timed pass; without, training.batch_size.")] = None,
    threads: Annotated[int | None, _count("BLAS threads of a timed pass; without, 1.")] = None,
    alpha: Annotated[
        float, typer.Option(min=0.0, help="Seconds per message; the default is usual inside a node.", metavar="S")
    ] = TYPICAL_LINK.alpha,
    beta: Annotated[
        float, typer.Option(min=0.0, help="Seconds per byte; the default is usual inside a node.", metavar="S")
    ] = TYPICAL_LINK.beta,
    output_format: Annotated[Format, typer.Option("--format", help="How to print the result.")] = Format.text,
) -> None:
    """Time the layers on this machine and divide them into stages: by their number, and by their time."""
    if stages is None and ranks is None:
        raise SettingError("--stages", "", "give the number of stages, or --ranks to have it chosen")
    for name, value in (("--samples", samples), ("--threads", threads)):
        if profile is not None and value is not None:
            raise SettingError(name, value, "nothing is timed where --profile is given")
    if save_profile is not None and not os.path.isdir(save_profile.parent):
        raise SettingError("--save-profile", str(save_profile), f"there is no folder {str(save_profile.parent)!r}")

    from hybridnn.config.file import load_settings

    settings = None if profile and not (config or overrides) else load_settings(config, overrides or ())

    # Only now, so that a wrong setting is reported without waiting for the rest to load.
    from hybridnn.cli.partition_view import make_plans, print_plans
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
        print_plans(costs, link, make_plans(costs.profile, link, stages, ranks), as_json=output_format is Format.json)


def _timed_costs(
    settings: Settings, samples: int | None, threads: int | None, check: Callable[[int], None]
) -> LayerCosts:
    from hybridnn.cli.partition_view import LayerCosts
    from hybridnn.pipeline.partition.layer_profile import REPEATS, time_layers

    model = _network(settings)
    check(len(model.layers))
    samples, threads, dtype = samples or settings.training.batch_size, threads or 1, settings.training.dtype
    source = {"samples": samples, "dtype": dtype, "threads": threads, "repeats": REPEATS}
    return LayerCosts(time_layers(model, samples, dtype, threads=threads), model.sizes, source)


def _read_costs(path: Path, settings: Settings | None, check: Callable[[int], None]) -> LayerCosts:
    from hybridnn.cli.partition_view import LayerCosts
    from hybridnn.pipeline.partition.layer_profile import read_profile

    layers = read_profile(path)
    model = None if settings is None else _network(settings)
    if model is not None and len(layers) != len(model.layers):
        raise DataError(f"{path}: {len(layers)} layers, the network of the settings has {len(model.layers)}")
    check(len(layers))
    return LayerCosts(layers, None if model is None else model.sizes, {"file": str(path)})


def _network(settings: Settings) -> MLP:
    """The network of a run; data are loaded only where nothing else knows their features and outputs."""
    from hybridnn.datasets import SyntheticSpec, dataset_info, load_dataset, load_file
    from hybridnn.nn.mlp import MLP

    data = settings.data
    if data.file is not None:
        known: Any = load_file(data.file, data.targets, inputs=data.inputs)
    elif data.name == "synthetic":
        known = load_dataset(data.name, synthetic=SyntheticSpec(**data.synthetic.model_dump()))
    elif data.features == "paper":
        known = load_dataset(str(data.name), variant=data.features)
    else:
        known = dataset_info(str(data.name))
    sizes = [known.features, *settings.model.hidden, known.outputs]
    return MLP(sizes, settings.model.activation, residual=settings.model.residual)
