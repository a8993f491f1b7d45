"""What a checkpoint is of: the training, as text and numbers that can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridnn.training.checkpoints.manifest import Origin

if TYPE_CHECKING:
    from hybridnn.training.trainer import Trainer

__all__ = ["origin_of"]


def origin_of(trainer: Trainer, data: str) -> Origin:
    """Describe a training.

    Parameters
    ----------
    trainer : Trainer
    data : str
        Identity of its data.
    """
    plan = trainer.plan
    return Origin(
        model=repr(trainer.model),
        optimizer=repr(trainer.optimizer),
        data=data,
        seed=trainer.seed,
        shuffle=trainer.shuffle,
        stages=trainer.grid.stages,
        model_split=trainer.model_split,
        partition=plan.layers,
        chunks=plan.chunks,
        method=plan.label,
    )
