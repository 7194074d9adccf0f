"""Selection of the tests that need vLLM's environment."""

from __future__ import annotations

import pytest

from tests.drills.vllm import conftest


def test_tests_in_folders_named_vllm_run_without_it(
    request: pytest.FixtureRequest, pytestconfig: pytest.Config
) -> None:
    test = request.node
    test.keywords["vllm"] = "as in a folder of that name"
    marks = list(test.own_markers)
    conftest.pytest_collection_modifyitems(pytestconfig, [test])
    assert test.own_markers == marks
