"""Values that Python code gives: each is used, or refused in one line with its name and what is allowed."""

import math
import re
from inspect import signature
from typing import Any

import numpy as np
import pytest

import hybridnn
from hybridnn.config.settings import load_settings
from hybridnn.data import SyntheticSpec
from hybridnn.errors import DataError, GridError, HybridnnError, SettingError
from hybridnn.in_process import run_ranks
from hybridnn.training.config import OPTIONS

NETWORK = hybridnn.MLP([3, 4, 1])
PUBLIC = {name: getattr(hybridnn, name) for name in hybridnn.__all__ if name not in ("Callback", "HybridnnError")}
NAMES = PUBLIC | {"SyntheticSpec": SyntheticSpec, "run_ranks": run_ranks, "NETWORK": NETWORK, "np": np} | vars(math)
NAMES |= {"X": [[1.0, 1.0, 1.0]], "Y": [1.0]}
"""Names in the expressions below."""
NEEDED: dict[str, dict[str, Any]] = {
    "MLP": {"sizes": [3, 4, 1]},
    "Step": {"milestones": [3]},
    "TrainConfig": {"model": NETWORK},
    "Trainer": {"model": NETWORK, "device": "cpu"},
    "ProgressBar": {"epochs": 1},
    "schedule": {"method": "gpipe"},
    "run_ranks": {"ranks": 1, "function": lambda comm: comm.rank},
}
"""Arguments without which there is none of these."""
HOSTILE: list[Any] = [
    *(None, "a", "", b"a", 3, 3.5, True, [1], [], (), {}, {"a": 1}, {1}, [[1]], ["a"], [None], [1, "a"], [0.5, 0.5]),
    *(np.array([1, 1]), np.array([]), np.array(2), np.array([[1, 1]]), np.array(["a"]), np.array(None)),
    *(np.int64(2), np.float32(0.1), np.bool_(1), np.str_("a"), np.datetime64("2020-01-01")),
    *(float("nan"), float("inf"), -1, 0, -1.0, 10**30, -(10**30), 10**400, 1e300, 2j, range(3)),
    *(hybridnn.SGD, int, object(), len, Ellipsis, slice(3), memoryview(b"a")),
    *(hybridnn.SGD(), NETWORK, hybridnn.Constant(), hybridnn.ProcessGrid()),
]


def parameters(name: str) -> list[str]:
    """Names of the arguments; of `Trainer` also the options."""
    found = [item.name for item in signature(NAMES[name]).parameters.values() if item.kind.name[:3] != "VAR"]
    return [*found, *OPTIONS, "schedule"] if name == "Trainer" else found


@pytest.mark.parametrize("name", sorted({*PUBLIC, "SyntheticSpec", "run_ranks"} - {"__version__"}))
def test_any_value_is_used_or_refused_with_its_name(name: str) -> None:
    for argument in parameters(name):
        for value in HOSTILE:
            if argument == "function" and callable(value):
                continue
            refused = ""
            try:
                NAMES[name](**NEEDED.get(name, {}) | {argument: value})
            except (SettingError, GridError, DataError) as error:
                refused = str(error)
            if refused:
                assert re.search(argument.replace("_", "[_ ]"), refused), (argument, value, refused)
                assert refused.isprintable()


ONE = "must be a whole number, at least 1"
ZERO = "must be a whole number, at least 0"
ABOVE = "must be a number, greater than 0"
PART = "must be a number, at least 0, less than 1"
NOT_NEGATIVE = "must be a number, at least 0"
FLAG = "must be true or false"
AUTO = "must be 'auto', true or false"
SIZES = "must be a list of at least an input and an output width, each a whole number, at least 1, as in [10, 16, 2]"
STAGES = "must be a list of the batch and model ranks of every stage, for example [(2, 1), (1, 1)]"
COUNTS = "must be 'balanced', 'uniform', 'profile' or a list of layer counts, for example [4, 4, 3]"
MILESTONES = f"must be a list of values, each {ONE[8:]}"
BETAS = f"must be a list of 2 values, each {PART[8:]}"
WRONG = {
    "SGD(lr=0)": f"optimizer.lr = 0: {ABOVE}",
    "SGD(lr=True)": f"optimizer.lr = True: {ABOVE}",
    "SGD(lr=nan)": "optimizer.lr = nan: must be a finite number, greater than 0",
    "SGD(lr=10**400)": "must be a finite number, greater than 0",
    "SGD(momentum=1)": f"optimizer.momentum = 1: {PART}",
    "SGD(dampening=2)": "optimizer.dampening = 2: must be a number from 0 to 1",
    "SGD(nesterov=1)": f"optimizer.nesterov = 1: {FLAG}",
    "SGD(1, 1, 1, 1, 1, 1)": "SGD takes fewer values without names: without names it takes lr, momentum, dampening",
    "SGD(learning_rate=1)": "SGD takes no argument 'learning_rate': did you mean lr?",
    "SGD(momentun=1)": "SGD takes no argument 'momentun': did you mean momentum?",
    "SGD(0.1, lr=0.1)": "SGD gets lr twice",
    "Adam(momentum=0.9)": "Adam takes no argument 'momentum': its momentum is the first of betas=(0.9, 0.999)",
    "Adam(betas=0.9)": f"optimizer.betas = 0.9: {BETAS}",
    "Adam(betas=(0.9,))": f"optimizer.betas = [0.9]: {BETAS}",
    "Adam(betas=(0.9, 'a'))": f"optimizer.betas[1] = 'a': {PART}",
    "SGD(momentum=0.0, nesterov=True)": "optimizer.nesterov = True: needs momentum > 0 and dampening = 0",
    "SpikeSGD(momentum=0)": "optimizer.momentum = 0.0: above 0 with sgd-spike",
    "PipeMareAdam(annealing_updates=10**30)": "must be at most 9,223,372,036,854,775,807",
    "Step()": "schedule.milestones = []: must be at least one epoch, for example [5, 8]",
    "Step(5)": f"schedule.milestones = 5: {MILESTONES}",
    "Step(5, 8, 9)": "Step takes fewer values without names: give the milestones as a list, as in Step([5, 8])",
    "Step([3, 3])": "schedule.milestones = [3, 3]: must increase",
    "Step([3], gamma=0.1)": "Step takes no argument 'gamma': did you mean factor?",
    "Constant(3)": "Constant takes fewer values without names: without names it takes none",
    "WarmupLinear(-1)": f"schedule.warmup_epochs = -1: {NOT_NEGATIVE}",
    "WarmupLinear(warmup=1)": "WarmupLinear takes no argument 'warmup': did you mean warmup_epochs?",
    "MLP()": "MLP needs the argument sizes",
    "MLP(3)": f"model.sizes = 3: {SIZES}",
    "MLP(10, 16, 2)": "the widths of all layers are one list, as in MLP([10, 16, 2])",
    "MLP(10, 16)": "model.sizes = 10: must be a list",
    "MLP([3])": f"model.sizes = [3]: {SIZES}",
    "MLP([3, 0])": f"model.sizes = [3, 0]: {SIZES}",
    "MLP(np.array(3))": f"model.sizes = array(3): {SIZES}",
    "MLP([3, 1], 'gelu')": "model.activation = 'gelu': must be 'relu', 'identity', 'tanh', 'sigmoid' or 'selu'",
    "ProcessGrid(batch=0)": f"parallel.batch = 0: {ONE}",
    "ProcessGrid(batch=1.0)": f"parallel.batch = 1.0: {ONE}",
    "ProcessGrid(stages=5)": f"parallel.stages = 5: {STAGES}",
    "ProcessGrid(stages=[1])": f"parallel.stages = [1]: {STAGES}",
    "ProcessGrid(stages=[(1, 0)])": f"parallel.stages[0].model = 0: {ONE}",
    "ProcessGrid(stages=[])": f"parallel.stages = []: {STAGES}",
    "ProcessGrid(message_limit=0)": f"message_limit = 0: {ONE}",
    "ProcessGrid(recorder=3)": "recorder = 3: must be a Recorder",
    "ProcessGrid(bacth=2)": "ProcessGrid takes no argument 'bacth': did you mean batch?",
    "ProcessGrid(None, 2)": "ProcessGrid takes fewer values without names: name the axes",
    "ProcessGrid(2)": "comm = 2: must be a communicator",
    "DeviceOptions('tpu')": "device.name = 'tpu': must be 'auto', 'cpu' or 'gpu'",
    "DeviceOptions(tf33=True)": "DeviceOptions takes no argument 'tf33': did you mean tf32?",
    "TrainConfig(NETWORK, lr=3)": "TrainConfig takes no argument 'lr': give it to the optimizer",
    "TrainConfig([3, 1]).checked()": "model = [3, 1]: must be an MLP, for example MLP([3, 4, 1])",
    "TrainConfig(NETWORK, SGD).checked()": "must be an optimizer, for example SGD(lr=0.1)",
    "Trainer()": "Trainer needs the argument model",
    "Trainer(NETWORK, batch_size=0)": f"training.batch_size = 0: {ONE}",
    "Trainer(NETWORK, seed=2**63)": "must be at most 9,223,372,036,854,775,807",
    "Trainer(NETWORK, dtype='float16')": "training.dtype = 'float16': must be 'float32' or 'float64'",
    "Trainer(NETWORK, distribution='broadcast')": "data.distribution = 'broadcast': must be 'local'",
    "Trainer(NETWORK, 'adan')": "optimizer = 'adan': must be 'sgd', 'sgd-spike', 'sgd-pipemare', 'adam',",
    "Trainer(NETWORK, schedule='cosine')": "schedule = 'cosine': must be a learning-rate",
    "Trainer(NETWORK, grid=4)": "grid = 4: must be a ProcessGrid",
    "Trainer(NETWORK, device=3)": "device.name = 3: must be 'auto'",
    "Trainer(NETWORK).fit(X, Y, epochs=0)": f"training.epochs = 0: {ONE}",
    "Trainer(NETWORK).fit(X, Y)": "Trainer.fit needs the argument epochs",
    "Trainer(NETWORK).fit(X, Y, epoch=1)": "Trainer.fit takes no argument 'epoch': did you mean epochs?",
    "Trainer(NETWORK).fit(X, Y, epochs=1, batch_size=8)": "takes no argument 'batch_size': give it to Trainer",
    "Trainer(NETWORK).fit(X, Y, epochs=1, validation_data=X)": "'validation_data': did you mean validation?",
    "Trainer(NETWORK).fit(X, Y, epochs=1, validation=0.2)": "validation = 0.2: must be samples and targets",
    "Trainer(NETWORK).fit(X, Y, epochs=1, validation=[X, Y, Y])": "validation has 3 parts: it must be samples",
    "Trainer(NETWORK).fit(X, Y, epochs=1, callbacks=3)": "callbacks = 3: must be a list",
    "Trainer(NETWORK).fit(X, Y, epochs=1, callbacks=[3])": "callbacks = [3]: must be a list",
    "Trainer(NETWORK, class_weight={0: 1})": "training.class_weight = {0: 1}: must be 'balanced'",
    "Trainer(NETWORK, overlap='no')": f"parallel.overlap = 'no': {AUTO}",
    "Trainer(NETWORK, method='gpip')": "parallel.method = 'gpip': did you mean gpipe? It must be 'sequential', 'gpipe'",
    "Trainer(NETWORK, method=3)": "parallel.method = 3: must be 'sequential', 'gpipe'",
    "Trainer(NETWORK, method='fr')": "parallel.method = 'fr': needs a pipeline of at least 2 stages",
    "Trainer(NETWORK, partition=3)": f"parallel.partition = 3: {COUNTS}",
    "Trainer(NETWORK, partition='even')": f"parallel.partition = 'even': {COUNTS}",
    "Trainer(NETWORK, loss='mse')": "Trainer takes no argument 'loss': give it to MLP",
    "Trainer(NETWORK, schedule=Cosine)": "must be a learning-rate schedule, for example Cosine()",
    "Trainer(NETWORK, initial_weights=3)": "initial weights must be arrays by name",
    "EarlyStopping(3)": "monitor = 3: must be 'train_loss', 'validation_loss'",
    "EarlyStopping(patience='3')": f"patience = '3': {ONE}",
    "EarlyStopping(min_delta=-1)": f"min_delta = -1: {NOT_NEGATIVE}",
    "EarlyStopping(restore_best_weights=None)": f"restore_best_weights = None: {FLAG}",
    "EarlyStopping(mode='min')": "EarlyStopping takes no argument 'mode': the monitor says whether more is better",
    "ProgressBar(0)": f"epochs = 0: {ONE}",
    "schedule('gpipe', microbatches=0)": f"microbatches = 0: {ONE}",
    "schedule('interleaved', chunks=0)": f"chunks = 0: {ONE}",
    "schedule('gpipe', stages=None)": f"stages = None: {ONE}",
    "schedule('gpipe', backward=[1])": f"backward = [1]: {NOT_NEGATIVE}",
    "schedule('gpipe', weight_grad=None)": "weight_grad = None: must be 'per-microbatch' or 'merged'",
    "schedule('ddg', barriers=1)": f"barriers = 1: {FLAG}",
    "schedule(3)": "parallel.method = 3: must be 'sequential'",
    "schedule('gpipe', ranks=3)": "schedule takes no argument 'ranks': did you mean stages?",
    "run_ranks(0, len)": "ranks = 0: must be a whole number from 1 to 1,024",
    "run_ranks(1, 3)": "function = 3: must be a function",
    "run_ranks(1, len, order=-1)": "order = -1: must be 'in turn', or a whole number, the seed of an order",
    "run_ranks(1, len, order='any')": "order = 'any': must be 'in turn', or a whole number",
    "run_ranks(1, len, machine='vm')": "machine = 'vm': ",
    "run_ranks(1, len, sends='fast')": "sends = 'fast': ",
    "run_ranks(1, len, delivery=1)": "delivery = 1: ",
    "run_ranks(1, len, keep=None)": f"keep = None: {ZERO}",
    "run_ranks(1, len, alpha='a')": f"alpha = 'a': {NOT_NEGATIVE}",
}
"""By expressions, what is in the message of their error; most begin with it."""
TAKEN = {
    "Adam(lr=np.float32(0.5)).lr": 0.5,
    "Adam(lr=1).lr": 1.0,
    "Adam(betas=[0.5, 0.75]).betas": (0.5, 0.75),
    "Adam(betas=np.array([0.5, 0.75])).betas": (0.5, 0.75),
    "SGD(nesterov=np.bool_(True)).nesterov": True,
    "PipeMareSGD(annealing_updates=np.int64(3)).annealing_updates": 3,
    "Step([3, 5]).milestones": (3, 5),
    "Step(np.array([3, 5])).milestones": (3, 5),
    "Step(range(1, 3), factor=0.5).milestones": (1, 2),
    "Step([3], factor=0.5).factor": 0.5,
    "MLP(np.array([3, 4, 1])).sizes": (3, 4, 1),
    "MLP((np.int64(3), 1)).sizes": (3, 1),
    "MLP([3, 1], 'ReLU').activation": "relu",
    "ProcessGrid(stages=np.array([[1, 1]])).stages": ((1, 1),),
    "ProcessGrid(pipeline=np.int64(1)).shape": (1, 1, 1),
    "DeviceOptions('CUDA').name": "gpu",
    "Trainer(NETWORK, batch_size=np.int64(7)).batch_size": 7,
    "Trainer(NETWORK, 'Adam', dtype=np.float64).dtype": np.dtype("float64"),
    "Trainer(NETWORK, clip_norm=None).clip_norm": None,
    "Trainer(NETWORK, stall_seconds=0).stall_seconds": 0.0,
    "Trainer(NETWORK, method='GPipe', microbatches=3).method": "gpipe",
    "TrainConfig(NETWORK, partition=np.array([1, 1])).checked().partition": (1, 1),
    "TrainConfig(NETWORK, partition=[np.int64(1), 1]).checked().partition": (1, 1),
    "TrainConfig(NETWORK, partition='Uniform').checked().partition": "uniform",
    "EarlyStopping('val_loss', np.int64(3)).patience": 3,
    "EarlyStopping('val_loss').monitor": "validation_loss",
    "EarlyStopping('loss').monitor": "train_loss",
    "schedule('1F1B', stages=np.int64(2)).timeline.schedule.stages": 2,
    "schedule('gpipe', weight=0).durations.weight": 0.0,
    "schedule('gpipe', microbatches=1).timeline.schedule.microbatches": 1,
}
"""By expressions, their values."""
TYPES = {type(None), bool, int, float, str, tuple, np.dtype}


@pytest.mark.parametrize("expression", WRONG)
def test_a_wrong_value_is_refused_with_what_is_allowed(expression: str) -> None:
    with pytest.raises(HybridnnError) as caught:
        eval(expression, NAMES)
    assert WRONG[expression] in str(caught.value)
    name, equals, _ = WRONG[expression].partition(" = ")
    assert not equals or caught.value.setting == name  # type: ignore[attr-defined]  # a SettingError
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("expression", TAKEN)
def test_values_of_numpy_and_zeros_are_taken(expression: str) -> None:
    value = eval(expression, NAMES)
    assert value == TAKEN[expression]
    assert isinstance(value, tuple(TYPES))
    assert not isinstance(value, np.generic)


@pytest.mark.parametrize(
    ("expression", "override"),
    [
        ("SGD(lr=-1)", "optimizer.lr=-1"),
        ("SGD(nesterov=3)", "optimizer.nesterov=3"),
        ("Adam(betas=[0.5, 2])", "optimizer.name=adam optimizer.betas=[0.5,2]"),
        ("Step(3)", "schedule.name=step schedule.milestones=3"),
        ("Step([])", "schedule.name=step schedule.milestones=[]"),
        ("Step([3], factor=0)", "schedule.name=step schedule.milestones=[3] schedule.factor=0"),
        ("DeviceOptions(graphs='a')", "device.graphs=a"),
        ("MLP([3, 1], loss='l1')", "model.loss=l1"),
        ("MLP([3, 1], residual=1)", "model.residual=1"),
        ("Trainer(NETWORK, batch_size=0)", "training.batch_size=0"),
        ("Trainer(NETWORK, seed=0.5)", "training.seed=0.5"),
        ("Trainer(NETWORK, clip_norm='a')", "training.clip_norm=a"),
        ("Trainer(NETWORK, clip_norm=inf)", "training.clip_norm=inf"),
        ("Trainer(NETWORK, dtype='half')", "training.dtype=half"),
        ("Trainer(NETWORK, overlap=3)", "parallel.overlap=3"),
        ("Trainer(NETWORK, method='gpip')", "parallel.method=gpip"),
        ("Trainer(NETWORK, partition=[0])", "parallel.partition=[0]"),
        ("Trainer(NETWORK, stall_seconds=-1)", "output.stall_seconds=-1"),
        ("ProcessGrid(model=0)", "parallel.model=0"),
        ("SyntheticSpec(inputs=0)", "data.name=synthetic data.synthetic.inputs=0"),
    ],
)
def test_python_and_files_refuse_with_one_sentence(expression: str, override: str) -> None:
    with pytest.raises(SettingError) as in_python:
        eval(expression, NAMES)
    with pytest.raises(SettingError) as in_file:
        load_settings(None, override.split(" "))
    assert str(in_python.value) == str(in_file.value)
