"""Commands of ``trainyard``, run in this process."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

from webapp.cli import execute


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Exit status and output of a command."""

    status: int
    output: str
    errors: str


class CommandFailedError(Exception):
    """The exit status is not 0; the message is standard error."""

    def __init__(self, result: CommandResult) -> None:
        super().__init__(result.errors)
        self.result = result


def command_result(*arguments: Any) -> CommandResult:
    """Run a command; return its exit status and output."""
    output, errors = StringIO(), StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        status = execute([str(argument) for argument in arguments])
    return CommandResult(status=status, output=output.getvalue(), errors=errors.getvalue())


def run_command(*arguments: Any) -> str:
    """Run a command and return its standard output. Raises CommandFailedError unless its exit status is 0."""
    result = command_result(*arguments)
    if result.status:
        raise CommandFailedError(result)
    return result.output
