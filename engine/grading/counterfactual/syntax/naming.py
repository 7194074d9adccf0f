"""Names of tests in logs, compared with paths."""

from __future__ import annotations

import posixpath


def is_same_file(name: str, path: str) -> bool:
    """Return whether a test's name is that of a file, from wherever the runner counts its folders."""
    name, path = name.strip().removeprefix("./"), path.lstrip("/").removeprefix("./")
    if "." not in posixpath.basename(name) or " " in name:
        return False
    return path == name or path.endswith(f"/{name}") or name.endswith(f"/{path}")
