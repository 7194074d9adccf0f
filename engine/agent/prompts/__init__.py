"""Versioned prompts: one folder each with ``system.txt`` (optional), ``user.txt`` and ``prompt.json``.

A prompt in use is never edited: its content hash is recorded with what was trained on it. To add
one: a new folder ``<name>_v<number>``; ``prompt.json`` names the observations' style. Texts may
use ``{{tools}}``, ``{{format}}``, ``{{workdir}}``, ``{{problem_statement}}`` and any text of the
task's metadata by its name.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError
from engine.tools import ObservationStyle
from engine.tools.formats import ToolFormat
from engine.tools.schemas import SWE_TOOLS, Tools
from engine.types import Task

_FOLDER = Path(__file__).parent
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt for one tool format."""

    name: str
    """Folder name, version included, e.g. ``deepswe_v1``."""
    content_hash: str
    """16 hex digits over every text that reaches the model, tool descriptions included."""
    system: str
    """Text of the system turn; empty for none."""
    user_template: str
    observations: ObservationStyle

    def user(self, task: Task) -> str:
        """Return the first user turn for a task; placeholders inside the statement stay as they are."""
        texts = {name: value for name, value in task.metadata.items() if isinstance(value, str)}
        texts |= {"workdir": task.workdir, "problem_statement": task.problem_statement}
        return _fill(self.user_template, texts)


def load_prompt(name: str, tool_format: ToolFormat, tools: Tools = SWE_TOOLS) -> Prompt:
    """Read a prompt folder.

    Raises:
        ConfigError: there is no prompt of that name, or the format cannot express the tools' calls.
    """
    if tool_format == "words" and (unfit := [tool.name for tool in tools.values() if not tool.is_wordy]):
        raise ConfigError(f"agent.tool_format 'words' cannot express calls of {', '.join(unfit)}: use 'xml'")
    folder = _folder(name)
    options = json.loads((folder / "prompt.json").read_text())
    system_file = folder / "system.txt"
    system = _fill(
        _text(system_file) if system_file.exists() else "",
        {
            "tools": _tools_text(tools, tool_format),
            "format": _text(_FOLDER / "formats" / f"{tool_format}.txt"),
        },
    )
    user_template = _text(folder / "user.txt")
    content = json.dumps([system, user_template, options, tool_format], sort_keys=True)
    return Prompt(
        name=name,
        content_hash=hashlib.sha256(content.encode()).hexdigest()[:16],
        system=system,
        user_template=user_template,
        observations=options["observations"],
    )


@functools.cache
def observation_style(name: str) -> ObservationStyle:
    """Return how a prompt wants observations written. Raises ConfigError when there is no such prompt."""
    style: ObservationStyle = json.loads((_folder(name) / "prompt.json").read_text())["observations"]
    return style


def prompt_names() -> list[str]:
    """Return names of all prompts."""
    return sorted(path.parent.name for path in _FOLDER.glob("*/prompt.json"))


def _folder(name: str) -> Path:
    folder = _FOLDER / name
    if not re.fullmatch(r"[a-z0-9_]+_v[0-9]+", name) or not folder.is_dir():
        raise ConfigError(f"unknown prompt '{name}'; known: {', '.join(prompt_names())}")
    return folder


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").removesuffix("\n")


def _fill(template: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)


def _tools_text(tools: Tools, tool_format: ToolFormat) -> str:
    if tool_format == "native":
        rows = "\n".join(json.dumps(tool.json_schema()) for tool in tools.values())
        return f"The tools, as JSON schemas:\n\n<tools>\n{rows}\n</tools>"
    return "The tools:\n\n" + "\n\n".join(tool.describe() for tool in tools.values())
