"""UCI gas sensor array under dynamic gas mixtures: the file of ethylene and methane."""

from __future__ import annotations

import numpy as np

from .dataset import Dataset, DatasetInfo, Member, RemoteFile
from .download import open_members
from .rows import ArrayRows

ROWS = 4_178_504

_GASES, _SENSORS = 2, 16


def load(info: DatasetInfo) -> Dataset:
    """Load the first ``info.train_samples`` rows: 16 sensors as inputs, methane and ethylene as targets."""
    columns = range(1, 1 + _GASES + _SENSORS)  # column 0 is the time
    for _, stream in open_members(info, info.files[0]):
        table = np.loadtxt(stream, skiprows=1, max_rows=info.train_samples, usecols=columns, ndmin=2)
    return info.dataset(ArrayRows(table[:, _GASES:], table[:, :_GASES]))


INFO = DatasetInfo(
    name="ethylene",
    title="Gas sensor array under dynamic gas mixtures: ethylene and methane",
    task="regression",
    features=_SENSORS,
    outputs=_GASES,
    train_samples=700_000,
    available=ROWS,
    test_samples=0,
    description=(
        "Concentrations (ppm) of methane and ethylene in air from 16 chemical sensors, sampled at 100 Hz; the first "
        f"700,000 of {ROWS:,} rows, as in Laugier et al. (2018), unless set otherwise."
    ),
    licence="CC BY 4.0",
    citation=(
        "J. Fonollosa (2015). Gas Sensor Array under Dynamic Gas Mixtures. "
        "UCI Machine Learning Repository. https://doi.org/10.24432/C5WP4C"
    ),
    source="https://archive.ics.uci.edu/dataset/322/gas+sensor+array+under+dynamic+gas+mixtures",
    load=load,
    files=(
        RemoteFile(
            name="gas+sensor+array+under+dynamic+gas+mixtures.zip",
            url="https://archive.ics.uci.edu/static/public/322/gas+sensor+array+under+dynamic+gas+mixtures.zip",
            sha256=None,
            size=None,
            members=(
                Member("ethylene_methane.txt", "a00f383f2734850cf61370dc687cb09e9b400648549567a2f6a43e5c6a99aaf2"),
            ),
        ),
    ),
)
