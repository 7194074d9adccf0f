"""Schemas of the tools, for validation, function calling and prompts.

The four tools and their parameters are those R2E-Gym trained on; ``engine.tools.tool_sets`` has their other
names. To add a tool: a ``ToolSchema`` here, its class in ``engine.tools``, and an entry in the environment
that offers it.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine.reading import parse_json
from engine.types import ToolCall

ParameterType = Literal["string", "integer", "boolean", "line_range"]
_JSON_TYPES: Mapping[ParameterType, Mapping[str, Any]] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "line_range": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
}
_EXPECTED: Mapping[ParameterType, str] = {
    "string": "text (without NUL or lone surrogates)",
    "integer": "a whole number",
    "boolean": "true or false",
    "line_range": "two whole numbers such as [10, 20]",
}


MAX_INTEGER = 2**53
"""Largest integer that every JSON reader represents exactly; no file has more lines."""
_MANY = 10
"""Largest number of unknown arguments named in a message."""
_MAX_TEXT = 200
"""Longest text that is parsed as a number, a boolean or a range."""
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
"""Characters that JSON escapes can produce but no file, database or page can store as text."""


class CallError(ValueError):
    """A call that does not fit its tool's schema; the message is written for the model."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a tool."""

    name: str
    type: ParameterType
    description: str
    required: bool = False
    choices: tuple[str, ...] = ()

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the value."""
        schema = {**_JSON_TYPES[self.type], "description": self.description}
        if self.choices:
            schema["enum"] = list(self.choices)
        return schema

    def parse(self, value: object) -> Any:
        """Convert a value to the parameter's type; text is parsed. Raises CallError."""
        parsed = value
        if self.type != "string" and isinstance(value, str):
            parsed = _read(value.lower() if self.type == "boolean" else value)
        if not self._fits(parsed):
            raise CallError(f"argument '{self.name}' must be {_EXPECTED[self.type]}, got {_shown(value)}")
        if self.choices and parsed not in self.choices:
            raise CallError(
                f"argument '{self.name}' must be one of {', '.join(self.choices)}, got {_shown(value)}"
            )
        return parsed

    def is_null(self, value: object) -> bool:
        """Return whether a value is JSON's null, which models write for arguments they leave out."""
        return value is None or (self.type != "string" and value == "null")

    def _fits(self, value: object) -> bool:
        if self.type == "string":
            return isinstance(value, str) and not _NOT_TEXT.search(value)
        if self.type == "boolean":
            return isinstance(value, bool)
        if self.type == "integer":
            return _is_integer(value)
        return isinstance(value, list) and len(value) == 2 and all(_is_integer(item) for item in value)


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """Name, description and parameters of a tool."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    notes: tuple[str, ...] = ()
    """Behaviour that only the long form of a prompt describes."""

    @property
    def is_wordy(self) -> bool:
        """Return whether a call consists of fixed words: every argument is required and has choices."""
        choices = [choice for p in self.parameters for choice in p.choices]
        return all(p.required and p.choices for p in self.parameters) and all(map(str.isalnum, choices))

    def json_schema(self) -> dict[str, Any]:
        """Return the function-calling declaration: ``{"type": "function", "function": {...}}``."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": {p.name: p.json_schema() for p in self.parameters},
                    "required": [p.name for p in self.parameters if p.required],
                },
            },
        }

    def signature(self) -> str:
        """Return the signature, e.g. ``search(search_term: string, path?: string)``."""
        shown = (
            f"{p.name}{'' if p.required else '?'}: {'|'.join(p.choices) if p.choices else p.type}"
            for p in self.parameters
        )
        return f"{self.name}({', '.join(shown)})"

    def describe(self) -> str:
        """Return the prompt's text for this tool."""
        lines = [f"{self.name}: {self.description}", "  Parameters:"]
        for p in self.parameters:
            need = "required" if p.required else "optional"
            choices = f", one of {', '.join(p.choices)}" if p.choices else ""
            lines.append(f"  - {p.name} ({p.type}, {need}{choices}): {p.description}")
        if not self.parameters:
            lines[-1] = "  No parameters."
        return "\n".join(lines)

    def specification(self, number: int) -> str:
        """Return the long form of a prompt's text for this tool, framed and numbered as R2E-Gym does."""
        lines = [f"---- BEGIN FUNCTION #{number}: {self.name} ----", f"Description: {self.description}"]
        lines += [f"  * {note}" for note in self.notes]
        lines.append("Parameters:" if self.parameters else "Parameters: none")
        for place, p in enumerate(self.parameters, 1):
            need = "required" if p.required else "optional"
            type_name = "array" if p.type == "line_range" else p.type
            lines.append(f"  {place}. {p.name} ({type_name}, {need}): {p.description}")
            if p.choices:
                lines.append(f"     Allowed values: [{', '.join(p.choices)}]")
        return "\n".join([*lines, f"---- END FUNCTION #{number} ----"])


FILE_EDITOR = ToolSchema(
    "file_editor",
    "Look at, create and change files. Edits are exact: whitespace counts.",
    (
        Parameter(
            "command", "string", "What to do.", True, ("view", "create", "str_replace", "insert", "undo_edit")
        ),
        Parameter("path", "string", "File or folder, absolute or relative to the repository.", True),
        Parameter("file_text", "string", "For create: the whole content of the new file."),
        Parameter("old_str", "string", "For str_replace: text that occurs exactly once in the file."),
        Parameter("new_str", "string", "For str_replace: its replacement. For insert: the new lines."),
        Parameter("insert_line", "integer", "For insert: the line to insert after; 0 is the file's top."),
        Parameter("view_range", "line_range", "For view: first and last line; -1 as last is the file's end."),
        Parameter("concise", "boolean", "For view of a long Python file: leave out function bodies."),
    ),
    (
        "Edits last, and the editor remembers them from one call to the next; undo_edit takes back the last "
        "edit of the file at path.",
        "view prints a file with its line numbers, and lists what is in a folder, two levels deep, hidden "
        "entries left out.",
        "create never replaces a file that is already there.",
        "Long output is cut in the middle; a note says how much is missing.",
        "str_replace needs an old_str that is in the file exactly once, whitespace included: where it is not "
        "unique nothing is changed, and more of the lines around it are needed. new_str takes its place. "
        "Line numbers that view prints are not part of the file.",
    ),
)
EXECUTE_BASH = ToolSchema(
    "execute_bash",
    "Run a shell command in the repository. Every command gets a fresh shell without a terminal or input.",
    (Parameter("cmd", "string", "The command line; join steps with && or newlines.", True),),
    (
        "The exit code comes first, then what the command printed; of many lines the first and the last 40.",
        "A command that exceeds its time limit is stopped, and what it printed until then is shown.",
        "Nothing can be typed into a running command.",
    ),
)
SEARCH = ToolSchema(
    "search",
    "Find text. In a folder: which files contain it and on how many lines. In a file: the matching lines.",
    (
        Parameter("search_term", "string", "Literal text in a folder, a grep pattern in a file.", True),
        Parameter("path", "string", "File or folder to look in; the repository by default."),
        Parameter("python_only", "boolean", "In a folder: look only at .py files; true by default."),
    ),
    (
        "Below a folder (without path: the repository) everything but hidden entries is searched; where more "
        "than 100 files match, none is listed and a narrower search is needed.",
        "In a file the matching lines are shown with their numbers, as grep -n does.",
    ),
)
FINISH = ToolSchema(
    "finish",
    "End the work and hand it in as it is.",
    (
        Parameter("command", "string", "Always submit.", True, ("submit",)),
        Parameter("result", "string", "A closing remark."),
    ),
    ("Call it when the task is done, or when nothing more can be done about it.",),
)
THINK = ToolSchema(
    "think",
    "Write down a thought; nothing is run or changed.",
    (Parameter("thought", "string", "The thought.", True),),
    ("Helpful between the steps of work that is long or hard to see through.",),
)
MOVE = ToolSchema(
    "move",
    "Walk one square.",
    (Parameter("direction", "string", "Where to.", True, ("up", "down", "left", "right")),),
)
SUBMIT = ToolSchema("submit", "Another name of finish.", ())

Tools = Mapping[str, ToolSchema]
SWE_TOOLS: Tools = {tool.name: tool for tool in (FILE_EDITOR, EXECUTE_BASH, SEARCH, FINISH)}
"""Tools of software-engineering tasks, in prompt order."""
LAKE_TOOLS: Tools = {MOVE.name: MOVE}
"""Tools of FrozenLake."""


def validate_call(name: str, arguments: Mapping[str, object], tools: Tools = SWE_TOOLS) -> ToolCall:
    """Validate a call against its schema; text is converted to the schema's types.

    Null counts as missing. ``submit``, where no tool has this name, is ``finish`` with ``command=submit``.

    Raises:
        CallError: unknown tool, or a missing, unknown or wrongly typed argument, with the signature.
    """
    if name == SUBMIT.name and name not in tools and FINISH.name in tools:
        return ToolCall(name=FINISH.name, arguments={"command": "submit"})
    if name not in tools:
        raise CallError(f"unknown tool {_shown(name)}; the tools are {', '.join(tools)}")
    schema = tools[name]
    known = {p.name: p for p in schema.parameters}
    try:
        unknown = [key for key in arguments if key not in known]
        if unknown:
            raise CallError(f"unknown argument {', '.join(map(_shown, unknown[:_MANY]))}")
        given = {key: value for key, value in arguments.items() if not known[key].is_null(value)}
        missing = [p.name for p in schema.parameters if p.required and p.name not in given]
        if missing:
            raise CallError(f"missing argument {', '.join(map(repr, missing))}")
        values = {key: known[key].parse(value) for key, value in given.items()}
    except CallError as error:
        raise CallError(f"{name}: {error}. Expected: {schema.signature()}") from None
    return ToolCall(name=name, arguments=values)


def _read(text: str) -> object:
    """Return the JSON value of a short text; None where it is not JSON."""
    if len(text) > _MAX_TEXT:
        return None
    try:
        return parse_json(text)
    except ValueError:
        return None


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_INTEGER


def _shown(value: object) -> str:
    text = reprlib.repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
