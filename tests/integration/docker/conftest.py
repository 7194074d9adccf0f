"""Fixtures: the Docker daemon, and a data folder with a small image."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.sandbox.conformance import reference_tree
from engine.sandbox.local.images import build_image
from tests.docker_daemon import docker_host


@pytest.fixture(scope="module")
def host() -> str:
    return docker_host()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    (folder / "tree").mkdir()
    reference_tree(folder / "tree")
    build_image(folder, "reference", folder / "tree")
    return folder
