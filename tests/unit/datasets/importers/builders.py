"""Sources to import, and readers of the files that an import wrote."""
# ruff: noqa: E501  (literal rows)

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.config.importing import ImportConfig
from engine.datasets.store import dataset_path
from tests.unit.datasets.importers import rows


def numbered(number: int, **changes: Any) -> dict[str, Any]:
    """Return a row of SWE-rebench that differs by its number."""
    statement = f"{rows.STATEMENT} Seen in build {number}."
    base = {"instance_id": f"acme__pkg-{number}", "problem_statement": statement}
    return rows.swe_rebench(**{**base, **changes})


def write_lines(path: Path, published: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in published))
    return path


def config(path: Path, **changes: Any) -> ImportConfig:
    return ImportConfig(**{"format": "swe-rebench", "source": str(path), "output": "d", **changes})


def files(home: Path, name: str = "d") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(dataset_path(home, name).iterdir())}


def records(home: Path, file: str, name: str = "d") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (dataset_path(home, name) / file).read_text().splitlines()]
