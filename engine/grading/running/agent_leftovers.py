"""Preparation of an agent's own sandbox for grading: leftovers removed, programs that run tests compared.

The agent's background processes are dead by then: a sandbox kills the processes that a command leaves.
"""

from __future__ import annotations

import asyncio
import hashlib
import posixpath
from collections.abc import Mapping
from pathlib import PurePosixPath

from engine.datasets.answer_files import contents_of
from engine.grading.rules.reward_file import reward_files
from engine.grading.running.placement import PlacementError, place_files
from engine.sandbox.agent.interpreters import CANDIDATES
from engine.sandbox.base import Sandbox
from engine.types import TaskAnswer

_PROGRAMS = (
    "/bin/bash", "/bin/sh", "/bin/rm", "/bin/cat", "/usr/bin/env",
    *(path for path in CANDIDATES if path.startswith("/")),
    "/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1",
    "/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6",
)  # fmt: skip
"""Programs that run tests, if present in the image."""
_BY_NAME = ("bash", "sh", "rm", "cat", "env")
"""Programs that scripts call by name: none may be created in an earlier folder of PATH."""
_SWITCHES = ("/etc/ld.so.preload",)
_RUNNER_FILES = ("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml")
_SHADOWS = tuple(
    f"{name}{ending}"
    for name in ("pytest", "_pytest", "pluggy", "unittest", "sitecustomize", "usercustomize")
    for ending in (".py", "/__init__.py")
)
"""Modules in the workdir that Python would import instead of the runner's."""
_MAX_BYTES = 64 << 20
_COMMAND_S = 60.0
_ABSENT = ""


async def runner_hashes(box: Sandbox, answer: TaskAnswer) -> Mapping[str, str]:
    """Return path → hash of the files that decide how tests run, empty for absent ones.

    Raises:
        SandboxError: the sandbox failed.
    """
    shadows = (posixpath.join(box.spec.workdir, name) for name in _SHADOWS)
    watched = (*_PROGRAMS, *_SWITCHES, *shadows, *_above_tests(box, answer))
    hashes = {path: await _hash(box, path) for path in watched}
    return {**hashes, **dict.fromkeys(await _earlier_on_path(box), _ABSENT)}


async def _earlier_on_path(box: Sandbox) -> list[str]:
    """Return the absent paths that would shadow the image's own programs on PATH."""
    printed = await box.exec(["/bin/sh", "-c", 'printf %s "$PATH"'], timeout_s=_COMMAND_S, cwd="/")
    folders = [
        folder for folder in printed.stdout.decode(errors="replace").split(":") if folder.startswith("/")
    ]
    absent: list[str] = []
    for name in _BY_NAME:
        before: list[str] = []
        for path in (posixpath.join(folder, name) for folder in folders):
            if await _hash(box, path):
                absent += before
                break
            before.append(path)
    return absent


async def altered_runners(box: Sandbox, before: Mapping[str, str]) -> list[str]:
    """Return the paths with another content than ``before``, except programs that were absent then.

    Raises:
        SandboxError: the sandbox failed.
    """
    watched = [path for path, known in before.items() if known or path not in _PROGRAMS]
    return [path for path in watched if await _hash(box, path) != before[path]]


async def put_tests_in_place(box: Sandbox, answer: TaskAnswer) -> str:
    """Remove an agent's hidden paths and reward files, and write the answer's test files.

    Returns:
        Reason why an agent's file prevents this; empty if all files were written.

    Raises:
        SandboxError: the sandbox failed.
    """
    replaced = [*answer.hidden_paths, *reward_files(answer)]
    paths = [posixpath.normpath(posixpath.join(box.spec.workdir, path)) for path in replaced]
    if paths:
        removed = await box.exec(["/bin/rm", "-rf", "--", *paths], timeout_s=_COMMAND_S, cwd="/")
        if removed.exit_code != 0:
            reason = removed.stderr.decode(errors="replace").strip()
            return f"the agent's files at hidden paths cannot be removed: {reason}"
    try:
        await place_files(box, contents_of(answer))
    except PlacementError as error:
        return f"{error}; the agent changed this path"
    return ""


def _above_tests(box: Sandbox, answer: TaskAnswer) -> list[str]:
    """Return the paths of runner configuration in folders above test files outside of the workdir."""
    workdir = PurePosixPath(box.spec.workdir)
    folders: set[PurePosixPath] = set()
    for path in (*answer.test_files, *answer.binary_files):
        test_path = PurePosixPath(posixpath.normpath(posixpath.join(workdir, path)))
        if not test_path.is_relative_to(workdir):
            folders.update(test_path.parents)
    hidden = [PurePosixPath(posixpath.normpath(workdir / path)) for path in answer.hidden_paths]
    kept = (folder for folder in folders if not any(folder.is_relative_to(path) for path in hidden))
    return [str(folder / name) for folder in sorted(kept) for name in _RUNNER_FILES]


async def _hash(box: Sandbox, path: str) -> str:
    try:
        content = await box.read_file(path, max_bytes=_MAX_BYTES)
    except (OSError, ValueError) as error:
        return _ABSENT if isinstance(error, FileNotFoundError | NotADirectoryError) else type(error).__name__
    digest = await asyncio.to_thread(hashlib.sha256, content)
    return digest.hexdigest()
