"""Multi-layer perceptrons, from scratch on NumPy, trained over MPI.

Importing this package is cheap: NumPy, mpi4py and other dependencies are loaded on first use.
"""

from __future__ import annotations

import atexit
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hybridnn._version import __version__
from hybridnn.comm.mpi import register_single_rank, set_rank_settings

if TYPE_CHECKING:
    from hybridnn.drawing.timelines import schedule
    from hybridnn.errors import HybridnnError
    from hybridnn.nn.delayed_updates import PipeMareAdam, PipeMareSGD, SpikeSGD
    from hybridnn.nn.learning_rates import Constant, Cosine, LambdaLR, Step, WarmupLinear
    from hybridnn.nn.mlp import MLP
    from hybridnn.nn.optimizers import SGD, Adam, AdamW, NAdam, RMSprop
    from hybridnn.parallel.grid import ProcessGrid
    from hybridnn.training.callbacks import EarlyStopping, ProgressBar, ReduceLROnPlateau
    from hybridnn.training.config import DeviceOptions, TrainConfig
    from hybridnn.training.staleness import StalenessDiagnosis
    from hybridnn.training.trained_network import Callback
    from hybridnn.training.trainer import Trainer

__all__ = [
    "MLP",
    "SGD",
    "Adam",
    "AdamW",
    "Callback",
    "Constant",
    "Cosine",
    "DeviceOptions",
    "EarlyStopping",
    "HybridnnError",
    "LambdaLR",
    "NAdam",
    "PipeMareAdam",
    "PipeMareSGD",
    "ProcessGrid",
    "ProgressBar",
    "RMSprop",
    "ReduceLROnPlateau",
    "SpikeSGD",
    "StalenessDiagnosis",
    "Step",
    "TrainConfig",
    "Trainer",
    "WarmupLinear",
    "__version__",
    "schedule",
]

_PUBLIC = {
    "drawing.timelines": "schedule",
    "errors": "HybridnnError",
    "nn.delayed_updates": "PipeMareAdam PipeMareSGD SpikeSGD",
    "nn.learning_rates": "Constant Cosine LambdaLR Step WarmupLinear",
    "nn.mlp": "MLP",
    "nn.optimizers": "SGD Adam AdamW NAdam RMSprop",
    "parallel.grid": "ProcessGrid",
    "training.callbacks": "EarlyStopping ProgressBar ReduceLROnPlateau",
    "training.config": "DeviceOptions TrainConfig",
    "training.staleness": "StalenessDiagnosis",
    "training.trained_network": "Callback",
    "training.trainer": "Trainer",
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}


def _leave() -> None:
    """Send how this rank exits to the ranks that wait for it, where MPI was loaded."""
    if "mpi4py.MPI" in sys.modules:
        import_module("hybridnn.diagnostics.failsafe").send_departure()


atexit.register(_leave)
set_rank_settings(os.environ)
register_single_rank(lambda: import_module("hybridnn.in_process").one_rank())


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
