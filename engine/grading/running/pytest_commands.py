"""Detection of test commands that run pytest, by their text and that of the scripts that they run."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping

from engine.grading.running.placement import commands
from engine.sandbox.base import Sandbox

SCRIPT = re.compile(r"(?<![\w$])/[\w./-]+\.sh\b")
"""Absolute path of a script in a command."""
SCRIPT_BYTES = 1 << 20
_PYTEST = re.compile(r"(?<![\w./-])(?:py\.test|pytest)(?![\w.-])|/(?:py\.test|pytest)(?=\s)|-m\s+pytest\b")
_TOX = re.compile(r"(?<![\w./-])(?:tox|nox)(?![\w.-])")
_INSTALLS = re.compile(r"\b(?:pip3?|conda|uv|apt-get) +(?:\w+ +)?(?:install|show|add)\b")
_SPEAKS = re.compile(r"^(?:(?:if|!|then|do|else|\{|\()\s*)*(?:echo|printf|which|type|hash|command +-[vV])\b")
"""Start of a command that only names pytest."""
_ENDS = re.compile(r"&&|\|\|?|;")
_INSTEAD = "/run_tests.sh"
"""Script that R2E-Gym's command runs instead of its own last line, where an image has it."""
_MAX_SCRIPTS = 20


async def runs_pytest(box: Sandbox, command: str, files: Mapping[str, str]) -> bool:
    """Return whether a command runs pytest in a way that can be recorded, judged by its text.

    Args:
        files: absolute path → text of scripts of the row, which are read from here and not from the sandbox.

    Raises:
        SandboxError: the sandbox failed.
    """
    texts = {"": command}
    waiting = [command]
    while waiting:
        for path in _scripts(waiting.pop(), files):
            if path not in texts and len(texts) <= _MAX_SCRIPTS:
                texts[path] = files[path] if path in files else await _text(box, path)
                waiting.append(texts[path])
    if any(text and path.endswith(_INSTEAD) for path, text in texts.items()):
        del texts[""]
    called = [part for text in texts.values() for part in _commands(text)]
    if any(_TOX.search(part) for part in called):
        return False  # tox and nox pass no environment on
    return any(_PYTEST.search(part) for part in called)


def _scripts(text: str, files: Mapping[str, str]) -> Iterator[str]:
    """Yield the scripts that a text names: by absolute path, those of the row also by name alone."""
    for _, _, command in commands(text):
        if not command.startswith("#"):
            yield from SCRIPT.findall(command)
            yield from (path for path in files if _names(command, posixpath.basename(path)))


def _names(command: str, name: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", command) is not None


async def _text(box: Sandbox, path: str) -> str:
    try:
        return (await box.read_file(path, max_bytes=SCRIPT_BYTES)).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def _commands(text: str) -> Iterator[str]:
    """Yield the simple commands, without comments, here-documents, installations and what is only printed."""
    for _, _, command in commands(text):
        for line in command.split("\n"):
            if not line.startswith("#") and not _INSTALLS.search(line):
                parts = (part.strip() for part in _ENDS.split(line))
                yield from (part for part in parts if not _SPEAKS.match(part))
