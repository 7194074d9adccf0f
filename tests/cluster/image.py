"""``python -m tests.cluster.image FOLDER`` writes the build context of the image for these tests."""

from __future__ import annotations

import sys
from pathlib import Path

from engine.sandbox.conformance import reference_tree

_DOCKERFILE = """\
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/* \\
    && git config --system user.name agent && git config --system user.email agent@sandbox \\
    && git config --system --add safe.directory '*'
COPY tree /testbed
WORKDIR /testbed
"""


def main(folder: Path) -> None:
    """Write the Dockerfile and the tree."""
    (folder / "tree").mkdir(parents=True)
    reference_tree(folder / "tree")
    (folder / "Dockerfile").write_text(_DOCKERFILE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
