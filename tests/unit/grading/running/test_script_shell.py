"""Images without the shell that runs test scripts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import ImageError
from engine.grading.running.request import RunRequest
from engine.grading.running.scripts import run_script
from engine.sandbox.base import SandboxSpec
from engine.types import TaskAnswer


async def run(problem: Exception) -> None:
    """Run a script in an image where reading bash raises ``problem``; the first program raises EOFError."""

    async def read_file(path: str, *, max_bytes: int) -> bytes:
        raise problem if path == "/bin/bash" else FileNotFoundError(path)

    async def fetch_files(_names: list[str]) -> dict[str, Any]:
        return {}

    async def program(command: list[str], **_options: object) -> None:
        raise EOFError(command[0])

    spec = SandboxSpec(image="registry/alpine:3", workdir="/w")
    box: Any = SimpleNamespace(spec=spec, read_file=read_file, fetch_files=fetch_files, exec=program)
    answer = TaskAnswer(gold_patch="", test_command="true")
    await run_script(box, RunRequest(answer=answer, timeout_s=1.0, changed=(), overlay={}))


@pytest.mark.parametrize("problem", [FileNotFoundError(), NotADirectoryError()])
async def test_missing_bash_raises_an_image_error(problem: Exception) -> None:
    with pytest.raises(ImageError, match="image 'registry/alpine:3' has no /bin/bash"):
        await run(problem)


@pytest.mark.parametrize("problem", [ValueError(), PermissionError()])
async def test_unreadable_bash_is_run_anyway(problem: Exception) -> None:
    with pytest.raises(EOFError, match="/bin/bash"):
        await run(problem)
