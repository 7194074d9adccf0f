"""Real agents as unprivileged processes of one user, as in pods of one node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import engine.sandbox.agent
from engine.sandbox.base import ExecResult
from engine.sandbox.client import AgentClient
from engine.sandbox.responses import executed

USER = 54321
"""Otherwise unused user id: all of its processes belong to these tests."""
# The running Python may be readable by root only, so the agent's imports precede setuid.
_START = (
    "import _ctypes, os, resource, select, sys, warnings; sys.path[:0] = [{folder!r}]; "
    "from agent.main import main; {before}; "
    "user = {user}; user and (os.setgroups([]), os.setgid(user), os.setuid(user)); main()"
)


@pytest.fixture
def readable() -> Iterator[Path]:
    """Folder readable by every user, with the agent's source and a ``shared`` folder that all can write."""
    with tempfile.TemporaryDirectory(prefix="agents-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(Path(engine.sandbox.agent.__file__).parent, folder / "agent")
        (folder / "shared").mkdir()
        (folder / "shared").chmod(0o777)
        yield folder


@contextlib.asynccontextmanager
async def agent(folder: Path, env: dict[str, str], *, before: str = "") -> AsyncIterator[AgentClient]:
    """Start an agent; its process first runs ``before`` with the privileges of the tests."""
    code = _START.format(folder=str(folder), before=before or "pass", user=USER if os.geteuid() == 0 else 0)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-B", "-c", code),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.defpath, **env},
        cwd="/",
    )
    assert process.stdin is not None
    assert process.stdout is not None
    client = AgentClient(process.stdout, process.stdin)
    try:
        await client.hello(60)
        yield client
    finally:
        await client.close()
        await process.wait()


async def run(client: AgentClient, *argv: str, env: dict[str, str] | None = None) -> ExecResult:
    """Run a command in the root folder."""
    return await client.call(
        "exec",
        executed(10_000),
        timeout_s=60.0,
        argv=list(argv),
        cwd="/",
        env={"PATH": os.defpath, **(env or {})},
        stdin=b"",
        timeout_ms=60_000,
        output_cap=10_000,
    )
