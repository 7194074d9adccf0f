"""Data folders of the gradings of toy tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.dataset_builders import toolchain_or_skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder with the toolchain; skip where that cannot be installed."""
    folder = tmp_path_factory.mktemp("home")
    toolchain_or_skip(folder)
    return folder
