"""Data sets by name: source, checksums, licence, shapes, and the function that loads each; and arrays of a user."""

from __future__ import annotations

import difflib
import gzip
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, SettingError
from hybridnn.utils.checks import require_whole
from hybridnn.utils.files import memory_bytes, read_npz
from hybridnn.utils.text import column_list

from .dataset import Dataset, DatasetInfo, Member, PixelRows, RemoteFile
from .download import locate, open_members
from .preparation import SubsetRows
from .rows import ArrayRows, Task, as_rows, class_count
from .synthetic import INFO as SYNTHETIC
from .synthetic import SyntheticSpec
from .synthetic import describe as describe_synthetic

# -- digits: the file is part of the package ---------------------------------------------------------------------------


def load_digits(info: DatasetInfo) -> Dataset:
    """Load the digits, pixels scaled to [0, 1]."""
    with np.load(locate(info, info.files[0]), allow_pickle=False) as arrays:
        return info.dataset(PixelRows(arrays["x"], arrays["y"], white=16))


DIGITS = DatasetInfo(
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
    load=load_digits,
    files=(
        RemoteFile(
            name="digits.npz",
            url="",
            sha256="f10b077e7e3037d11006b85b6b71a63e15b2bf746d91c4e4122e42d304e5e54b",
            size=45375,
        ),
    ),
)


# -- airfoil -----------------------------------------------------------------------------------------------------------


def load_airfoil(info: DatasetInfo) -> Dataset:
    """Load the data with the first ``info.features`` of the input columns."""
    for _, stream in open_members(info, info.files[0]):
        table = np.loadtxt(stream)
    return info.dataset(ArrayRows(table[:, : info.features], table[:, -1:]))


AIRFOIL = DatasetInfo(
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
    load=load_airfoil,
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
AIRFOIL_CONDITIONS = replace(
    AIRFOIL,
    name="airfoil-4",
    title="Airfoil self-noise without the displacement thickness",
    features=4,
    description=(
        "Sound pressure level (dB) of NACA 0012 airfoils from frequency (Hz), angle of attack (degrees), chord length "
        "(m) and free-stream velocity (m/s), the conditions of an experiment."
    ),
    folder=AIRFOIL.name,
)


# -- ethylene ----------------------------------------------------------------------------------------------------------

_ETHYLENE_ROWS, _GASES, _SENSORS = 4_178_504, 2, 16


def load_ethylene(info: DatasetInfo) -> Dataset:
    """Load the first ``info.train_samples`` rows: 16 sensors as inputs, methane and ethylene as targets."""
    columns = range(1, 1 + _GASES + _SENSORS)  # column 0 is the time
    for _, stream in open_members(info, info.files[0]):
        table = np.loadtxt(stream, skiprows=1, max_rows=info.train_samples, usecols=columns, ndmin=2)
    return info.dataset(ArrayRows(table[:, _GASES:], table[:, :_GASES]))


ETHYLENE = DatasetInfo(
    name="ethylene",
    title="Gas sensor array under dynamic gas mixtures: ethylene and methane",
    task="regression",
    features=_SENSORS,
    outputs=_GASES,
    train_samples=700_000,
    available=_ETHYLENE_ROWS,
    test_samples=0,
    description=(
        "Concentrations (ppm) of methane and ethylene in air from 16 chemical sensors, sampled at 100 Hz; the first "
        f"700,000 of {_ETHYLENE_ROWS:,} rows, as in Laugier et al. (2018), unless set otherwise."
    ),
    licence="CC BY 4.0",
    citation=(
        "J. Fonollosa (2015). Gas Sensor Array under Dynamic Gas Mixtures. "
        "UCI Machine Learning Repository. https://doi.org/10.24432/C5WP4C"
    ),
    source="https://archive.ics.uci.edu/dataset/322/gas+sensor+array+under+dynamic+gas+mixtures",
    load=load_ethylene,
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


# -- MNIST and Fashion-MNIST: the idx format ---------------------------------------------------------------------------

_MNIST_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _mnist_files(base: str, sums: tuple[str, ...], sizes: tuple[int, ...]) -> tuple[RemoteFile, ...]:
    facts = zip(_MNIST_NAMES, sums, sizes, strict=True)
    return tuple(RemoteFile(name, base + name, checksum, size) for name, checksum, size in facts)


def load_mnist(info: DatasetInfo) -> Dataset:
    """Load MNIST or Fashion-MNIST, pixels scaled to [0, 1]."""
    train_x, train_y, test_x, test_y = (read_idx(locate(info, file)) for file in info.files)
    splits = (
        PixelRows(images.reshape(len(images), -1), labels, white=255)
        for images, labels in ((train_x, train_y), (test_x, test_y))
    )
    return info.dataset(*splits)


MNIST = DatasetInfo(
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
    load=load_mnist,
    files=_mnist_files(
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

FASHION_MNIST = replace(
    MNIST,
    name="fashion-mnist",
    title="Fashion-MNIST",
    description="Articles of clothing as 28 x 28 grey images, 0 to 255.",
    licence="MIT",
    citation=(
        "H. Xiao, K. Rasul and R. Vollgraf (2017). Fashion-MNIST: a novel image dataset for benchmarking machine "
        "learning algorithms. https://arxiv.org/abs/1708.07747"
    ),
    source="https://github.com/zalandoresearch/fashion-mnist",
    files=_mnist_files(
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


# -- CIFAR-10: pickle files, read by an unpickler that executes no code of the file ------------------------------------

_CIFAR10_TRAIN = tuple(f"cifar-10-batches-py/data_batch_{number}" for number in range(1, 6))
_CIFAR10_TEST = ("cifar-10-batches-py/test_batch",)


def load_cifar10(info: DatasetInfo) -> Dataset:
    """Load CIFAR-10, values scaled to [0, 1]."""
    batches = {path: read_batch(stream) for path, stream in open_members(info, info.files[0])}
    splits = (
        PixelRows(
            np.concatenate([batches[path].pixels for path in paths]),
            np.concatenate([batches[path].labels for path in paths]),
            white=255,
        )
        for paths in (_CIFAR10_TRAIN, _CIFAR10_TEST)
    )
    return info.dataset(*splits)


CIFAR10 = DatasetInfo(
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
    load=load_cifar10,
    files=(
        RemoteFile(
            name="cifar-10-python.tar.gz",
            url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            size=170_498_071,
            members=(
                Member(_CIFAR10_TRAIN[0], "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd"),
                Member(_CIFAR10_TRAIN[1], "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8"),
                Member(_CIFAR10_TRAIN[2], "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9"),
                Member(_CIFAR10_TRAIN[3], "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b"),
                Member(_CIFAR10_TRAIN[4], "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154"),
                Member(_CIFAR10_TEST[0], "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831"),
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


# -- the catalogue -----------------------------------------------------------------------------------------------------

ORDER_BYTES = 8  # of a sample in the shuffled order of an epoch

ENTRIES = (
    DIGITS,
    AIRFOIL,
    AIRFOIL_CONDITIONS,
    ETHYLENE,
    MNIST,
    FASHION_MNIST,
    CIFAR10,
    SYNTHETIC,
)
"""Every data set that a name can choose."""


def catalogue() -> Mapping[str, DatasetInfo]:
    """Return every known data set by name, the default (digits) first."""
    return MappingProxyType({info.name: info for info in ENTRIES})


def dataset_info(name: str) -> DatasetInfo:
    """Look up one data set; a `DataError` for an unknown name lists the nearest known ones, or all."""
    known = catalogue()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name.lower(), known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"
    raise DataError(f"data.name = {name!r}: no such data set; {hint}")


def load_dataset(name: str, *, rows: int | None = None, synthetic: SyntheticSpec | None = None) -> Dataset:
    """Load a data set.

    Parameters
    ----------
    name : str
        Key in the catalogue.
    rows : int, optional
        Number of training samples to keep, from the first on. At most 4,178,504 for ethylene.
    synthetic : SyntheticSpec, optional
        Parameters of the generated data; only for ``"synthetic"``.

    Raises
    ------
    DataError
        If the name is unknown, or if files are damaged or cannot be downloaded.
    SettingError
        If an option does not fit the data set.
    """
    info = describe_dataset(name, rows=rows, synthetic=synthetic)
    if rows is not None and rows > (most := memory_bytes() // ORDER_BYTES):
        raise SettingError("data.rows", rows, f"must be at most {most:,}, whose order fits the memory of this machine")
    dataset = info.load(info)
    if rows is None or rows == dataset.train.samples:
        return dataset
    _require_rows(name, rows, dataset.train.samples)  # the file may have fewer rows than expected
    return replace(dataset, train=SubsetRows(dataset.train, np.arange(rows)))


def describe_dataset(name: str, *, rows: int | None = None, synthetic: SyntheticSpec | None = None) -> DatasetInfo:
    """Describe the data set that `load_dataset` loads with the same options, without reading any file."""
    info = dataset_info(name)
    if synthetic is not None:
        if name != "synthetic":
            raise SettingError("data.name", name, "a synthetic specification goes only with 'synthetic'")
        info = describe_synthetic(synthetic)
    if rows is None:
        return info
    _require_rows(name, rows, info.available or info.train_samples)
    return replace(info, train_samples=rows)


def _require_rows(name: str, rows: int, available: int) -> None:
    if require_whole("data.rows", rows, 1) > available:
        raise SettingError("data.rows", rows, f"{name} has {available} training samples")


# -- arrays of a user --------------------------------------------------------------------------------------------------

LOSS_DECIDES = "by the loss, mse"
FEW_CLASSES = 50  # different whole numbers that may be labels


def user_arrays(path: Path, task: Task | None) -> Dataset:
    """Training data of an ``.npz`` file."""
    arrays = read_npz(path)
    needed = ["x_train", "y_train"] + (["x_test", "y_test"] if {"x_test", "y_test"} & set(arrays) else [])
    missing = [key for key in needed if key not in arrays]
    if missing:
        raise DataError(
            f"{path}: no {' and no '.join(missing)}; found {column_list(list(arrays)) if arrays else 'nothing'}"
        )
    train = _rows(path, arrays["x_train"], arrays["y_train"], task, part="_train")
    test = None
    if "x_test" in needed:
        known: Task = "regression" if train.targets_shape else "classification"
        classes = None if train.targets_shape else class_count(train)
        test = _rows(path, arrays["x_test"], arrays["y_test"], known, classes=classes, part="_test")
        if (test.features, test.targets_shape) != (train.features, train.targets_shape):
            raise DataError(
                f"{path}: x_test, y_test have shapes {test.x.shape}, {test.y.shape}; "
                f"they do not go with {train.x.shape}, {train.y.shape} of the training part"
            )
    why = LOSS_DECIDES if task == "regression" else f"y_train is {arrays['y_train'].dtype}"
    return _dataset(path, train, test, why)


def npz_samples(path: Path) -> NDArray[Any]:
    """Samples of an ``.npz`` file: the array ``x``, or the only one."""
    arrays = read_npz(path)
    if "x" not in arrays and len(arrays) != 1:
        found = column_list(list(arrays)) if arrays else "nothing"
        raise DataError(f"{path}: which array holds the samples? Name it x; found {found}")
    return arrays["x"] if "x" in arrays else next(iter(arrays.values()))


def _rows(path: Path, x: NDArray[Any], y: NDArray[Any], task: Task | None, **known: Any) -> ArrayRows:
    """`as_rows` with the path in its error messages."""
    try:
        return as_rows(x, y, task, **known)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _dataset(path: Path, train: ArrayRows, test: ArrayRows | None, why_regression: str) -> Dataset:
    if train.targets_shape:
        is_guessed, remedy = why_regression != LOSS_DECIDES, "store integers"
        warnings = label_warning(str(path), "y_train", train.y, remedy) if is_guessed else ()
        why, sizes = f"regression: {why_regression}", (train.features, train.targets_shape[0])
        return Dataset(path.name, "regression", *sizes, train, test, task_reason=why, warnings=warnings)
    classes = class_count(train)
    if classes > train.samples:
        how = "number them from 0, or store floating point for regression, or set model.loss to mse"
        why = f"label {classes - 1} among {train.samples} samples; integers are class labels: {how}"
        raise DataError(f"{path}: {why}")
    if train.y.min() == train.y.max():
        raise DataError(f"{path}: all labels are {classes - 1}: classification needs at least 2 classes")
    absent, why = np.setdiff1d(np.arange(classes), train.y), f"{classes} classes"
    if absent.size:
        labels = column_list([str(label) for label in absent])
        why = f"{classes - absent.size} of {why} occur: no sample has the label {labels}"
    sizes = train.features, classes
    return Dataset(path.name, "classification", *sizes, train, test, task_reason=f"classification: {why}")


def label_warning(called: str, name: str, y: NDArray[Any], remedy: str) -> tuple[str, ...]:
    """Warning of a regression target that has few values, all of them whole numbers, as labels have."""
    values = np.unique(y)
    if y.shape[1] > 1 or (values != np.rint(values)).any() or len(values) > min(FEW_CLASSES, len(y) // 2):
        return ()
    shown = column_list([f"{value:.0f}" for value in values])
    return (f"{called}: {name} has the values {shown} with decimal points: a regression; {remedy} if they are labels",)
