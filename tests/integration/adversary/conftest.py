"""Fixtures of the toy task, built once by each pytest worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.types import TaskRow
from tests.builders.dataset_builders import broken_task, toolchain_or_skip, without_reuse, write_toy
from tests.integration.adversary.families.history import build_images


@pytest.fixture(scope="session")
def adversary_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder with the test toolchain, and images that contain the solution."""
    folder = tmp_path_factory.mktemp("adversary")
    build_images(folder, toolchain_or_skip(folder))
    return folder


@pytest.fixture(scope="session")
def adversary_row(adversary_home: Path) -> TaskRow:
    """Return the toy task without reuse of verdicts."""
    return without_reuse(broken_task(adversary_home, write_toy(adversary_home / "source")))
