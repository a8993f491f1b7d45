"""`hybridnn course autograde`: what a grading platform runs for each submission."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from hybridnn.cli.course.assistant import Isolation
from hybridnn.cli.options import option


def autograde(
    platform: Annotated[str, option("The platform: gradescope, autolab or prairielearn.", "NAME", "--platform")],
    root: Annotated[
        Path | None, option("Root of the platform's folders; without, where the platform has them.", "FOLDER", "--root")
    ] = None,
    isolation: Isolation = "user",
) -> None:
    """Grade the submission that a platform put in its place, and write the results where it reads them."""
    from hybridnn.course.platforms import autograde as grade_there

    grade_there(platform, root, isolation=isolation)
