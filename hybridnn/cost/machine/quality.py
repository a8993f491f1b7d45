"""How well a machine file was measured."""

from __future__ import annotations

from hybridnn.settings_types import AtLeastZero, Count, Section, Text

__all__ = ["Quality"]

MOST_ERROR, MOST_NOISE = 0.25, 0.30
"""Beyond these, predictions are not worth much."""


class Quality(Section):
    """What a calibration found out about itself.

    Attributes
    ----------
    held_out_error : float
        The worst mean relative error on what was held out of the fits: of the operations the mean over sizes of 64 KiB
        and more (all sizes where none is so large), of computing the mean over the kinds of pass, weighted by seconds.
    held_out_of : str
        What it is the error of.
    noise : float
        Largest mean delay of a computation relative to its median: see `Compute`.
    load_average : float
        Of the minute before the measurement, on the node with most load beside the job's.
    busy_ranks : int
        Ranks times threads of the job on that node.
    """

    held_out_error: AtLeastZero
    held_out_of: Text
    noise: AtLeastZero
    load_average: AtLeastZero
    busy_ranks: Count

    @property
    def problems(self) -> tuple[str, ...]:
        """What makes the file doubtful, in words; empty where nothing does."""
        found = []
        if self.held_out_error > MOST_ERROR:
            error = f"held-out error {self.held_out_error:.0%} ({self.held_out_of})"
            found.append(f"{error}, more than {MOST_ERROR:.0%}")
        if self.noise > MOST_NOISE:
            found.append(f"noise {self.noise:.0%}, more than {MOST_NOISE:.0%}")
        if self.load_average > self.busy_ranks:
            found.append(f"load average {self.load_average:.1f}, more than the job's own {self.busy_ranks}")
        return tuple(found)

    @property
    def line(self) -> str:
        """The quality in a line, beginning with the verdict."""
        if self.problems:
            return f"doubtful: {'; '.join(self.problems)}"
        error = f"held-out error up to {self.held_out_error:.0%} ({self.held_out_of})"
        return f"good: {error}, noise {self.noise:.0%}, load average {self.load_average:.1f} before"
