"""Checks of an installation and of a job, for `hybridnn doctor`."""
