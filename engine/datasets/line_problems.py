"""Problems with the lines of a file, reported by kind rather than one by one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from engine.terminal import visible_line

_NOT_JSON = "not JSON"
_DETAILS = re.compile(r"\d+|'[^']*'")
"""Variable parts of a reason, ignored when lines are grouped by kind."""


class LineProblems:
    """Lines with a problem, grouped by the kind of their reasons.

    Args:
        fate: what happened to the lines, for the report.
    """

    def __init__(self, fate: str = "left out") -> None:
        self._fate = fate
        self._kinds: dict[str, tuple[int, int, str]] = {}
        """Kind → number of lines, first line, its reason."""

    def add(self, line: int, reason: str) -> None:
        """Count a line, numbered from 1."""
        kind = _DETAILS.sub("", reason.partition(": ")[0])
        count, first, shown = self._kinds.get(kind, (0, line, reason))
        self._kinds[kind] = (count + 1, first, shown)

    @property
    def hint(self) -> str:
        """Return a hint for a file without usable lines whose first problem is invalid JSON; else empty."""
        if next(iter(self._kinds), "") != _NOT_JSON:
            return ""
        return ": is it a single JSON document, such as a .traj file? Expected one object per line"

    def report(self, path: Path) -> None:
        """Write one message per kind to stderr."""
        for count, line, reason in self._kinds.values():
            lines = "1 line was" if count == 1 else f"{count:,} lines were"
            first = f"line {line}" if count == 1 else f"the first is line {line}"
            message = f"{path}: {lines} {self._fate}; {first}: {reason}"
            sys.stderr.write(f"{visible_line(message)}\n")
