"""Train a network on handwritten digits, stop when it no longer improves, and save its weights.

python examples/train_digits.py
"""

from __future__ import annotations

import numpy as np

from hybridnn import MLP, Adam, EarlyStopping, Trainer
from hybridnn.data import load_dataset, split

digits = load_dataset("digits")
train, test = split(digits.train, fraction=0.2, seed=0)
trainer = Trainer(MLP([digits.features, 128, 64, digits.outputs]), Adam(lr=0.002), batch_size=64, seed=1)
history = trainer.fit(
    train,
    epochs=30,
    validation=(test, None),
    callbacks=[EarlyStopping(patience=4)],
)
metrics = trainer.evaluate(test)
np.savez("digits-weights.npz", **trainer.weights())
print(f"{len(history.epochs)} epochs, test accuracy {metrics.accuracy:.3f}, weights in digits-weights.npz")
