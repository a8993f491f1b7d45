"""The Slurm commands in the pages of docs/ succeed on a real Slurm, with outputs of the shape that the pages show."""

from pathlib import Path

import pytest

from mpi_runner.slowness import deadline
from reference.pages import ROOT, outputs
from slurm.cluster import Cluster

pytestmark = pytest.mark.timeout(900)

PAGES = [
    page
    for page in outputs.PAGES
    if any("slurm" in block.notes for block in outputs.blocks(page.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_the_page_succeed_with_outputs_of_its_shape(cluster: Cluster, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    outputs.run_page(text, check=True, slurm=True, environment=cluster.environment, limit=deadline(120))
