"""The toy task, built once by each worker: its submissions are spread over all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.types import TaskRow
from tests.builders.dataset_builders import toolchain_or_skip
from tests.integration.adversary.frame import toy_row
from tests.integration.adversary.surroundings.git import build_images


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Try the submissions that are marked ``adversary`` on request only: others represent them."""
    if "adversary" not in config.getoption("markexpr"):
        for item in items:
            if item.get_closest_marker("adversary") is not None:
                item.add_marker(pytest.mark.skip(reason="represented by others: `make test-adversary`"))


@pytest.fixture(scope="session")
def adversary_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the test toolchain, and images that hold the solution."""
    folder = tmp_path_factory.mktemp("adversary")
    build_images(folder, toolchain_or_skip(folder))
    return folder


@pytest.fixture(scope="session")
def adversary_row(adversary_home: Path) -> TaskRow:
    """The toy task."""
    return toy_row(adversary_home)
