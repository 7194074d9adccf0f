"""Task repositories of SWE-bench 5: one folder per instance, ``tasks/<id>/task.yaml`` and files beside it.

``swebench.task.repo`` describes the layout. A folder is read as a row of version 5, and converted as one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from engine.datasets.importers.fields import Row
from engine.errors import DatasetError
from engine.reading import parse_json, read_bounded

MARKER = "task.yaml"
_MAX_MARKER, _MAX_FILE = 1 << 20, 16 << 20
_FILES = {
    "patch": "gold.patch", "test_patch": "test.patch", "eval_script": "eval.sh",
    "problem_statement": "problem_statement.md",
}  # fmt: skip
_OPTIONAL = {"hints_text": "hints.md"}


def read_folder(folder: Path) -> Row:
    """Return one instance as a row. Raises DatasetError with the missing or malformed file as field."""
    row = _yaml(folder / MARKER)
    for column, name in _FILES.items():
        row[column] = _text(folder / name)
    for column, name in _OPTIONAL.items():
        if (folder / name).is_file():
            row[column] = _text(folder / name)
    try:
        tests = parse_json(_text(folder / "tests.json"))
    except ValueError as error:
        raise DatasetError(f"not JSON: {error}", field="tests.json") from None
    if not isinstance(tests, dict):
        raise DatasetError("not an object", field="tests.json")
    row.update(tests)
    if (folder / "test_assets").is_dir() and any((folder / "test_assets").iterdir()):
        row["image_assets"] = {"staged": sorted(path.name for path in (folder / "test_assets").iterdir())}
    return row


def _yaml(path: Path) -> dict[str, Any]:
    content = _text(path, _MAX_MARKER)
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(content, Loader=yaml.BaseLoader)):
            raise DatasetError("has aliases, which may grow without bounds", field=path.name)
        # The base loader returns only strings: version 1.10 must not become 1.1.
        value = yaml.load(content, Loader=yaml.BaseLoader)  # noqa: S506
    except (yaml.YAMLError, RecursionError) as error:
        raise DatasetError(f"not YAML: {error}", field=path.name) from None
    if not isinstance(value, dict):
        raise DatasetError("not a mapping", field=path.name)
    return {str(key): item for key, item in value.items() if item not in ("", "null", "~")}


def _text(path: Path, limit: int = _MAX_FILE) -> str:
    try:
        return read_bounded(path, limit).decode()
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", field=path.name) from None
    except UnicodeDecodeError:
        raise DatasetError("not UTF-8 text", field=path.name) from None
