"""The version of hybridnn, in the one place that everything else reads."""

from __future__ import annotations

__version__ = "0.1.0"
