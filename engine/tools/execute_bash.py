"""``execute_bash``: one shell command in a fresh shell, with its exit code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engine.tools.base import ObservationStyle, Shell, ToolResult, refusal
from engine.tools.truncate import condense_lines

_MAX_COMMAND_BYTES = 100_000
"""Longest argument that Linux passes to a program."""
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class ExecuteBash:
    """Tool that runs commands and condenses their output to 40 + 40 lines.

    Args:
        shell: where commands run; after its deadline the partial output is kept.
        style: ``full`` names the tool before its output.
    """

    def __init__(self, shell: Shell, *, style: ObservationStyle = "full") -> None:
        self._shell = shell
        self._full = style == "full"

    async def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Execute a validated call."""
        command: str = arguments["cmd"]
        if not command.strip():
            return refusal("the command is empty")
        if "\0" in command:
            return refusal("the command holds a NUL character")
        if len(command.encode("utf-8", "replace")) > _MAX_COMMAND_BYTES:
            return refusal(
                f"the command is longer than {_MAX_COMMAND_BYTES} bytes; write files with file_editor"
            )
        timeout_s = self._shell.timeout_s
        result = await self._shell.run(command)
        output, cut = condense_lines(_ANSI.sub("", result.output))
        if result.exit_code is None:
            heading = (
                f"Exit code: none, the command was stopped after {timeout_s:g} s; what it printed until then:"
            )
            error = f"stopped after {timeout_s:g} s"
        else:
            heading = f"Exit code: {result.exit_code}"
            error = ""
        if self._full and result.exit_code is not None:
            heading += "\nOutput of [execute_bash]:"
        return ToolResult(
            observation=f"{heading}\n{output}",
            error=error,
            exit_code=result.exit_code,
            truncated_chars=cut + result.dropped_bytes,
        )
