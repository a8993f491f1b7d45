"""Divide the samples and the layers among four ranks: two batch ranks times two model ranks.

    hybridnn run -n 4 examples/process_grid.py

`mpirun -n 4 python examples/process_grid.py` does the same. With other even numbers of ranks the grid has another
shape, and the training is the same one: all shapes print the same loss.
"""

from __future__ import annotations

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.data import load_dataset

grid = ProcessGrid(model=2)  # all remaining ranks share the samples
digits = load_dataset("digits").train
trainer = Trainer(MLP([64, 48, 10]), SGD(lr=0.1, momentum=0.9), grid=grid, dtype="float64", batch_size=50)
last = trainer.fit(digits, epochs=3).epochs[-1]
if grid.rank == 0:
    print(f"{grid}: loss {last.train_loss:.6f}, {last.bytes_sent:,} bytes sent in an epoch")
