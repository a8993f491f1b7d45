"""The command line as the words that start a process."""

from __future__ import annotations

import sys

__all__ = ["WITHOUT_PICTURE"]

WITHOUT_PICTURE = (
    sys.executable,
    "-c",
    "from hybridnn.runs import learning_curve\n"
    "learning_curve.draw_learning_curve = lambda epochs, path: None\n"
    "from hybridnn.cli.main import main; main()",
)
"""``hybridnn`` in a process that draws no learning curve, which takes longer than all else of a small run."""
