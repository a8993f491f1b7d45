"""Type checkers find the installed packages, and mark what is misspelt, which is an error at run time too."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hybridnn import Callback
from hybridnn.errors import SettingError

BEGIN = """
from hybridnn import MLP, Callback, Trainer
from hybridnn.training.records import EpochRecord
from hybridnn.training.trained_network import TrainedNetwork
trainer = Trainer(MLP([3, 4, 1]), "adam", batch_size=5, method="1f1b", partition=[2], microbatches=None)
"""
HOOK = f"{BEGIN}class Own(Callback):\n    def "
RIGHT = {
    "option": f"{BEGIN}size: int = trainer.batch_size\nrate: float = trainer.optimizer.lr",
    "state": f"{BEGIN}trainer.stop_training = True\ntrainer.set_learning_rate(0.1)",
    "hook": f"{HOOK}on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:\n        print(record)",
    "others": "import hybridnn_course, hybridnn_papers\nfrom hybridnn.sklearn import MLPRegressor\nMLPRegressor('', 8)",
}
WRONG = {  # with the advice at run time
    "unknown_option": (f"{BEGIN}Trainer(MLP([3, 1]), bathc_size=3)", "did you mean batch_size?"),
    "type_of_option": (f'{BEGIN}Trainer(MLP([3, 1]), batch_size="3")', "must be a whole number"),
    "unknown_attribute": (
        f"{BEGIN}trainer.learning_rate",
        "optimizer.lr is the rate, and set_learning_rate changes it",
    ),
    "attribute_that_is_set": (f"{BEGIN}trainer.stop_trainin = True", "did you mean stop_training?"),
    "hook_of_keras": (f"{HOOK}on_batch_end(self, batch: int) -> None: ...", "did you mean on_train_batch_end?"),
    "arguments_of_keras": (
        f"{HOOK}on_epoch_end(self, epoch: int, logs: int) -> None: ...",
        "but .self, trainer, record",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_programs_end_with_an_error(name: str) -> None:
    program, advice = WRONG[name]
    with pytest.raises((SettingError, AttributeError, TypeError), match=advice):
        exec(program, {})


@pytest.mark.parametrize(
    ("name", "right"), [("on_train_start", "train_begin"), ("on_fit_end", "train_end"), ("on_epok_end", "epoch_end")]
)
def test_other_names_of_hooks(name: str, right: str) -> None:
    with pytest.raises(TypeError, match=rf"Own\.{name} is no hook: did you mean on_{right}\?"):
        type("Own", (Callback,), {name: print})


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["mypy --strict --no-pretty --python-executable", "pyright --pythonpath"])
def test_type_checkers_mark_the_wrong_programs_alone(tool: str, tmp_path: Path) -> None:
    pytest.importorskip(tool.split()[0])
    for name, program in {**RIGHT, **{name: program for name, (program, _) in WRONG.items()}}.items():
        (tmp_path / f"{name}.py").write_text(f"{program}\n")
    command = [sys.executable, "-m", *tool.split(), sys.executable, "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    if "pyright" in tool and done.returncode > 1:
        pytest.skip(f"pyright needs Node: {done.stderr[-200:]}")
    assert set(re.findall(r"(\w+)\.py:\d+:.*?(?<=[ -])error", done.stdout)) == set(WRONG), done.stdout
