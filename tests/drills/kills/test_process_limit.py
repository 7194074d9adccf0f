"""Process limits of real sandbox agents under one unprivileged user, as in pods of one node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

from engine.config.kubernetes import KubernetesConfig
from engine.sandbox.agent.limits import threads
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.kubernetes.manifests import spec
from tests.unit.sandbox.agents import USER, agent, readable, run

__all__ = ["readable"]


def variables(config: KubernetesConfig, processes: int) -> dict[str, str]:
    """Return the environment variables of a pod's sandbox container."""
    sandbox = SandboxSpec(image="python:3.12", limits=SandboxLimits(processes=processes))
    owner = spec.Owner(name="owner", uid="1")
    pod = spec.pod(config, sandbox, sandbox_id="sb-1", owner=owner, token=b"token", deadline=0.0)
    return {variable["name"]: variable["value"] for variable in pod["spec"]["containers"][0]["env"]}


async def test_process_limits_of_sandboxes_of_one_user_are_independent(readable: Path) -> None:
    env = variables(KubernetesConfig(run_as_user=USER), processes=16)
    script = (
        'for n in 1 2 3 4 5; do sleep 60 & done; : > "$0"; '
        "until [ -e a -a -e b -a -e c -a -e d ]; do sleep 0.05; done; echo works"
    )
    async with contextlib.AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(agent(readable, env)) for _ in range(4)]
        shared = f"cd {readable / 'shared'}; {script}"
        commands = (run(box, "sh", "-c", shared, name) for box, name in zip(agents, "abcd", strict=True))
        for result in await asyncio.gather(*commands):
            assert (result.stdout, result.stderr, result.exit_code) == (b"works\n", b"", 0)


async def test_command_over_the_process_limit_is_killed_and_the_next_one_runs(readable: Path) -> None:
    env = variables(KubernetesConfig(), processes=16)
    bomb = "n=0; while [ $n -lt 60 ]; do sleep 600 & n=$((n+1)); done; wait"
    async with agent(readable, env) as client, agent(readable, env) as neighbour:
        result, other = await asyncio.gather(
            run(client, "sh", "-c", bomb), run(neighbour, "sh", "-c", "sleep 1; echo fine")
        )
        assert (result.exit_code, result.timed_out) == (137, False)
        assert b"killed: more than 16 processes" in result.stderr
        assert (other.exit_code, other.stdout) == (0, b"fine\n")
        assert (await run(client, "sh", "-c", "sleep 1 & sleep 1; echo works")).stdout == b"works\n"


def test_thread_count_includes_threads_and_excludes_dead_processes() -> None:
    before = threads()
    start = "threading.Thread(target=sys.stdin.read).start()"
    script = f"import sys, threading\nfor _ in range(5): {start}\nprint(flush=True)\n"
    command = [sys.executable, "-I", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        assert threads() == before + 6
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert threads() == before


def test_kernel_process_limit_is_set_only_with_a_user_namespace() -> None:
    for config in (KubernetesConfig(), KubernetesConfig(run_as_user=1000), KubernetesConfig(host_users=True)):
        assert "TRAINYARD_RLIMITS" not in variables(config, processes=64)
    own = variables(KubernetesConfig(host_users=False, run_as_user=1000), processes=64)
    assert (own["TRAINYARD_RLIMITS"], own["TRAINYARD_PROCESSES"]) == ("-1,64", "64")
