"""``python -m hybridnn`` is the ``hybridnn`` command."""

from __future__ import annotations

from hybridnn.cli.main import main

main()
