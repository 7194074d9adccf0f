"""The toy task, built once by each worker: its submissions are spread over all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.types import TaskRow
from tests.builders.dataset_builders import broken_task, toolchain_or_skip, without_reuse, write_toy
from tests.integration.adversary.families.history import build_images


@pytest.fixture(scope="session")
def adversary_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder with the test toolchain, and images that hold the solution."""
    folder = tmp_path_factory.mktemp("adversary")
    build_images(folder, toolchain_or_skip(folder))
    return folder


@pytest.fixture(scope="session")
def adversary_row(adversary_home: Path) -> TaskRow:
    """Return the toy task, no verdict of which is re-used."""
    return without_reuse(broken_task(adversary_home, write_toy(adversary_home / "source")))
