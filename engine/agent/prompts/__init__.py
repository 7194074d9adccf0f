"""Versioned prompts: one folder each with ``system.txt`` (optional), ``user.txt`` and ``prompt.json``.

A prompt in use is never edited: its content hash is recorded with what was trained on it. To add one: a new
folder ``<name>_v<number>``. ``prompt.json`` sets the observations' style and, where they differ from the
default, the countdown of steps, the token warning, and ``system``, the prompt whose ``system.txt`` and
``format_*.txt`` are used. Texts may use ``{{tools}}`` (short form) or ``{{functions}}`` (long form),
``{{format}}``, ``{{finish}}`` and ``{{editor}}`` (names of those tools), ``{{workdir}}``,
``{{workdir_name}}``, ``{{problem_statement}}`` and any text of the task's metadata by its name.

In ``native`` format the model's chat template declares the tools: the text contains neither tools nor format.
"""

from __future__ import annotations

import functools
import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ConfigError
from engine.tools import ObservationStyle
from engine.tools.formats import ToolFormat
from engine.tools.schemas import SWE_TOOLS, Tools
from engine.types import Task

_FOLDER = Path(__file__).parent
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
_EMPTY_LINES = re.compile(r"\n{3,}")
_COUNTDOWN = {
    "each": "\n\nSteps Remaining: {remaining}",
    "last": "\n\nSteps Remaining: {remaining}. This is the last one: hand in with the {{finish}} tool now.",
}
_TOKEN_WARNING = "\n\nYou are running out of tokens: submit now with the {{finish}} tool."
_FINISHING = ("finish", "submit")
_EDITORS = ("file_editor", "str_replace_editor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt for one tool format and set of tools."""

    name: str
    """Folder name, version included, e.g. ``deepswe_v1``."""
    content_hash: str
    """Hash over everything that reaches the model (texts, tool schemas, format), 16 hex digits."""
    system: str
    """Text of the system turn; empty for none."""
    user_template: str
    observations: ObservationStyle
    declarations: tuple[Mapping[str, Any], ...]
    """Tools in OpenAI's form, for the model's chat template; empty unless the format is ``native``."""
    token_warning: str
    """Text appended to an observation when the context is nearly full."""
    countdown_each: str
    countdown_last: str

    def user(self, task: Task) -> str:
        """Return the first user turn for a task; placeholders inside the statement stay as they are."""
        texts = {name: value for name, value in task.metadata.items() if isinstance(value, str)}
        texts |= {
            "workdir": task.workdir,
            "workdir_name": posixpath.basename(task.workdir),
            "problem_statement": task.problem_statement,
        }
        return _fill(self.user_template, texts)

    def countdown(self, remaining: int) -> str:
        """Return the text that ends a turn of the environment.

        Args:
            remaining: steps left, the coming one included.
        """
        text = self.countdown_last if remaining == 1 else self.countdown_each
        return text.replace("{remaining}", str(remaining)).replace("{after}", str(remaining - 1))


def load_prompt(name: str, tool_format: ToolFormat, tools: Tools = SWE_TOOLS) -> Prompt:
    """Read a prompt folder.

    Raises:
        ConfigError: there is no prompt of that name, or the format cannot express the tools' calls.
    """
    if tool_format == "words" and (unfit := [tool.name for tool in tools.values() if not tool.is_wordy]):
        raise ConfigError(f"agent.tool_format 'words' cannot express calls of {', '.join(unfit)}: use 'xml'")
    options = _options(name)
    schemas = tuple(tool.json_schema() for tool in tools.values())
    names = {"finish": _name_among(tools, _FINISHING), "editor": _name_among(tools, _EDITORS)}
    countdown = options.get("countdown", _COUNTDOWN)
    texts = {
        "system": _system(_folder(options.get("system", name)), tool_format, tools),
        "user": _text(_folder(name) / "user.txt"),
        "each": countdown["each"],
        "last": countdown["last"],
        "token_warning": options.get("token_warning", _TOKEN_WARNING),
    }
    texts = {key: _fill(text, names) for key, text in texts.items()}
    content = json.dumps([texts, options["observations"], tool_format, schemas], sort_keys=True)
    return Prompt(
        name=name,
        content_hash=hashlib.sha256(content.encode()).hexdigest()[:16],
        system=texts["system"],
        user_template=texts["user"],
        observations=options["observations"],
        declarations=schemas if tool_format == "native" else (),
        token_warning=texts["token_warning"],
        countdown_each=texts["each"],
        countdown_last=texts["last"],
    )


@functools.cache
def observation_style(name: str) -> ObservationStyle:
    """Return a prompt's style of observations. Raises ConfigError when there is no such prompt."""
    style: ObservationStyle = _options(name)["observations"]
    return style


def prompt_names() -> list[str]:
    """Return the names of all prompts."""
    return sorted(path.parent.name for path in _FOLDER.glob("*/prompt.json"))


def _folder(name: str) -> Path:
    folder = _FOLDER / name
    if not re.fullmatch(r"[a-z0-9_]+_v[0-9]+", name) or not folder.is_dir():
        raise ConfigError(f"unknown prompt '{name}'; known: {', '.join(prompt_names())}")
    return folder


def _options(name: str) -> dict[str, Any]:
    options: dict[str, Any] = json.loads((_folder(name) / "prompt.json").read_text(encoding="utf-8"))
    return options


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").removesuffix("\n")


def _fill(template: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)


def _name_among(tools: Tools, names: tuple[str, ...]) -> str:
    return next((name for name in names if name in tools), names[0])


def _system(folder: Path, tool_format: ToolFormat, tools: Tools) -> str:
    if not (folder / "system.txt").exists():
        return ""
    candidates = (folder / f"format_{tool_format}.txt", _FOLDER / "formats" / f"{tool_format}.txt")
    format_text = next((_text(path) for path in candidates if path.exists()), "")
    values = {"format": format_text, "tools": "", "functions": ""}
    if tool_format != "native":
        values["tools"] = "The tools:\n\n" + "\n\n".join(tool.describe() for tool in tools.values())
        values["functions"] = "These functions are at your disposal:\n\n" + "\n\n".join(
            tool.specification(number) for number, tool in enumerate(tools.values(), 1)
        )
    filled = _fill(_text(folder / "system.txt"), values)
    return _EMPTY_LINES.sub("\n\n", filled).strip() if tool_format == "native" else filled
