"""The tools an agent calls; they run on the host over the small protocols of ``tools.base``."""

from __future__ import annotations

from engine.tools.base import (
    CommandResult,
    FileStore,
    ObservationStyle,
    Shell,
    Tool,
    ToolResult,
    framed,
    printable,
    refusal,
    to_text,
)
from engine.tools.execute_bash import ExecuteBash
from engine.tools.file_editor import FileEditor
from engine.tools.finish import Finish
from engine.tools.memory import MemoryFileStore, run_immediately
from engine.tools.search import Search
from engine.tools.think import Think
from engine.tools.truncate import cap_characters

__all__ = [
    "CommandResult",
    "ExecuteBash",
    "FileEditor",
    "FileStore",
    "Finish",
    "MemoryFileStore",
    "ObservationStyle",
    "Search",
    "Shell",
    "Think",
    "Tool",
    "ToolResult",
    "cap_characters",
    "framed",
    "printable",
    "refusal",
    "run_immediately",
    "to_text",
]
