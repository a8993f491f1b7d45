"""Training cases on the stand-in device, and their comparison with the references and the CPU."""

from __future__ import annotations

from dataclasses import replace

from hybridnn import ProcessGrid
from hybridnn.training.device import TrainingDevice
from reference.cases import Case, assert_arrays_close, check_against_reference, run

__all__ = ["CASES", "CLIPPED", "EXACTLY", "SPLIT", "check"]

EXACTLY = 1e-12
CLIPPED = Case(clip_norm=0.05)
CASES = {
    "momentum": Case(),
    "clipped": CLIPPED,
    "adam": Case(classification=False, optimizer="adam", activation="selu"),
    "residual": Case((6, 6, 6, 4), residual=True, optimizer="nesterov", activation="relu"),
    "plain": Case(optimizer="plain", activation="sigmoid", schedule="cosine"),
}
SPLIT = replace(CASES["residual"], model_split="alternating")


def check(case: Case, grid: ProcessGrid, device: TrainingDevice) -> None:
    """The reference says what is right; the CPU does the same to the last digits."""
    trainer = check_against_reference(case, grid, device=device)
    on_cpu = run(replace(case, shared_replicas=False), grid, device="cpu")
    assert_arrays_close(trainer.weights(), on_cpu.weights(), str(case), EXACTLY)
