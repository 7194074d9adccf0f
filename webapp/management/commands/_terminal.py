"""Base of all commands: their output cannot act on the terminal, whatever names and reasons it contains."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from django.core.management.base import BaseCommand

from engine.terminal import visible_text


class TerminalCommand(BaseCommand):
    """Command whose standard output and errors show active characters as escapes."""

    def __init__(
        self, stdout: TextIO | None = None, stderr: TextIO | None = None, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(_Visible(stdout or sys.stdout), _Visible(stderr or sys.stderr), *args, **kwargs)  # type: ignore[arg-type]

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command; ``call_command`` may have named other streams."""
        streams = {name: _Visible(options[name]) for name in ("stdout", "stderr") if options.get(name)}
        return super().execute(*args, **options | streams)


class _Visible:
    """Text stream that escapes what is written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(visible_text(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
