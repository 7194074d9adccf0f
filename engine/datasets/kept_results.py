"""Results of trials, kept by key in a file of JSON lines, with which a stopped or killed run continues."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

Result = TypeVar("Result", bound=BaseModel)


class KeptResults(Generic[Result]):
    """Results in one file; a later result of the same key replaces the earlier one.

    Args:
        path: the file; a missing one is created with the first result, and so is its folder.
        kind: model of the results. Lines that it does not read are skipped: a killed process cuts one off.
            Lines of earlier versions may have the fields of a result next to the key.
    """

    def __init__(self, path: Path, kind: type[Result]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = path
        self._known: dict[str, Result] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                kept = json.loads(line)
                self._known[kept["key"]] = kind.model_validate(kept.get("result", kept))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys."""
        return iter(self._known)

    def get(self, key: str) -> Result | None:
        """Return the result of a key; None if there is none."""
        return self._known.get(key)

    def keep(self, key: str, result: Result) -> None:
        """Store the result of a key."""
        self._known[key] = result
        # A line that a killed process left without its end must not swallow this one.
        line = "\n" + json.dumps({"key": key, "result": result.model_dump(mode="json")}) + "\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
