"""Train on a table of one's own: prices of houses in a .csv file, and predictions in the units of the table.

python examples/own_table.py
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from hybridnn import MLP, Adam, Trainer
from hybridnn.data import StandardizedRows, Standardizer, load_file, split

TABLE = Path("houses.csv")

rng = np.random.default_rng(0)
rooms, age = rng.integers(1, 8, 600), rng.uniform(0, 90, 600)
price = 60.0 * rooms - 0.01 * (age - 50.0) ** 2 + rng.normal(0, 5.0, 600)
with TABLE.open("w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([("rooms", "age", "price"), *zip(rooms, age, price, strict=True)])

houses = load_file(TABLE, targets=["price"])
train, test = split(houses.train, fraction=0.2, seed=0)
scale = Standardizer.fit(train)
trainer = Trainer(MLP([houses.features, 32, 16, houses.outputs]), Adam(lr=0.01), batch_size=32)
trainer.fit(StandardizedRows(train, scale), epochs=40)
metrics = trainer.evaluate(StandardizedRows(test, scale))
print(f"inputs {', '.join(houses.inputs)}; R² of {metrics.samples} houses that were not trained on: {metrics.r2:.3f}")

new = np.array([[3.0, 10.0], [6.0, 50.0]])
for (rooms_, age_), (found,) in zip(new, scale.restore_y(trainer.predict(scale.apply_x(new))), strict=True):
    print(f"{rooms_:.0f} rooms, {age_:.0f} years: {found:.0f}")
