"""The tools an agent calls; they run on the host over the small protocols of ``tools.base``."""

from __future__ import annotations

from engine.agent.tools.base import (
    CommandResult,
    FileStore,
    ObservationStyle,
    Shell,
    Tool,
    ToolResult,
)
from engine.agent.tools.file_editor import FileEditor
from engine.agent.tools.memory import MemoryFileStore, run_immediately

__all__ = [
    "CommandResult",
    "FileEditor",
    "FileStore",
    "MemoryFileStore",
    "ObservationStyle",
    "Shell",
    "Tool",
    "ToolResult",
    "run_immediately",
]
