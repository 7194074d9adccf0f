"""Servers that die, hang or lose their run: errors have the tokens so far, and no process is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from engine.errors import EngineError
from tests.builders.vllm_policies import pid_of
from tests.drills.vllm.servers import QUICKSTART, command, in_flight, session_processes, started, until
from tests.unit.models.small import prompt


def _engine_core(session: int) -> psutil.Process:
    return next(child for child in session_processes(session) if "EngineCore" in " ".join(child.cmdline()))


async def _is_empty(session: int | None) -> bool:
    return session is None or not session_processes(session)


async def test_frozen_engine_reports_stalled_and_killed_one_lost(vllm_python: Path, tmp_path: Path) -> None:
    async with started(command(QUICKSTART, vllm_python), tmp_path / "vllm.log") as (server, client):
        core = _engine_core(pid_of(server))
        impatient = server.client(stall_timeout_s=15)
        async with in_flight(impatient, prompt(20, 1)) as task:
            core.suspend()
            with pytest.raises(EngineError, match="no token for 15 s") as stalled:
                await task
        core.resume()
        await impatient.close()
        assert (stalled.value.kind, len(stalled.value.tokens.ids) > 0) == ("stalled", True)

        async def is_idle() -> bool:  # the abandoned request was aborted
            return (await client.metrics()).running == 0

        await until(is_idle)
        async with in_flight(client, prompt(20, 1)) as task:
            core.kill()
            with pytest.raises(EngineError) as lost:
                await task
        assert (lost.value.kind, len(lost.value.tokens.ids) > 0) == ("lost", True)

        async def has_ended() -> bool:
            return not server.is_alive()

        await until(has_ended)
        assert not await client.healthy()
        await until(lambda: _is_empty(pid_of(server)))


async def test_no_server_process_survives_a_killed_run(vllm_python: Path, tmp_path: Path) -> None:
    """SIGKILL hits a process that has started a server like a run."""
    script = textwrap.dedent(
        f"""
        import asyncio, time
        from pathlib import Path
        from engine.inference.vllm.servers.server import VllmServer
        from tests.drills.vllm.servers import QUICKSTART, command

        settings = command(QUICKSTART, Path({str(vllm_python)!r}))
        server = VllmServer(settings, log=Path({str(tmp_path / "log")!r}))
        asyncio.run(server.start())
        print(server.process.pid, flush=True)
        time.sleep(3600)
        """
    )
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert run.stdout is not None
        session = int(await asyncio.to_thread(run.stdout.readline))
        assert len(session_processes(session)) >= 4
    finally:
        run.kill()
        run.wait()
    await until(lambda: _is_empty(session))


async def test_no_server_process_survives_a_killed_guard(vllm_python: Path, tmp_path: Path) -> None:
    async with started(command(QUICKSTART, vllm_python), tmp_path / "vllm.log") as (server, _):
        os.kill(pid_of(server), signal.SIGKILL)

        async def has_ended() -> bool:
            return not server.is_alive()

        await until(has_ended)
        await server.stop()
        await until(lambda: _is_empty(pid_of(server)))
