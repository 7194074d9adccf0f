"""Conformance of commands: status, streams, deadlines, output limits, cancellation, lifetime.

Checks assert the results of a command, not its duration, except that no deadline is overrun without bound.
"""

from __future__ import annotations

import asyncio
import time

from engine.errors import SandboxDiedError
from engine.sandbox.base import Sandbox
from engine.sandbox.conformance.subject import Subject, check, raises

_PATIENCE_S = 120.0
"""Seconds far above any legitimate overrun on a loaded machine, far below a command's own duration."""


async def _processes(sandbox: Sandbox) -> set[str]:
    """Return pid and command line of every process in the sandbox other than the listing itself."""
    script = "for p in /proc/[0-9]*; do echo \"${p##*/} $(tr '\\0' ' ' < $p/cmdline 2>/dev/null)\"; done"
    result = await sandbox.exec(script, timeout_s=10)
    processes = set()
    for line in result.stdout.decode().splitlines():
        _, _, command = line.strip().partition(" ")
        if command and "/proc/[0-9]*" not in command and command[:3] != "tr ":
            processes.add(line.strip())
    return processes


@check
async def reports_exit_codes_and_splits_the_streams(subject: Subject) -> None:
    """Status, stdout and stderr are separate."""
    async with subject.open() as sandbox:
        result = await sandbox.exec("echo out; echo err >&2; exit 7", timeout_s=10)
        assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")
        assert not result.timed_out
        assert result.dropped_bytes == 0
        assert (await sandbox.exec("true", timeout_s=10)).exit_code == 0


@check
async def reports_a_signal_as_128_plus_its_number(subject: Subject) -> None:
    """The status follows the shell's convention, whichever process waited for the command."""
    async with subject.open() as sandbox:
        assert (await sandbox.exec("kill -SEGV $$", timeout_s=10)).exit_code == 139
        assert (await sandbox.exec("kill -KILL $$", timeout_s=10)).exit_code == 137


@check
async def reports_commands_that_cannot_start(subject: Subject) -> None:
    """The status is the shell's, 127 or 126, with a message."""
    async with subject.open() as sandbox:
        missing = await sandbox.exec(["no-such-program"], timeout_s=10)
        assert missing.exit_code == 127
        assert b"no-such-program" in missing.stderr
        assert (await sandbox.exec([f"{subject.workdir}/a.txt"], timeout_s=10)).exit_code == 126
        assert (await sandbox.exec("true", timeout_s=10, cwd="/no/such/folder")).exit_code == 127


@check
async def passes_arguments_folder_environment_and_stdin(subject: Subject) -> None:
    """A list bypasses the shell; ``cwd`` may be relative; stdin is closed after its content."""
    async with subject.open(env={"COLOUR": "red"}) as sandbox:
        assert (
            await sandbox.exec(["printf", "%s|", "a b", "$HOME", "*"], timeout_s=10)
        ).stdout == b"a b|$HOME|*|"
        assert (await sandbox.exec("pwd", timeout_s=10)).stdout.decode() == f"{subject.workdir}\n"
        assert (
            await sandbox.exec("pwd", timeout_s=10, cwd="deep/er")
        ).stdout.decode() == f"{subject.workdir}/deep/er\n"
        shown = await sandbox.exec("echo $COLOUR $SIZE", timeout_s=10, env={"SIZE": "big"})
        assert shown.stdout == b"red big\n"
        data = b"\0\xff line\n" * 100_000
        echoed = await sandbox.exec("cat", timeout_s=30, stdin=data, output_cap=2 * len(data))
        assert echoed.stdout == data
        assert (await sandbox.exec("cat", timeout_s=10)).stdout == b""
        assert (await sandbox.exec("exec 0<&-; sleep 0.05", timeout_s=10, stdin=data)).exit_code == 0


@check
async def a_deadline_kills_the_whole_tree_and_keeps_the_output(subject: Subject) -> None:
    """Children that changed session, ignore TERM or keep the pipes open are killed as well."""
    async with subject.open() as sandbox:
        script = (
            "echo before; trap '' TERM HUP INT; (trap '' TERM; setsid sleep 777) & "
            "setsid sh -c 'trap \"\" TERM; sleep 888' & echo half >&2; while :; do sleep 999; done"
        )
        before = await _processes(sandbox)
        started = time.monotonic()
        result = await sandbox.exec(script, timeout_s=2)
        assert time.monotonic() - started < _PATIENCE_S
        assert result.timed_out
        assert result.exit_code is None
        assert (result.stdout, result.stderr) == (b"before\n", b"half\n")
        assert await _processes(sandbox) == before


@check
async def background_processes_end_with_their_command(subject: Subject) -> None:
    """Processes double-forked into another session end as well; the result is not delayed."""
    async with subject.open() as sandbox:
        script = "(setsid sh -c 'sleep 777 & sleep 778' >/dev/null 2>&1 &) ; sleep 779 & echo done"
        before = await _processes(sandbox)
        started = time.monotonic()
        result = await sandbox.exec(script, timeout_s=60)
        assert time.monotonic() - started < _PATIENCE_S
        assert (result.exit_code, result.stdout) == (0, b"done\n")
        assert await _processes(sandbox) == before


@check
async def a_flood_of_output_is_capped_and_counted(subject: Subject) -> None:
    """Head and tail are kept, the dropped middle is counted, memory does not grow."""
    async with subject.open() as sandbox:
        total = 20_000_000
        script = f"printf HEAD; head -c {total} /dev/zero | tr '\\0' x; printf TAIL"
        result = await sandbox.exec(script, timeout_s=60, output_cap=10_000)
        assert result.exit_code == 0
        assert len(result.stdout) == 10_000
        assert result.stdout.startswith(b"HEADxxx")
        assert result.stdout.endswith(b"xxxTAIL")
        assert result.dropped_bytes == total + 8 - 10_000
        endless = await sandbox.exec("yes", timeout_s=1, output_cap=1000)
        assert endless.timed_out
        assert len(endless.stdout) == 1000


@check
async def a_cancelled_command_is_killed_and_the_sandbox_goes_on(subject: Subject) -> None:
    """The next command gets its own result, not the output of the cancelled one."""
    async with subject.open() as sandbox:
        before = await _processes(sandbox)
        task = asyncio.ensure_future(sandbox.exec("echo old; sleep 777", timeout_s=600))
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert (await sandbox.exec("echo new", timeout_s=10)).stdout == b"new\n"
        assert await _processes(sandbox) == before


@check
async def concurrent_calls_on_one_sandbox_take_turns(subject: Subject) -> None:
    """Each call gets its own result."""
    async with subject.open() as sandbox:
        results = await asyncio.gather(*(sandbox.exec(f"echo {n}", timeout_s=30) for n in range(8)))
        assert [result.stdout for result in results] == [b"%d\n" % n for n in range(8)]


@check
async def thirty_two_sandboxes_live_at_once(subject: Subject) -> None:
    """Each sandbox has its own files and results."""

    async def write_and_read(number: int) -> bytes:
        async with subject.open() as sandbox:
            await sandbox.write_file("mine", b"%d" % number)
            await asyncio.sleep(0.2)
            result = await sandbox.exec("cat mine; ls | grep -c mine", timeout_s=60)
            return result.stdout

    answers = await asyncio.gather(*(write_and_read(number) for number in range(32)))
    assert answers == [b"%d1\n" % number for number in range(32)]


@check
async def closing_is_idempotent_and_ends_running_calls(subject: Subject) -> None:
    """Every later call raises SandboxDiedError."""
    async with subject.open() as sandbox:
        task = asyncio.ensure_future(sandbox.exec("sleep 777", timeout_s=600))
        await asyncio.sleep(0.1)
        await asyncio.gather(sandbox.close(), sandbox.close())
        with raises(SandboxDiedError):
            await task
        with raises(SandboxDiedError):
            await sandbox.exec("true", timeout_s=5)
        await sandbox.close()


@check
async def a_sandbox_ends_with_its_lifetime(subject: Subject) -> None:
    """Calls after the end of the lifetime raise SandboxDiedError."""
    async with subject.open(lifetime_s=1.0) as sandbox:
        with raises(SandboxDiedError, "lifetime"):
            await sandbox.exec("sleep 777", timeout_s=600)
        with raises(SandboxDiedError):
            await sandbox.read_file("a.txt")
