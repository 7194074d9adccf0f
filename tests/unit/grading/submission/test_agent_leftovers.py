"""Programs that an agent plants on the PATH of its verifier."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.grading.running.agent_leftovers import altered_runners, put_tests_in_place, runner_hashes
from engine.grading.running.nonces import Nonces
from engine.grading.running.scripts import prepare
from engine.sandbox.base import Sandbox, SandboxSpec
from engine.types import TaskAnswer

ANSWER = TaskAnswer(gold_patch="", hidden_paths=("/tests",))
PATH = "/usr/local/bin:tools:/usr/bin:/bin"


class Box:
    """A sandbox with programs that records its commands."""

    def __init__(self, *programs: str) -> None:
        self.spec = SandboxSpec(image="i", workdir="/w")
        self.files = {path: path.encode() for path in programs}
        self.commands: list[list[str]] = []

    async def read_file(self, path: str, *, max_bytes: int = 0) -> bytes:
        try:
            return self.files[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    async def exec(self, command: list[str], **_: Any) -> SimpleNamespace:
        self.commands.append(command)
        return SimpleNamespace(stdout=PATH.encode(), stderr=b"", exit_code=0)


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("/usr/local/bin/bash", True),
        ("/usr/local/bin/rm", True),
        ("/usr/bin/cat", True),
        ("/usr/bin/bash", False),  # after the image's own on the PATH
        ("/usr/local/bin/make", False),
        ("/usr/local/bin/env", False),  # absent from the image
    ],
)
async def test_programs_planted_before_the_image_programs_are_reported(planted: str, found: bool) -> None:
    box = Box("/usr/local/bin/sh", "/usr/bin/rm", "/bin/bash", "/usr/bin/bash", "/bin/cat")
    if planted in ("/usr/bin/bash",):
        del box.files[planted]
        box.files["/usr/local/bin/bash"] = b"own"
    before = await runner_hashes(cast("Sandbox", box), ANSWER)
    assert await altered_runners(cast("Sandbox", box), before) == []
    box.files[planted] = b"planted"
    assert await altered_runners(cast("Sandbox", box), before) == ([planted] if found else [])


async def test_grader_programs_are_called_by_absolute_path() -> None:
    box = Box()
    await put_tests_in_place(cast("Sandbox", box), ANSWER)
    assert [command[0] for command in box.commands] == ["/bin/rm"]
    script = prepare("exec bash /tests/test.sh --all\nbash /run.sh", Nonces.fresh(), with_pytest=False)
    assert '\nexec /bin/bash -c \'source "$0" "$@"\' /tests/test.sh --all\n' in script
    assert '\n/bin/bash -c \'source "$0" "$@"\' /run.sh\n' in script
