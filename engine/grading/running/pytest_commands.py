"""Detection of test commands that run pytest, by their text and that of the scripts that they run."""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import Collection, Mapping

from engine.grading.running.placement import commands
from engine.grading.running.shell_commands import runs
from engine.sandbox.base import Sandbox

SCRIPT = re.compile(r"(?<![\w$/.-])/[\w./-]+\.sh\b")
"""Absolute path of a script in a command."""
SCRIPT_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_PYTEST = frozenset({"pytest", "py.test"})
_TOX = frozenset({"tox", "nox"})
_ONLY_NAMES = re.compile(
    r"(?:(?:if|elif|while|until|!)\s+)*(?:test|\[\[?|cat|chmod|cp|echo|grep|ls|mv|printf|rm|sed|touch)\s"
)
"""Start of a command that runs none of the scripts that it names."""
_INSTEAD = "/run_tests.sh"
"""Script that R2E-Gym's command runs instead of its own last line, if an image has it."""
_MAX_SCRIPTS = 20
_SETS = re.compile(r"\b(PYTHONPATH|PYTEST_ADDOPTS)=(?![^\s;]*\$\{?\1\b)")
"""Assignment that replaces a setting which the recorder needs."""
_ISOLATES = re.compile(
    r"\b(?:PYTHONPATH|PYTEST_ADDOPTS)=(?:\"\"|'')?(?=[\s;&|)]|$)"
    r"|\bunset\b[^\n;&|]{0,99}\b(?:PYTHONPATH|PYTEST_ADDOPTS)\b"
    r"|\benv[ \t]+(?:[^\n;&|]{0,99}[ \t])?(?:(?:-i|-|--ignore-environment)(?=\s)"
    r"|(?:-u|--unset)[ \t=]*(?:PYTHONPATH|PYTEST_ADDOPTS)\b)"
    r"|\bpython[\w.]*[\"']?[ \t]+(?:-\w+[ \t]+)*-[a-zA-Z]*[EI][a-zA-Z]*[ \t]"
)
"""Command that removes these settings from the environment of what it runs."""


async def runs_pytest(
    box: Sandbox, command: str, files: Mapping[str, str], changed: Collection[str] = ()
) -> bool:
    """Return whether a command runs pytest in a way that can be recorded, judged by its text.

    Args:
        files: absolute path → text of scripts of the row, used instead of the files in the sandbox.
        changed: absolute paths that the graded work changed. Such a script only counts as running pytest: it
            can neither prevent recording nor name other scripts to read.

    Raises:
        SandboxError: the sandbox failed.
    """
    own = {"": command}
    image: dict[str, str] = {}
    waiting = [command]
    while waiting:
        for path in await asyncio.to_thread(_scripts, waiting.pop(), files):
            if path in own or path in image:
                continue
            if path in files:
                own[path] = files[path]
                waiting.append(files[path])
            elif len(image) < _MAX_SCRIPTS:
                image[path] = await _text(box, path)
                if path not in changed:
                    waiting.append(image[path])
    return await asyncio.to_thread(_are_recorded, own, image, changed)


def _are_recorded(own: Mapping[str, str], image: Mapping[str, str], changed: Collection[str]) -> bool:
    kept = {path: text for path, text in image.items() if path not in changed}
    if any(_ISOLATES.search(text) for text in (*own.values(), *kept.values())):
        return False
    if any(_SETS.search(text) for text in kept.values()):  # in the row's scripts these are extended
        return False
    texts = {**own, **image}
    named = SCRIPT.findall(own[""])
    instead = any(text and path in named and path.endswith(_INSTEAD) for path, text in texts.items())
    calling = [
        text
        for path, text in texts.items()
        if not (instead and path == "") and path not in changed and runs(text, _PYTEST)
    ]
    if any(runs(text, _TOX) for text in calling):
        return False  # tox and nox pass no environment on
    return bool(calling) or any(runs(text, _PYTEST) for path, text in image.items() if path in changed)


def _scripts(text: str, files: Mapping[str, str]) -> list[str]:
    """Return the scripts that a text runs, by absolute path; those of the row also by name alone."""
    paths: list[str] = []
    for _, _, command in commands(text):
        if not command.startswith("#") and not _ONLY_NAMES.match(command):
            paths += SCRIPT.findall(command)
            paths += (path for path in files if _names(command, posixpath.basename(path)))
    return paths


def _names(command: str, name: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", command) is not None


async def _text(box: Sandbox, path: str) -> str:
    try:
        return (await box.read_file(path, max_bytes=_READ_BYTES)).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
