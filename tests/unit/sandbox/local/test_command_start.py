"""Start of commands by real agents: each runs once or reports why it could not start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.errors import SandboxResourceError
from tests.unit.sandbox.agents import agent, readable, run

__all__ = ["readable"]

_RANK = "cat /proc/self/oom_score_adj"


def _with_rank(rank: int) -> str:
    """Return code that sets an OOM score that the process cannot lower, as the kubelet does for pods."""
    return f"open('/proc/self/oom_score_adj', 'w').write('{rank}')"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process a least rank")
async def test_command_runs_once_if_its_agent_cannot_lower_its_oom_score(readable: Path) -> None:
    runs = readable / "shared" / "runs"
    agents = "/proc/$PPID/oom_score_adj"
    restored = f"until [ $(cat {agents}) -lt 1000 ]; do sleep 0.01; done; cat {agents}"
    async with agent(readable, {}, before=_with_rank(500)) as client:
        for _ in range(2):
            result = await run(client, "sh", "-c", f"echo once >> {runs}; {_RANK}; {restored}")
            assert (result.exit_code, result.stdout, result.stderr) == (0, b"1000\n500\n", b"")
    assert runs.read_text() == "once\nonce\n"


async def test_unstartable_command_reports_the_reason_and_the_next_one_runs(readable: Path) -> None:
    shared = readable / "shared"
    (shared / "plain").write_text("no program\n")
    (shared / "script").write_text("echo no first line\n")
    (shared / "script").chmod(0o755)
    async with agent(readable, {}) as client:
        for argv, status, reason in (
            (("nothing-of-that-name",), 127, b"No such file or directory"),
            ((f"{shared}/none/tool",), 127, b"No such file or directory"),
            ((f"{shared}/plain",), 126, b"Permission denied"),
            ((f"{shared}/script",), 126, b"Exec format error"),
            ((str(shared),), 126, b"Permission denied"),
            (("sh", "-c", "a null \0 character"), 127, b""),
        ):
            result = await run(client, *argv)
            assert (result.exit_code, reason in result.stderr) == (status, True), (argv, result)
            assert (await run(client, "echo", "fine")).stdout == b"fine\n"


async def test_command_that_takes_the_agents_descriptors_raises_a_resource_error(readable: Path) -> None:
    """Possible only without a seccomp profile; the failure is attributed to the command's sandbox."""
    async with agent(readable, {}) as client:
        with pytest.raises(SandboxResourceError, match="could not be monitored"):
            await run(client, "sh", "-c", "prlimit --pid $PPID --nofile=0:0; echo done; sleep 60")


async def test_program_is_looked_up_in_the_path_of_the_command(readable: Path) -> None:
    tools = readable / "shared" / "tools"
    tools.mkdir()
    (tools / "tool").write_text("#!/bin/sh\necho found\n")
    (tools / "tool").chmod(0o755)
    async with agent(readable, {}) as client:
        assert (await run(client, "tool")).exit_code == 127
        result = await run(client, "tool", env={"PATH": f"/nowhere:{tools}"})
        assert (result.exit_code, result.stdout) == (0, b"found\n")
