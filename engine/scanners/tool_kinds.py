"""Kinds of tools by name, for Trainyard's agents and for agents of imported trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMMAND_TOOLS = frozenset(
    {"execute_bash", "bash", "terminal", "shell", "run_command", "execute_command", "run"}
)
CODE_TOOLS = frozenset({"execute_ipython_cell", "ipython", "python", "run_python"})
EDITOR_TOOLS = frozenset({"file_editor", "str_replace_editor", "str_replace_based_edit_tool"})
SEARCH_TOOLS = frozenset({"search", "grep", "glob", "find_file", "search_file", "search_dir", "search_code"})
VIEW_TOOLS = frozenset({"open", "view", "view_file", "read_file", "read", "goto", "scroll_up", "scroll_down"})
WRITE_TOOLS = frozenset({"create", "create_file", "write_file", "write"})
REPLACE_TOOLS = frozenset({"edit"})
FINISH_TOOLS = frozenset({"finish", "submit"})
COMMANDS = ("command", "cmd", "code", "script")
PATHS = ("path", "file_path", "filename", "file_name", "file")
TERMS = ("search_term", "pattern", "query", "regex")
CONTENTS = ("file_text", "content", "contents", "text")
"""Names of arguments: command or code, path, search term, complete text of a file."""
_KINDS = (
    ("command", COMMAND_TOOLS | CODE_TOOLS),
    ("search", SEARCH_TOOLS),
    ("view", VIEW_TOOLS),
    ("edit", WRITE_TOOLS | REPLACE_TOOLS),
    ("finish", FINISH_TOOLS),
)


def action_kind(tool: str, arguments: Mapping[str, Any]) -> str:
    """Classify an action: command, search, view, edit, finish, other; ``none`` if no call was parsed."""
    if not tool:
        return "none"
    if tool in EDITOR_TOOLS:
        return "view" if arguments.get("command") == "view" else "edit"
    return next((kind for kind, tools in _KINDS if tool in tools), "other")
