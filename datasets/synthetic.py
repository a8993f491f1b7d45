"""Generated data of any size, computed when samples are taken.

Every element is a function of (seed, stream, position): the SplitMix64 generator passes a counter through a mixing
function, so its n-th output costs as much as its first (Steele, Lea and Flood 2014, doi:10.1145/2660193.2660195). So
any rank can generate any rows, with equal values on all ranks, and no rank holds the whole data set.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.utils.checks import AtLeastZero, Count, OneOf, Range, Seed, require_fields, require_whole

from .info import DatasetInfo
from .rows import TASKS, Dataset, Task, check_indices

HIDDEN = 32
"""Hidden units of the teacher network."""

SEPARATION = 3.0
"""Root mean square distance of a cluster's mean from the origin; two means are about 4.2 standard deviations apart."""

_GAMMA, _MIX_1, _MIX_2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class _Stream(IntEnum):
    """Independent random sequences of one seed."""

    INPUTS = 0
    NOISE = 1
    LABELS = 2
    TEACHER = 3
    MEANS = 4


@dataclass(frozen=True)
class SyntheticSpec:
    """Parameters of generated data.

    Parameters
    ----------
    task : {'regression', 'classification'}
        A random teacher network, or Gaussian clusters of unit variance, one per class.
    samples, test_samples : int
        Sizes of the data splits; there is no test split if `test_samples` is 0.
    inputs, outputs : int
        Inputs per sample; target columns or classes.
    noise : float
        Standard deviation of the noise in regression targets, which have a standard deviation of about 0.6 without it.
    seed : int
        At least 0.

    Raises
    ------
    SettingError
        If a value is not allowed.
    """

    task: Annotated[Task, OneOf(TASKS)] = "regression"
    samples: Count = 10_000
    test_samples: Annotated[int, Range(at_least=0)] = 2_000
    inputs: Count = 16
    outputs: Count = 2
    noise: AtLeastZero = 0.1
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Check the values."""
        require_fields("data.synthetic", self)
        if self.task == "classification":
            require_whole("data.synthetic.outputs", self.outputs, 2)


class SyntheticRows:
    """Samples of a specification, generated when they are taken.

    Parameters
    ----------
    spec : SyntheticSpec
        Parameters of the data.
    start, stop : int
        First sample and the one after the last, counted over both data splits.
    """

    def __init__(self, spec: SyntheticSpec, start: int, stop: int) -> None:
        self.spec = spec
        self.start = start
        self.samples = stop - start
        self.features = spec.inputs
        regression = spec.task == "regression"
        self.targets_shape: tuple[int, ...] = (spec.outputs,) if regression else ()
        self._input_key = _key(spec.seed, _Stream.INPUTS)
        self._noise_key = _key(spec.seed, _Stream.NOISE)
        self._label_key = _key(spec.seed, _Stream.LABELS)
        if regression:
            self._teacher = _teacher(spec)
        else:
            self._means = _means(spec)

    def take(self, indices: NDArray[np.int64], x: NDArray[Any] | None, y: NDArray[Any] | None) -> None:
        """See `Rows.take`; computed in float64."""
        check_indices(indices, self.samples)
        numbers = (indices + self.start).astype(np.uint64)
        inputs = _normals(self._input_key, numbers, self.spec.inputs)
        targets: NDArray[Any]
        if self.targets_shape:
            targets = _teach(inputs, *self._teacher)
        else:
            targets = _random_bits(self._label_key, numbers, 1)[:, 0] % np.uint64(self.spec.outputs)
            inputs += self._means[targets]
        if x is not None:
            x[...] = inputs
        if y is not None:
            y[...] = targets
            if self.targets_shape and self.spec.noise:
                y += self.spec.noise * _normals(self._noise_key, numbers, self.spec.outputs)


def describe(spec: SyntheticSpec) -> DatasetInfo:
    """The catalogue entry of a specification; loading it generates no samples."""

    def load(info: DatasetInfo) -> Dataset:
        train = SyntheticRows(spec, 0, spec.samples)
        test = SyntheticRows(spec, spec.samples, spec.samples + spec.test_samples) if spec.test_samples else None
        return info.dataset(train, test)

    return DatasetInfo(
        name="synthetic",
        title="Generated data of any size",
        task=spec.task,
        features=spec.inputs,
        outputs=spec.outputs,
        train_samples=spec.samples,
        test_samples=spec.test_samples,
        description=(
            "Regression on a random teacher network, or classification of Gaussian clusters; generated on demand."
        ),
        licence="none needed",
        citation="none needed",
        source="generated by this package",
        load=load,
    )


INFO = describe(SyntheticSpec())


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of 64-bit counters in place (finalizer of SplitMix64)."""
    bits ^= bits >> np.uint64(30)
    bits *= _MIX_1
    bits ^= bits >> np.uint64(27)
    bits *= _MIX_2
    bits ^= bits >> np.uint64(31)
    return bits


def _key(seed: int, stream: _Stream) -> np.uint64:
    return np.uint64(np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0])


def _random_bits(key: np.uint64, numbers: NDArray[np.uint64], width: int) -> NDArray[np.uint64]:
    """Return `width` random 64-bit integers for each sample number, shape (n, width)."""
    first = numbers[:, None] * np.uint64(width)
    counters: NDArray[np.uint64] = np.add(first, np.arange(1, width + 1, dtype=np.uint64), dtype=np.uint64)
    counters *= _GAMMA
    counters += key
    return _mix(counters)


def _normals(key: np.uint64, numbers: NDArray[np.uint64], width: int) -> NDArray[np.float64]:
    """Return standard normal variates, shape (n, width), by inversion of the distribution function."""
    from scipy.special import ndtri  # imported here because the import is slow

    # Midpoints of 2**52 equal intervals: never 0 or 1.
    uniform = (_random_bits(key, numbers, width) >> np.uint64(12)).astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-52
    normals: NDArray[np.float64] = ndtri(uniform, out=uniform)
    return normals


def _philox(seed: int, stream: _Stream) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, stream])))


def _teacher(spec: SyntheticSpec) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights of the teacher, (inputs, 32) and (32, outputs), scaled so that variances are about one."""
    generator = _philox(spec.seed, _Stream.TEACHER)
    first = generator.standard_normal((spec.inputs, HIDDEN)) / np.sqrt(spec.inputs)
    return first, generator.standard_normal((HIDDEN, spec.outputs)) / np.sqrt(HIDDEN)


def _teach(inputs: NDArray[np.float64], first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return tanh(inputs @ first) @ second."""
    return _ordered_product(np.tanh(_ordered_product(inputs, first)), second)


def _ordered_product(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``left @ right``, summed in a fixed order.

    BLAS sums in an order that depends on the number of rows: the last bits of a sample would depend on the minibatch.
    """
    total = np.zeros((len(left), right.shape[1]))
    for column, row in zip(left.T, right, strict=True):
        total += column[:, None] * row
    return total


def _means(spec: SyntheticSpec) -> NDArray[np.float64]:
    """Return the clusters' means, shape (classes, inputs)."""
    means = _philox(spec.seed, _Stream.MEANS).standard_normal((spec.outputs, spec.inputs))
    means *= SEPARATION / np.sqrt(spec.inputs)
    return means
