"""The examples of docs/extending.md are the code of the package, or work with it."""

import re
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest

import hybridnn
from hybridnn import MLP, Trainer
from hybridnn.nn import activations

DOCS = Path(__file__).parents[2] / "docs"

EXAMPLES = re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(encoding="utf-8"), re.DOTALL)


def test_examples_are_in_the_source() -> None:
    examples = [example for example in EXAMPLES if not re.search("softplus|lwp-half", example)]
    sources = [path.read_text(encoding="utf-8") for path in Path(hybridnn.__file__).parent.rglob("*.py")]
    assert examples
    for example in examples:
        texts = [indent(example.strip(), spaces) for spaces in ("", "    ", " " * 8)]  # rows of tables are indented
        assert any(text in source for source in sources for text in texts), example


def test_a_row_adds_an_activation_function(monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = (example for example in EXAMPLES if "softplus" in example)
    monkeypatch.setitem(activations.ACTIVATIONS, "softplus", activations.ACTIVATIONS["relu"])  # removed afterwards
    exec(example, dict(vars(activations)))

    random = np.random.default_rng(0)
    x, y = random.standard_normal((7, 3)), random.standard_normal((7, 2))
    trainer = Trainer(MLP([3, 5, 4, 2], "softplus"), batch_size=7, dtype="float64")
    weights = trainer.weights()
    hidden = np.logaddexp(0, x @ weights["layers.0.weight"].T)
    hidden = np.logaddexp(0, hidden @ weights["layers.1.weight"].T)
    np.testing.assert_allclose(trainer.predict(x), hidden @ weights["layers.2.weight"].T, rtol=1e-12)
    trainer.fit(x, y, epochs=1)
    gradients, step = trainer.gradients(), 1e-6
    for name, weight in weights.items():
        found = np.empty_like(weight)
        for index in np.ndindex(weight.shape):
            losses = []
            for sign in (1, -1):
                moved = weight.copy()
                moved[index] += sign * step
                trainer.load_weights(weights | {name: moved})
                losses.append(trainer.evaluate(x, y).loss)
            found[index] = (losses[0] - losses[1]) / (2 * step)
        np.testing.assert_allclose(gradients[name], found, rtol=1e-6, atol=1e-9, err_msg=name)
