"""Images without the shell that runs test scripts."""

from __future__ import annotations

from typing import Any, cast

import pytest

from engine.errors import ImageError
from engine.grading.running.request import RunRequest
from engine.grading.running.scripts import run_script
from engine.sandbox.base import Sandbox, SandboxSpec
from engine.types import TaskAnswer


class Box:
    """A sandbox whose files cannot be read for a given reason; it ends the run where a program starts."""

    def __init__(self, problem: Exception) -> None:
        self.spec = SandboxSpec(image="registry/alpine:3", workdir="/w")
        self._problem = problem

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        if path != "/bin/bash":
            raise FileNotFoundError(path)
        assert max_bytes == 0
        raise self._problem

    async def fetch_files(self, names: list[str]) -> dict[str, Any]:
        return {}

    async def exec(self, command: list[str], **_options: object) -> None:
        raise EOFError(command[0])


async def run(problem: Exception) -> None:
    request = RunRequest(
        answer=TaskAnswer(gold_patch="", test_command="true"), timeout_s=1.0, changed=(), overlay={}
    )
    await run_script(cast("Sandbox", Box(problem)), request)


@pytest.mark.parametrize("problem", [FileNotFoundError(), NotADirectoryError()])
async def test_an_image_without_bash_is_the_images_fault(problem: Exception) -> None:
    with pytest.raises(ImageError, match="image 'registry/alpine:3' has no /bin/bash"):
        await run(problem)


@pytest.mark.parametrize("problem", [ValueError(), PermissionError()])
async def test_bash_need_not_be_readable(problem: Exception) -> None:
    with pytest.raises(EOFError, match="/bin/bash"):
        await run(problem)
