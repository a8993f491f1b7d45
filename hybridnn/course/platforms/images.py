"""Dockerfiles of the images in which platforms run the grader."""

from __future__ import annotations

from hybridnn.course.platforms.kit import Kit

GRADER = "/opt/hybridnn/bin/hybridnn"

BASE = """\
# Build in this folder: docker build -t {image} .
FROM python:3.12-slim
{copy}RUN python -m venv /opt/hybridnn && /opt/hybridnn/bin/pip install --no-cache-dir {requirement}
"""

AUTODRIVER = """\

# What Tango, the job manager of Autolab, expects of an image: its autodriver, and the users autolab and autograde.
RUN apt-get update \\
    && apt-get install -y --no-install-recommends ca-certificates gcc git libc6-dev make procps sudo \\
    && git clone --depth 1 https://github.com/autolab/Tango.git /tmp/tango \\
    && make -C /tmp/tango/autodriver clean all \\
    && install -o root -m 4755 /tmp/tango/autodriver/autodriver /usr/bin/autodriver \\
    && rm -rf /tmp/tango /var/lib/apt/lists/*
RUN useradd --create-home autolab && useradd --create-home autograde \\
    && install -d -o autolab -g autolab /home/output
WORKDIR /home

# The autodriver gives up the rights of root. This one command gets them back, to run submissions as other users.
RUN echo 'autograde ALL=(root) NOPASSWD: {grade}' > /etc/sudoers.d/hybridnn \\
    && chmod 440 /etc/sudoers.d/hybridnn
"""


def dockerfile(kit: Kit, *, autolab_command: str = "") -> str:
    """An image with hybridnn; for Autolab, with its autodriver.

    Parameters
    ----------
    autolab_command : str
        The command that jobs of Autolab run as root.
    """
    copy = f"COPY {' '.join(kit.wheel)} /tmp/\n" if kit.wheel else ""
    text = BASE.format(image=kit.image, copy=copy, requirement=kit.pip_argument("/tmp"))
    return text + AUTODRIVER.format(grade=autolab_command) if autolab_command else text
