"""UCI airfoil self-noise: sound pressure of airfoils in a wind tunnel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .dataset import Dataset, DatasetInfo, Member, RemoteFile
from .download import open_members
from .rows import ArrayRows


def load(info: DatasetInfo) -> Dataset:
    """Load the data with the first ``info.features`` of the input columns."""
    for _, stream in open_members(info, info.files[0]):
        table = np.loadtxt(stream)
    return info.dataset(ArrayRows(table[:, : info.features], table[:, -1:]))


INFO = DatasetInfo(
    name="airfoil",
    title="Airfoil self-noise",
    task="regression",
    features=5,
    outputs=1,
    train_samples=1503,
    test_samples=0,
    description=(
        "Sound pressure level (dB) of NACA 0012 airfoils from frequency (Hz), angle of attack (degrees), chord length "
        "(m), free-stream velocity (m/s) and suction-side displacement thickness (m)."
    ),
    licence="CC BY 4.0",
    citation=(
        "T. Brooks, D. Pope and M. Marcolini (1989). Airfoil Self-Noise. "
        "UCI Machine Learning Repository. https://doi.org/10.24432/C5VW2C"
    ),
    source="https://archive.ics.uci.edu/dataset/291/airfoil+self+noise",
    load=load,
    files=(
        RemoteFile(
            name="airfoil+self+noise.zip",
            url="https://archive.ics.uci.edu/static/public/291/airfoil+self+noise.zip",
            sha256="5c7767ba53ad827d3f48ba1eb9434117f4892df8f10bc4c99e118a9e8a7ae07c",
            size=None,
            members=(
                Member("airfoil_self_noise.dat", "74c75fd71783f1e6b71f8a622b993dc592897a97cd689c5090a07147a1b097b3"),
            ),
        ),
    ),
)

# Laugier et al. (2018, Table 1) train on four inputs without naming the columns. These are taken to be the first four,
# the conditions of an experiment; the fifth, the displacement thickness of the boundary layer, depends on them.
CONDITIONS_INFO = replace(
    INFO,
    name="airfoil-4",
    title="Airfoil self-noise without the displacement thickness",
    features=4,
    description=(
        "Sound pressure level (dB) of NACA 0012 airfoils from frequency (Hz), angle of attack (degrees), chord length "
        "(m) and free-stream velocity (m/s), the conditions of an experiment."
    ),
    folder=INFO.name,
)
