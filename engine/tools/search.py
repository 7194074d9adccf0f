"""``search``: files of a folder that contain a text, or lines of a file that match a pattern."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engine.tools.base import CommandResult, ObservationStyle, Shell, ToolResult, refusal, resolve
from engine.tools.truncate import condense_lines

MAX_FILES = 100
_MAX_CHARS = 10_000
"""Longest term and path together; Linux limits a program's argument to 128 KiB."""
_COUNT = re.compile(r"[0-9]{1,15}")
# $1 folder, $2 name pattern, $3 term. -H names the file even when there is one, -I skips binaries.
# Exit codes that neither find nor grep uses distinguish the results.
_SCRIPT = """
if [ -d "$1" ]; then
  find "$1" -mindepth 1 -name '.*' -prune -o -type f -name "$2" -exec grep -FcHI -e "$3" -- {} + |
    grep -v ':0$'
  exit 40
elif [ -f "$1" ]; then
  grep -n -e "$3" -- "$1"
  status=$?
  if [ $status -gt 1 ]; then exit 42; fi
  exit 41
fi
exit 43
"""
_FOLDER, _FILE, _BAD_PATTERN, _MISSING = 40, 41, 42, 43


class Search:
    """Tool that runs ``grep`` in the repository.

    Args:
        shell: where commands run.
        workdir: default folder, and base of relative paths.
        style: ``compact`` leaves out the sentences around results.
    """

    def __init__(self, shell: Shell, *, workdir: str, style: ObservationStyle = "full") -> None:
        self._shell = shell
        self._workdir = workdir
        self._full = style != "compact"

    async def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Execute a validated call."""
        term: str = arguments["search_term"]
        path = resolve(arguments.get("path", "."), self._workdir)
        if not term or "\0" in term + path or "\n" in term:
            return refusal("search_term must be one non-empty line")
        if len(term) + len(path) > _MAX_CHARS:
            return refusal(f"search_term and path are longer than {_MAX_CHARS} characters")
        pattern = "*.py" if arguments.get("python_only", True) else "*"
        timeout_s = self._shell.timeout_s
        result = await self._shell.run(["/bin/sh", "-c", _SCRIPT, "search", path, pattern, term])
        if result.exit_code is None:
            return refusal(f"the search was stopped after {timeout_s:g} s; search in a smaller folder")
        if result.exit_code == _FOLDER:
            return self._folder(term, path, pattern, result)
        if result.exit_code == _FILE:
            return self._file(term, path, result)
        if result.exit_code == _BAD_PATTERN:
            return refusal(f"'{term}' is not a grep pattern: {result.output.strip()}")
        if result.exit_code == _MISSING:
            return refusal(f"{path} does not exist")
        return refusal(f"the search failed: {result.output.strip()}")

    def _folder(self, term: str, path: str, pattern: str, result: CommandResult) -> ToolResult:
        counts = [
            (name, int(count))
            for name, _, count in (line.rpartition(":") for line in result.output.splitlines())
            if name and _COUNT.fullmatch(count)
        ]
        kind = "Python files" if pattern == "*.py" else "files"
        if not counts:
            return ToolResult(observation=f"No line of the {kind} below {path} contains '{term}'.")
        if len(counts) > MAX_FILES or result.dropped_bytes:
            return refusal(
                f"more than {MAX_FILES} {kind} below {path} contain '{term}'; "
                "search for something more specific or in a smaller folder"
            )
        rows = "\n".join(f"{name}: {count}" for name, count in sorted(counts))
        if self._full:
            rows = f"Lines that contain '{term}', per file below {path}:\n{rows}"
        return ToolResult(observation=rows)

    def _file(self, term: str, path: str, result: CommandResult) -> ToolResult:
        if not result.output:
            return ToolResult(observation=f"No line of {path} matches '{term}'.")
        rows, cut = condense_lines(result.output.removesuffix("\n"))
        if self._full:
            rows = f"Lines of {path} that match '{term}':\n{rows}"
        return ToolResult(observation=rows, truncated_chars=cut + result.dropped_bytes)
