"""CIFAR-10: 32 x 32 colour images from pickle files, read by an unpickler that executes no code of the file."""

from __future__ import annotations

import pickle
from typing import IO, Any

import numpy as np

from hybridnn.errors import DataError

from .dataset import Dataset, DatasetInfo, Member, RemoteFile
from .download import open_members
from .rows import PixelRows

_FOLDER = "cifar-10-batches-py"
_TRAIN = tuple(f"{_FOLDER}/data_batch_{number}" for number in range(1, 6))
_TEST = (f"{_FOLDER}/test_batch",)


def load(info: DatasetInfo) -> Dataset:
    """Load CIFAR-10, values scaled to [0, 1]."""
    batches = {path: read_batch(stream) for path, stream in open_members(info, info.files[0])}
    splits = (
        PixelRows(
            np.concatenate([batches[path].pixels for path in paths]),
            np.concatenate([batches[path].labels for path in paths]),
            white=255,
        )
        for paths in (_TRAIN, _TEST)
    )
    return info.dataset(*splits)


INFO = DatasetInfo(
    name="cifar10",
    title="CIFAR-10",
    task="classification",
    features=3072,
    outputs=10,
    train_samples=50_000,
    test_samples=10_000,
    description="Colour images of 10 kinds of animals and vehicles: the red, green and blue planes of 32 x 32 pixels.",
    licence="none stated by the authors",
    citation="A. Krizhevsky (2009). Learning Multiple Layers of Features from Tiny Images. University of Toronto.",
    source="https://www.cs.toronto.edu/~kriz/cifar.html",
    load=load,
    files=(
        RemoteFile(
            name="cifar-10-python.tar.gz",
            url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            size=170_498_071,
            members=(
                Member(_TRAIN[0], "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd"),
                Member(_TRAIN[1], "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8"),
                Member(_TRAIN[2], "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9"),
                Member(_TRAIN[3], "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b"),
                Member(_TRAIN[4], "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154"),
                Member(_TEST[0], "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831"),
            ),
        ),
    ),
)


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler of NumPy arrays, strings, numbers, lists and dicts, which refuses all other objects."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the object of an allowed name."""
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return np.dtype
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.empty(0).__reduce__()[0]  # its module depends on the version of NumPy
        raise DataError(
            f"the pickle refers to {module}.{name}: only arrays, strings, numbers, lists and dicts are read"
        )


def read_batch(stream: IO[bytes]) -> PixelRows:
    """Read one pickled batch, whose checksum has been verified."""
    batch = _ArrayUnpickler(stream, encoding="bytes").load()
    return PixelRows(batch[b"data"], np.array(batch[b"labels"], dtype=np.uint8), white=255)
