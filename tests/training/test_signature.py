"""The options of `Trainer` in its signature, and for type checkers."""

from __future__ import annotations

import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import get_type_hints

import pytest

from hybridnn import MLP, TrainConfig, Trainer
from hybridnn.training.config import TrainOptions

ROOT = Path(__file__).parents[2]


def test_the_signature_has_every_option_with_its_default() -> None:
    shown, config = signature(Trainer).parameters, TrainConfig(MLP([2, 3]))
    values = {name: shown[name].default for name in config.items().keys() - {"model", "optimizer"}}
    assert values == {name: getattr(config, name) for name in values}
    assert shown.keys() - values.keys() == {"model", "optimizer", "grid", "device", "initial_weights"}


def test_types_of_options_are_those_of_the_configuration() -> None:
    hints = get_type_hints(TrainConfig)
    del hints["model"], hints["optimizer"]
    assert get_type_hints(TrainOptions) == hints


@pytest.mark.slow
def test_a_type_checker_knows_the_options(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    script = tmp_path / "call.py"
    head = "from hybridnn.nn.mlp import MLP\nfrom hybridnn.training.trainer import Trainer\n"
    for call, error in {
        "batch_size=50, partition=[2, 1], microbatches=None": "",
        "batchsize=50": 'Unexpected keyword argument "batchsize"',
        "batch_size='a'": "has incompatible type",
    }.items():
        script.write_text(f"{head}Trainer(MLP([2, 3]), 'adam', {call})\n")
        command = [sys.executable, "-m", "mypy", "--follow-imports=silent", str(script)]
        found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        assert (error in found.stdout) if error else found.returncode == 0, found.stdout + found.stderr
