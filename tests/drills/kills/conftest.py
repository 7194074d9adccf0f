"""Data folder of the runs to kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration import toy_yard


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the toy dataset and its half-taught policy."""
    return toy_yard.taught_home(tmp_path_factory.mktemp("home"))
