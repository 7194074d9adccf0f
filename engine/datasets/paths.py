"""Classification of paths: tests and their configuration, or code."""

from __future__ import annotations

from pathlib import PurePosixPath

_TEST_FOLDERS = frozenset({"tests", "test", "r2e_tests"})
_CONFIGURATION = frozenset(
    {
        "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg",
        "sitecustomize.py", "usercustomize.py",
    }
)  # fmt: skip


def is_test_path(path: str) -> bool:
    """Return whether a path holds tests or configures the test runner; agents' changes to it are ignored."""
    parts = PurePosixPath(path).parts
    name = parts[-1] if parts else ""
    return (
        name in _CONFIGURATION
        or name.endswith((".pth", "_test.py"))
        or (name.startswith("test_") and name.endswith(".py"))
        or any(part in _TEST_FOLDERS for part in parts[:-1])
    )
