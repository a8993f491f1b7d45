"""UCI handwritten digits, 8 x 8 pixels; the file is part of the package."""

from __future__ import annotations

import numpy as np

from .dataset import Dataset, DatasetInfo, RemoteFile
from .download import locate
from .rows import PixelRows


def load(info: DatasetInfo) -> Dataset:
    """Load the digits, pixels scaled to [0, 1]."""
    with np.load(locate(info, info.files[0]), allow_pickle=False) as arrays:
        return info.dataset(PixelRows(arrays["x"], arrays["y"], white=16))


INFO = DatasetInfo(
    name="digits",
    title="Optical recognition of handwritten digits",
    task="classification",
    features=64,
    outputs=10,
    train_samples=1797,
    test_samples=0,
    description="Handwritten digits as 8 x 8 grey images, 0 to 16; the test part of the UCI set, as in scikit-learn.",
    licence="CC BY 4.0",
    citation=(
        "E. Alpaydin and C. Kaynak (1998). Optical Recognition of Handwritten Digits. "
        "UCI Machine Learning Repository. https://doi.org/10.24432/C50P49"
    ),
    source="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
    load=load,
    files=(
        RemoteFile(
            name="digits.npz",
            url="",
            sha256="f10b077e7e3037d11006b85b6b71a63e15b2bf746d91c4e4122e42d304e5e54b",
            size=45375,
        ),
    ),
)
