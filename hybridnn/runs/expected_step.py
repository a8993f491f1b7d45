"""What a machine file expects of a run, to be kept beside what is measured."""

from __future__ import annotations

from dataclasses import asdict

from hybridnn.comm.agreement import agree
from hybridnn.config.settings import Settings
from hybridnn.cost.machine.file import find_machine, read_machine
from hybridnn.cost.prediction.predict import predict
from hybridnn.runs.workload import gradient_rounding, layout_of_plan, workload_of_run
from hybridnn.training.records import PredictedStep
from hybridnn.training.trainer import Trainer


def expected_step(settings: Settings, trainer: Trainer, train_samples: int, task: str) -> PredictedStep | None:
    """Predict the steps of a run with the machine file that lies in the working folder or is named by the environment.

    Collective over the grid.

    Returns
    -------
    PredictedStep or None
        On rank 0; None on other ranks, and where there is no machine file or a GPU trains: machine files know CPUs.

    Raises
    ------
    HybridnnError
        On every rank: the machine file cannot be used.
    """
    sharing_ranks, node_ranks = trainer.sharing_ranks(), trainer.node_ranks()

    def on_first_rank() -> PredictedStep | None:
        found = find_machine() if trainer.grid.rank == 0 and trainer.device.kind == "cpu" else None
        if found is None:
            return None
        machine = read_machine(found)
        parallel = settings.parallel
        layout = layout_of_plan(
            trainer.plan,
            trainer.grid.stages,
            trainer.plan.layers,
            split=parallel.model_split,
            overlap=trainer.overlap,
            sharing_ranks=sharing_ranks,
            wire=gradient_rounding(parallel.wire_dtype, node_ranks),
        )
        expected = predict(workload_of_run(settings, trainer.model, train_samples, task), layout, machine)
        return PredictedStep(
            machine.name,
            expected.seconds_per_step,
            expected.seconds_per_epoch,
            expected.bytes_per_step,
            asdict(expected.parts) | {"communication_hidden": expected.communication_hidden},
            expected.instructions,
        )

    return agree(trainer.grid.world, on_first_rank)
