"""Type checkers find the installed packages, and mark what is misspelt, which is an error at run time too."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hybridnn.errors import SettingError

BEGIN = """
from hybridnn import MLP, Callback, Trainer
from hybridnn.training.records import EpochRecord
from hybridnn.training.trained_network import TrainedNetwork
trainer = Trainer(MLP([3, 4, 1]), "adam", batch_size=5, method="1f1b")
"""
HOOK = f"{BEGIN}class Own(Callback):\n    def "
RIGHT = {
    "option": f"{BEGIN}size: int = trainer.batch_size\nrate: float = trainer.optimizer.lr",
    "state": f"{BEGIN}trainer.stop_training = True\ntrainer.set_learning_rate(0.1)",
    "hook": f"{HOOK}on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:\n        print(record)",
    "others": "from hybridnn_course.work_folder import WorkFolder\nfrom hybridnn_papers.commands import laugier",
}
WRONG = {
    "unknown_option": f"{BEGIN}Trainer(MLP([3, 1]), bathc_size=3)",
    "type_of_option": f'{BEGIN}Trainer(MLP([3, 1]), batch_size="3")',
    "unknown_attribute": f"{BEGIN}trainer.lerning_rate",
    "attribute_that_is_set": f"{BEGIN}trainer.stop_trainin = True",
    "hook_of_keras": f"{HOOK}on_batch_end(self, batch: int) -> None: ...",
    "arguments_of_keras": f"{HOOK}on_epoch_end(self, epoch: int, logs: object = None) -> None: ...",
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_programs_end_with_an_error(name: str) -> None:
    with pytest.raises((SettingError, AttributeError, TypeError)):
        exec(WRONG[name], {})


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["mypy --strict --no-pretty --python-executable", "pyright --pythonpath"])
def test_type_checkers_mark_the_wrong_programs_alone(tool: str, tmp_path: Path) -> None:
    pytest.importorskip(tool.split()[0])
    for name, program in {**RIGHT, **WRONG}.items():
        (tmp_path / f"{name}.py").write_text(f"{program}\n")
    command = [sys.executable, "-m", *tool.split(), sys.executable, "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    if "pyright" in tool and done.returncode > 1:
        pytest.skip(f"pyright needs Node: {done.stderr[-200:]}")
    assert set(re.findall(r"(\w+)\.py:\d+:.*?(?<=[ -])error", done.stdout)) == set(WRONG), done.stdout
