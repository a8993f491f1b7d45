"""Optimizers by name: those of hybridnn, and those of installed packages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from hybridnn.errors import SettingError
from hybridnn.nn.delayed_updates import PipeMareAdam, PipeMareSGD, SpikeSGD
from hybridnn.nn.optimizers import SGD, Adam, AdamW, NAdam, Optimizer, RMSprop
from hybridnn.utils.checks import must_be_one_of

OPTIMIZERS = (SGD, SpikeSGD, PipeMareSGD, Adam, AdamW, NAdam, PipeMareAdam, RMSprop)
"""The optimizers that settings can name; the first is the default."""


@cache
def installed_optimizers() -> Mapping[str, type[Optimizer]]:
    """Optimizers that installed packages add by entry points."""
    from hybridnn.utils.plugins import installed

    def is_one(found: object) -> bool:
        return isinstance(found, type) and issubclass(found, Optimizer)

    return dict(installed("optimizer.name", "optimizer", is_one, [kind.name for kind in OPTIMIZERS]))


def find_optimizer(name: str) -> Optimizer:
    """An optimizer of a name, such as ``"adam"``, with its default settings."""
    kinds = {kind.name: kind for kind in OPTIMIZERS}
    kind = kinds.get(name.lower()) or installed_optimizers().get(name)
    if kind is None:
        raise SettingError("optimizer", name, must_be_one_of([*kinds, *installed_optimizers()]))
    return kind()
