"""Fixtures of the toy task, built once by each pytest worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.types import TaskRow
from tests.builders.dataset_builders import broken_task, toolchain_or_skip, write_toy


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder with the toolchain; skip if it cannot be installed."""
    folder = tmp_path_factory.mktemp("home")
    toolchain_or_skip(folder)
    return folder


@pytest.fixture(scope="session")
def row(home: Path) -> TaskRow:
    """Return the toy task, proven deterministic."""
    return broken_task(home, write_toy(home / "source"))
