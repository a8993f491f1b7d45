"""Fixtures of the tests of commands."""

from __future__ import annotations

from cli.conftest import run_as_ranks, run_hybridnn

__all__ = ["run_as_ranks", "run_hybridnn"]
