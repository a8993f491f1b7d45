"""The ``[device]`` section: what computes, and how its arrays travel between ranks."""

from __future__ import annotations

from typing import Literal

from hybridnn.settings_types import Section

__all__ = ["DeviceSettings"]

GPU_KEYS = frozenset({"transport", "tf32", "graphs"})


class DeviceSettings(Section):
    """``[device]``: the CPU or GPUs; what stands behind `name` means nothing on the CPU.

    Attributes
    ----------
    name : str
        ``"auto"``: a GPU where every rank finds one, else the CPU.
    transport : str
        How arrays of GPUs travel between ranks: through pinned memory of the host (``"staging"``), by an MPI library
        that reads GPU memory (``"mpi"``), or by NCCL. ``"auto"``: NCCL where every rank has a GPU of its own, else
        staging.
    tf32 : bool
        Round the factors of float32 matrix products to TF32: faster, less precise.
    graphs : bool
        Replay recorded steps (CUDA graphs), where one rank trains, or batch ranks do that NCCL connects.
    """

    name: Literal["auto", "cpu", "gpu"] = "auto"
    transport: Literal["auto", "staging", "mpi", "nccl"] = "auto"
    tf32: bool = False
    graphs: bool = False

    def foreign_keys(self) -> frozenset[str]:
        """Those of a GPU, on the CPU."""
        return GPU_KEYS if self.name == "cpu" else frozenset()
