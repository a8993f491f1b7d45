"""Set-up shared by all tests: the runner of the MPI tests, and the same random examples on every rank."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["mpi_runner.plugin"]

# Ranks that draw different examples would wait for each other for ever; a shared machine has no deadlines.
settings.register_profile("same-on-every-rank", derandomize=True, deadline=None)
settings.load_profile("same-on-every-rank")
