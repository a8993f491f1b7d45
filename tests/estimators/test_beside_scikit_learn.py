"""The estimators beside scikit-learn's on eight sets, seed by seed."""

from typing import Any

import numpy as np
import pytest
import sklearn.neural_network as sk
from scipy.stats import t
from sklearn import datasets
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import scale

from hybridnn import sklearn as ours

SEEDS, COMPARISONS = 15, 16
TABLES: dict[str, Any] = {  # of packages that are not installed for tests; the last column is the target
    "statsmodels.datasets": lambda found: found.fair.load_pandas().data.assign(affairs=lambda of: of.affairs > 0),
    "palmerpenguins": lambda found: found.load_penguins().iloc[:, [2, 3, 4, 5, 0]].dropna(),
    "wooldridge": lambda found: found.data("kielmc").filter(
        regex="^(age|nbh|cbd|rooms|area|land|baths|dist|y81|lprice)$"
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer", "digits", "diabetes", *TABLES])
def test_scores_and_epochs_are_not_worse(name: str, early: bool) -> None:
    if name in TABLES:
        table = TABLES[name](pytest.importorskip(name))
        x, y = table.iloc[:, :-1], table.iloc[:, -1].to_numpy()
    else:
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    kind = "MLPRegressor" if name in ("diabetes", "wooldridge") else "MLPClassifier"
    how: dict[str, Any] = {"early_stopping": True, "learning_rate_init": 0.01, "max_iter": 300} if early else {}
    seeds = 3 * SEEDS if early else SEEDS  # the epoch of the stop varies most
    scores, epochs = np.zeros((2, 2, seeds))
    x, y = scale(x), scale(y) if kind == "MLPRegressor" else y
    for seed in range(seeds):
        train_x, test_x, train_y, test_y = train_test_split(x, y, random_state=seed)
        for row, library in enumerate((sk, ours)):
            found = getattr(library, kind)(random_state=seed, **how).fit(train_x, train_y)
            scores[row, seed], epochs[row, seed] = found.score(test_x, test_y), found.n_iter_
    gain, ratio = scores[1] - scores[0], epochs[1].mean() / epochs[0].mean()
    half = t.ppf(1 - 0.05 / 2 / COMPARISONS, seeds - 1) * gain.std(ddof=1) / np.sqrt(seeds)
    print(
        f"{name}, {early=}: scores {scores.mean(axis=1)}, {gain.mean():.4f} ± {half:.4f}, epochs {epochs.mean(axis=1)}"
    )
    assert gain.mean() + half >= 0
    assert 1 / 1.2 <= ratio <= 1.2
