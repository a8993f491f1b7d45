"""Fixtures of the tests of commands."""

from __future__ import annotations

from cli.conftest import run_hybridnn

__all__ = ["run_hybridnn"]
