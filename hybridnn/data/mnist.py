"""MNIST and Fashion-MNIST: 28 x 28 grey images in the idx format."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError

from .dataset import Dataset, DatasetInfo, RemoteFile
from .download import locate
from .rows import PixelRows

_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _files(base: str, sums: tuple[str, ...], sizes: tuple[int, ...]) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(n, base + n, checksum, size) for n, checksum, size in zip(_NAMES, sums, sizes, strict=True))


def load(info: DatasetInfo) -> Dataset:
    """Load MNIST or Fashion-MNIST, pixels scaled to [0, 1]."""
    train_x, train_y, test_x, test_y = (read_idx(locate(info, file)) for file in info.files)
    splits = (
        PixelRows(images.reshape(len(images), -1), labels, white=255)
        for images, labels in ((train_x, train_y), (test_x, test_y))
    )
    return info.dataset(*splits)


INFO = DatasetInfo(
    name="mnist",
    title="MNIST handwritten digits",
    task="classification",
    features=784,
    outputs=10,
    train_samples=60_000,
    test_samples=10_000,
    description="Handwritten digits as 28 x 28 grey images, 0 to 255.",
    licence="CC BY-SA 3.0",
    citation=(
        "Y. LeCun, L. Bottou, Y. Bengio and P. Haffner (1998). Gradient-based learning applied to document "
        "recognition. Proceedings of the IEEE 86(11), 2278-2324. https://doi.org/10.1109/5.726791"
    ),
    source="http://yann.lecun.com/exdb/mnist/",
    load=load,
    files=_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        (9_912_422, 28_881, 1_648_877, 4_542),
    ),
)

FASHION_INFO = replace(
    INFO,
    name="fashion-mnist",
    title="Fashion-MNIST",
    description="Articles of clothing as 28 x 28 grey images, 0 to 255.",
    licence="MIT",
    citation=(
        "H. Xiao, K. Rasul and R. Vollgraf (2017). Fashion-MNIST: a novel image dataset for benchmarking machine "
        "learning algorithms. https://arxiv.org/abs/1708.07747"
    ),
    source="https://github.com/zalandoresearch/fashion-mnist",
    files=_files(
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
        (26_421_880, 29_515, 4_422_102, 5_148),
    ),
    own_folder=True,  # the file names are those of MNIST
)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped idx file of bytes: two zeros, the type 8, the number of axes, big-endian sizes, the data."""
    content = gzip.decompress(path.read_bytes())
    if content[:3] != b"\0\0\x08":
        raise DataError(f"{path} is not an idx file of bytes")
    start = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    data = np.frombuffer(content, dtype=np.uint8, offset=start)
    if data.size != int(np.prod(shape)):
        raise DataError(f"{path} holds {data.size} bytes of data, its header says {shape}")
    return data.reshape(shape)
