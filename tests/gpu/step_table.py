"""Launches and bytes of a captured step, beside the fewest bytes that it can move: ``make gpu-steps``.

The device is emulated and executes copies alone: only what is launched counts. A kernel reads its inputs and writes its
outputs once; a product of m x k and k x n moves these and its result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridnn import MLP, SGD, Adam, NAdam, ProcessGrid, RMSprop, Trainer
from hybridnn.gpu.engine import GpuDevice, StepCapture
from hybridnn.nn.optimizers import Optimizer
from reference.emulated_device import DeviceArray, EmulatedCupy

NETWORKS = {"784-3x1024-10": (784, 1024, 1024, 1024, 10), "3072-8x2048-10": (3072, *[2048] * 8, 10)}
IN_PLACE = {"sgd_update": 1, "spike_update": 1, "rmsprop_update": 1, "adam_update": 2, "nadam_update": 2}
"""Arrays that an update reads and writes, after weights and gradient."""


class Counting(EmulatedCupy):
    def __init__(self) -> None:
        super().__init__()
        self.moved: list[tuple[str, int]] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        array = super().empty(shape, dtype)
        array._memory.fill(0)  # a loss and norms that are not computed are finite
        return array

    def launch(self, name: str, work: Any, grid: Any = (), block: Any = (), arguments: Any = ()) -> None:
        self.moved.append((name, bytes_of(name, arguments)))
        if name == "copy":
            super().launch(name, work)


def bytes_of(name: str, arguments: Any) -> int:
    if name == "product":
        m, n, k = arguments[3:6]
        return 4 * (m * k + k * n + m * n)
    arrays = [argument.nbytes for argument in arguments if isinstance(argument, DeviceArray)]
    if name in ("begin_step", "gather_rows"):  # of the samples of the minibatch
        return 2 * arrays[2]
    again = arrays[2 : 2 + IN_PLACE.get(name, 0)] if name.endswith("update") else arrays[: name.startswith("bias")]
    return sum(arrays) + sum(again)


def count(sizes: tuple[int, ...], optimizer: Optimizer, batch_size: int) -> list[int]:
    """Launches of a captured step, bytes of its products, its update and all launches, and the fewest bytes."""
    cupy, random = Counting(), np.random.default_rng(0)
    kernels = cupy.kernels()
    device = GpuDevice(kernels, "gpu", "counting", capture=StepCapture(kernels.record))
    x, y = random.standard_normal((3 * batch_size, sizes[0])), random.integers(0, sizes[-1], 3 * batch_size)
    trainer = Trainer(MLP(sizes), optimizer, grid=ProcessGrid(), batch_size=batch_size, device=device)
    trainer.fit(x.astype(np.float32), y, epochs=1)
    begin = [place for place, (name, _) in enumerate(cupy.moved) if name == "begin_step"][
        1
    ]  # the first is not captured
    end = [name for name, _ in cupy.moved].index("end_step", begin) + 1
    parts = [
        sum(moved for name, moved in cupy.moved[begin:end] if name.endswith(kind)) for kind in ("product", "update", "")
    ]
    # Weights: forward, back (not in the first layer), gradient. Activations and their gradients: written, read by two.
    weights = (6 + 2 * len(optimizer.slot_names)) * trainer.model.parameters - sizes[0] * sizes[1]
    return [end - begin, *parts, 4 * (weights + 6 * batch_size * sum(sizes))]


def main() -> None:
    print("| network | optimizer | launches | MB of products | update | all | fewest | all / fewest |")
    print("|---|---|---|---|---|---|---|---|")
    for name, sizes in NETWORKS.items():
        for optimizer in (SGD(), Adam(), RMSprop(), NAdam()):
            launches, *moved = count(sizes, optimizer, 128)
            figures = " | ".join(f"{one / 1e6:.0f}" for one in moved)
            print(f"| {name} | {optimizer.name} | {launches} | {figures} | {moved[2] / moved[3]:.2f} |")


if __name__ == "__main__":
    main()
