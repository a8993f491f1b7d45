"""Answers of studies of layouts for random networks, compared with a second measurement.

``python -m benchmarks.fastest_layouts``. For each network, one study names the fastest layout and the first choice of
the model, and the same study is measured again. The named layout is right if it is the measured fastest, or if the
interval of its time over that of the measured fastest contains 1. The table is Markdown. A second call with the same
options continues, or prints the same again.

Without other load on the machine, no cell is disturbed, so that the last line counts false marks.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import tomli_w

from hybridnn.study.answer import Fastest, fastest_layouts
from hybridnn.study.judgement import Estimate
from hybridnn.study.results import StudyResults, read_results
from hybridnn.study.runner import StudyView, plan_study, run_study
from hybridnn.study.scaling import layout_name
from hybridnn.study.study_file import load_study

LAYOUTS = ("batch", "model", "grid", "pipeline:1f1b")
"""Families of a study that ``hybridnn study new`` writes."""

EPOCHS = 3
EPOCH_FLOPS = 5e9  # on all ranks: 0.1 to 0.3 s on a core
MOST_STEPS = 400  # of an epoch
MOST_LOSS = 0.1  # of time, by the first choice of the model


@dataclass(frozen=True)
class Network:
    """Sizes of the layers, and samples of a minibatch."""

    sizes: tuple[int, ...]
    batch_size: int

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        weights = sum(map(prod, zip(self.sizes, self.sizes[1:], strict=False)))
        return int(np.clip(EPOCH_FLOPS / (6 * weights * self.batch_size), 4, MOST_STEPS))

    @property
    def name(self) -> str:
        """Name in the table."""
        return f"{'-'.join(map(str, self.sizes))}, batch {self.batch_size}"


def random_network(seed: int, number: int) -> Network:
    """Draw a network of three to six hidden layers, enough for four stages; equal arguments give equal networks."""
    random = np.random.default_rng([seed, number])
    depth = int(random.integers(3, 7))
    widths = [int(width) for width in 2 ** random.uniform(5, 10, depth)]
    inputs, outputs = int(random.choice([16, 64, 256, 784])), int(random.choice([1, 10, 100]))
    if random.random() < 0.5:
        widths = widths[:1] * depth
    return Network((inputs, *widths, outputs), int(random.choice([32, 64, 128, 256, 512])))


def study_text(network: Network, name: str, ranks: int, repeats: int, machine: str | None) -> str:
    """Text of the study file of a network."""
    inputs, *hidden, outputs = network.sizes
    synthetic = {"inputs": inputs, "outputs": outputs, "test_samples": 64}
    study = {
        "name": name,
        "description": "Fastest layout of a random network",
        **({} if machine is None else {"machine": machine}),
        "base": {
            "data": {"name": "synthetic", "rows": network.steps * network.batch_size, "synthetic": synthetic},
            "model": {"hidden": hidden},
            "training": {"epochs": EPOCHS, "batch_size": network.batch_size},
            "optimizer": {"lr": 1e-4},
        },
        "axes": {"ranks": [ranks], "layouts": LAYOUTS, "repeats": repeats},
    }
    return tomli_w.dumps(study)


@dataclass(frozen=True)
class Trial:
    """The answer of a study of a network, and the same study measured again."""

    network: Network
    said: StudyResults
    measured: StudyResults

    @property
    def named(self) -> str:
        """Layout that the first study names."""
        return layout_name(_answer(self.said).point)

    @property
    def fastest(self) -> str:
        """Layout that is the fastest in the second one."""
        return layout_name(_answer(self.measured).point)

    @property
    def ratio(self) -> Estimate:
        """Measured time of the named layout over that of the fastest one."""
        return self._ratio(self.named)

    @property
    def is_right(self) -> bool:
        """Whether the named layout is the measured fastest, or within its interval."""
        low = self.ratio.low
        return self.named == self.fastest or (low is not None and low <= 1)

    @property
    def model_choice(self) -> str | None:
        """First choice of the model; None without a machine file."""
        choice = _answer(self.said).predicted
        return None if choice is None else layout_name(choice)

    @property
    def model_loss(self) -> float:
        """What the first choice of the model loses: its measured time over that of the fastest layout, less 1."""
        return 0.0 if self.model_choice is None else max(0.0, self._ratio(self.model_choice).value - 1)

    def _ratio(self, layout: str) -> Estimate:
        ratios = {layout_name(point): found.estimate for point, found in _answer(self.measured).others}
        return Estimate(1.0) if layout == self.fastest else ratios[layout]

    @property
    def row(self) -> tuple[str, ...]:
        """Cells of the table."""
        fastest = f"{self.fastest}, {_answer(self.measured).point.seconds_per_epoch.format()}"
        loss = ("-", "-") if self.model_choice is None else (self.model_choice, f"{self.model_loss:.0%}")
        right = "yes" if self.is_right else "no"
        return self.network.name, self.named, fastest, self.ratio.format(".2f"), right, *loss


def _answer(results: StudyResults) -> Fastest:
    (found,) = fastest_layouts(results)
    return found


def run(text: str, folder: Path, launcher: str | None) -> StudyResults:
    """Run the cells of a study that have not finished, and read all; ends the program if one fails."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder.with_suffix(".toml")
    file.write_text(text, encoding="utf-8")
    for outcome in run_study(plan_study(load_study(file), folder, launcher), StudyView()):
        if outcome.status != "finished":
            raise SystemExit(f"{folder}: {outcome.cell.id} {outcome.status}: {outcome.reason}")
    return read_results(folder)


TITLES = ("network", "named", "measured fastest, s per epoch", "named over it", "right", "model's choice", "it loses")


def print_summary(trials: list[Trial]) -> None:
    """Print how often the named layout and the model were right, and how many cells were disturbed."""
    print(f"\nthe named layout is right: {sum(trial.is_right for trial in trials)} of {len(trials)}")
    if modelled := [trial for trial in trials if trial.model_choice is not None]:
        near = sum(trial.model_loss <= MOST_LOSS for trial in modelled)
        print(f"the model's first choice loses at most {MOST_LOSS:.0%}: {near} of {len(modelled)}")
    cells = [cell for trial in trials for results in (trial.said, trial.measured) for cell in results.cells]
    marked, most = sum(cell.is_disturbed for cell in cells), max(cell.run.disturbance for cell in cells)
    print(f"marked as disturbed: {marked} of {len(cells)} cells; others took at most {most:.0%} of the cores in use")


def main() -> None:
    """Run the studies, and print a row for each network and a summary."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fastest_layouts", description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=int, default=10, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the networks (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=4, help="of a study, 3 or more (default: %(default)s)")
    parser.add_argument("--machine", metavar="FILE", help="machine file (default: that of hybridnn train)")
    parser.add_argument("--launcher", metavar="COMMAND", help="as that of hybridnn study run")
    parser.add_argument("--folder", type=Path, default=Path("runs/fastest-layouts"), help="(default: %(default)s)")
    options = parser.parse_args()
    trials = []
    print(f"| {' | '.join(TITLES)} |\n|{'---|' * len(TITLES)}")
    for number in range(options.networks):
        network, name = random_network(options.seed, number), f"network-{options.seed}-{number}"
        text = study_text(network, name, options.ranks, options.repeats, options.machine)
        said, measured = (
            run(text, options.folder / f"{name}-{part}", options.launcher) for part in ("named", "measured")
        )
        trials.append(Trial(network, said, measured))
        print(f"| {' | '.join(trials[-1].row)} |", flush=True)
    print_summary(trials)


if __name__ == "__main__":
    main()
