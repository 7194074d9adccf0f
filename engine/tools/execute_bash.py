"""``execute_bash``: one shell command in a fresh shell, with its exit code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engine.tools.base import CommandResult, ObservationStyle, Shell, ToolResult, refusal
from engine.tools.truncate import condense_lines

_MAX_COMMAND_BYTES = 100_000
"""Longest command; Linux limits a program's argument to 128 KiB."""
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class ExecuteBash:
    """Tool that runs commands and condenses their output to 40 + 40 lines.

    Args:
        shell: where commands run; after its deadline the partial output is kept.
        style: ``full`` names the tool before its output, ``r2e_gym`` separates standard error.
    """

    def __init__(self, shell: Shell, *, style: ObservationStyle = "full") -> None:
        self._shell = shell
        self._style = style

    async def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Execute a validated call."""
        command: str = arguments["cmd"]
        if not command.strip():
            return refusal("the command is empty")
        if "\0" in command:
            return refusal("the command holds a NUL character")
        if len(command.encode("utf-8", "replace")) > _MAX_COMMAND_BYTES:
            return refusal(
                f"the command is longer than {_MAX_COMMAND_BYTES} bytes; write files with the editor"
            )
        timeout_s = self._shell.timeout_s
        result = await self._shell.run(command, split=self._style == "r2e_gym")
        error = f"stopped after {timeout_s:g} s" if result.exit_code is None else ""
        text, cut = self._r2e_gym(result, error) if self._style == "r2e_gym" else self._merged(result, error)
        return ToolResult(
            observation=text,
            error=error,
            exit_code=result.exit_code,
            truncated_chars=cut + result.dropped_bytes,
        )

    def _merged(self, result: CommandResult, error: str) -> tuple[str, int]:
        output, cut = condense_lines(_ANSI.sub("", result.output))
        if error:
            heading = f"Exit code: none, the command was {error}; what it printed until then:"
        else:
            heading = f"Exit code: {result.exit_code}"
            if self._style == "full":
                heading += "\nOutput of [execute_bash]:"
        return f"{heading}\n{output}", cut

    def _r2e_gym(self, result: CommandResult, error: str) -> tuple[str, int]:
        """Return the observation in R2E-Gym's format, and the number of characters cut."""
        output, errors = (_ANSI.sub("", text).strip() for text in (result.output, result.errors))
        printed, cut = condense_lines(f"[STDOUT]\n\n{output} \n\n[STDERR]\n\n{errors}")
        if error:
            code, printed = "-1", f"The command was {error}; what it printed until then:\n\n{printed}"
        elif result.exit_code:
            code, printed = f"Error: Exit code {result.exit_code}", f"Error executing command:\n\n{printed}"
        else:
            code = "0"
        return f"Exit code: {code}\nExecution output of [execute_bash]:\n{printed}", cut
