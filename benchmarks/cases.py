"""Networks of the benchmarks, and programs of hybridnn, PyTorch and scikit-learn that train them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hybridnn import ProcessGrid, Trainer

LEARNING_RATE = 1e-4
MOMENTUM = 0.9


@dataclass(frozen=True)
class Case:
    """A network, its minibatch, and the length of a timed run, which takes at least a tenth of a second."""

    name: str
    sizes: tuple[int, ...]
    batch_size: int
    task: str  # one of "regression", "classification"
    minibatches: int  # in the data
    epochs: int  # passes over them in one timed run
    activation: str = "relu"  # of the hidden layers
    stages: tuple[int, ...] = ()  # layers of each of two stages whose products take about as many operations
    adam: bool = False  # instead of SGD with momentum

    @property
    def about(self) -> dict[str, Any]:
        """Name and minibatch, as results begin."""
        return {"case": self.name, "batch_size": self.batch_size}

    @property
    def steps(self) -> int:
        """Steps in one timed run."""
        return self.minibatches * self.epochs

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return sum((inputs + 1) * outputs for inputs, outputs in zip(self.sizes, self.sizes[1:], strict=False))

    @property
    def products_flops(self) -> int:
        """Floating-point operations of the matrix products of a step, without the gradient of the network input."""
        multiply_adds = [a * b for a, b in zip(self.sizes, self.sizes[1:], strict=False)]
        return 2 * self.batch_size * (3 * sum(multiply_adds) - multiply_adds[0])


CASES = (
    Case("4-64-64-64-1", (4, 64, 64, 64, 1), 100, "regression", 40, 10, stages=(2, 2)),
    Case(
        "784-128-127-126-125-124-123-10",
        (784, 128, 127, 126, 125, 124, 123, 10),
        128,
        "classification",
        40,
        2,
        stages=(2, 5),
    ),
    Case("16-4x1024-2", (16, 1024, 1024, 1024, 1024, 2), 100, "regression", 10, 1, stages=(3, 2)),
    Case("3072-8x2048-10", (3072, *[2048] * 8, 10), 128, "classification", 2, 1, "selu", stages=(4, 5)),
)
"""Two small networks, one of equal layers, and the network of Chen 2018, section 4, with 8 of its 32 hidden layers."""

LARGE_BATCH = replace(CASES[3], batch_size=512)
"""The largest network with a larger minibatch: two ranks compute longer between messages."""

MICROBATCHES = 4
"""Microbatches per minibatch in a pipeline; all minibatches of `CASES` are multiples of it."""

GPU_CASES = (
    *CASES[:2],
    replace(CASES[2], minibatches=40),
    replace(CASES[2], name="Adam, 16-4x1024", minibatches=40, adam=True),
    Case("3072-32x2048-10", (3072, *[2048] * 32, 10), 128, "classification", 24, 1, "selu"),
    Case("4096-8x4096-4096", (4096, *[4096] * 8, 4096), 1024, "regression", 20, 1),
)
"""The same networks, one with Adam, Chen's whole one, and a large one; the number of epochs depends on the speed.

Epochs have at least twenty steps: at the end of each we wait for the device and compute norms, PyTorch's loop does not.
"""


def make_data(case: Case) -> tuple[NDArray[Any], NDArray[Any]]:
    """Random float32 samples and targets, equal on all ranks."""
    rng = np.random.default_rng(0)
    samples = case.batch_size * case.minibatches
    x = rng.standard_normal((samples, case.sizes[0]), np.float32)
    if case.task == "classification":
        return x, rng.integers(0, case.sizes[-1], samples)
    return x, rng.standard_normal((samples, case.sizes[-1]), np.float32)


def our_run(
    case: Case, grid: ProcessGrid, *, as_rows: bool = False, **settings: Any
) -> tuple[Trainer, Callable[[], Any]]:
    """A trainer with further `settings`, and a function that makes one timed run.

    Parameters
    ----------
    as_rows : bool
        Pass the samples as `ArrayRows`, which stay in GPU memory from run to run. Arrays may change between two runs,
        so that every run computes their digest first.
    """
    from hybridnn import MLP, SGD, Adam, Trainer
    from hybridnn.data import ArrayRows

    optimizer = Adam(LEARNING_RATE) if case.adam else SGD(LEARNING_RATE, MOMENTUM)
    model = MLP(case.sizes, activation=case.activation)
    trainer = Trainer(model, optimizer, grid=grid, batch_size=case.batch_size, **settings)
    x, y = make_data(case)
    samples = (ArrayRows(x, y), None) if as_rows else (x, y)
    return trainer, lambda: trainer.fit(*samples, epochs=case.epochs)


def torch_model(case: Case) -> Any:
    """The same network in PyTorch."""
    import torch

    activation = {"relu": torch.nn.ReLU, "selu": torch.nn.SELU}[case.activation]
    layers: list[Any] = []
    for inputs, outputs in zip(case.sizes, case.sizes[1:], strict=False):
        layers += [torch.nn.Linear(inputs, outputs), activation()]
    return torch.nn.Sequential(*layers[:-1])


def sklearn_run(case: Case) -> Callable[[], Any]:
    """A function that makes one timed run in scikit-learn, with new weights in each run."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    kind = MLPClassifier if case.task == "classification" else MLPRegressor
    estimator = kind(
        hidden_layer_sizes=case.sizes[1:-1],
        activation="relu",
        solver="sgd",
        batch_size=case.batch_size,
        learning_rate_init=LEARNING_RATE,
        momentum=MOMENTUM,
        nesterovs_momentum=False,
        alpha=0.0,
        max_iter=case.epochs,
        tol=0.0,
        n_iter_no_change=case.epochs + 1,
    )
    x, y = make_data(case)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y

    def run() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is fixed
            estimator.fit(x, y)

    return run


def torch_run(case: Case, model: Any, rows: slice = slice(None), device: str = "cpu") -> Callable[[], None]:
    """A function that makes one timed run in PyTorch, with the samples `rows` of every minibatch on this rank.

    It is a usual training loop, but the loss is never copied to Python, an advantage for PyTorch, because hybridnn
    checks the loss of every step. On a GPU the data are on the device before the run, and the optimizer is fused.
    """
    import torch

    kind = torch.optim.Adam if case.adam else partial(torch.optim.SGD, momentum=MOMENTUM)
    optimizer = kind(model.parameters(), LEARNING_RATE, fused=device != "cpu")
    loss_of = torch.nn.MSELoss() if case.task == "regression" else torch.nn.CrossEntropyLoss()
    x, y = (torch.from_numpy(array).to(device) for array in make_data(case))
    shuffle = torch.Generator(device).manual_seed(0)

    def run() -> None:
        for _ in range(case.epochs):
            order = torch.randperm(len(x), generator=shuffle, device=device)
            for start in range(0, len(x), case.batch_size):
                indices = order[start : start + case.batch_size][rows]
                optimizer.zero_grad()
                loss = loss_of(model(x[indices]), y[indices])
                loss.backward()
                optimizer.step()

    return run
