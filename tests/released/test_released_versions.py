"""Run folders that released versions have written: every later version evaluates and resumes them."""

import json
import shutil
from pathlib import Path

import pytest

from hybridnn import ProcessGrid
from hybridnn.cli.main import main
from hybridnn.runs.inference import evaluate_run
from hybridnn.runs.trained_run import open_run

RUNS = sorted(Path(__file__).parent.glob("*/run"))


def epochs_of(run: Path) -> list[dict[str, float]]:
    records = map(json.loads, (run / "history.jsonl").read_text(encoding="utf-8").splitlines())
    return [record for record in records if record["kind"] == "epoch"]


@pytest.mark.parametrize("released", RUNS, ids=lambda run: run.parent.name)
def test_run_and_checkpoint_are_read(released: Path, tmp_path: Path) -> None:
    run = shutil.copytree(released, tmp_path / "run")
    *_, last = epochs_of(run)
    assert evaluate_run(open_run(run), ProcessGrid()).metrics.loss == pytest.approx(last["validation_loss"], rel=1e-10)
    layout = ("--batch", "1", "--model", "1", "--epochs", "3", "-q")
    with pytest.raises(SystemExit) as ended:
        main(("train", "--resume", str(run), *layout))
    assert not ended.value.code
    with pytest.raises(SystemExit):
        main(("train", str(released / "config.toml"), *layout, "--out", str(tmp_path / "anew")))
    resumed, anew = (epochs_of(folder)[-1]["train_loss"] for folder in (run, tmp_path / "anew"))
    assert resumed == pytest.approx(anew, rel=1e-10)
