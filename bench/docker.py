"""Latency of Docker sandboxes compared with Docker's exec API on the same containers and command.

Start, exec and close of one sandbox at a time and of 64 at once, cold and (``start, warm``) with containers
that the default settings start ahead of demand; the exec API on the same containers as the agent; then many
queued lifecycles (open, one command, close) that must all succeed. Each command is
``/bin/sh -c true``; the load at the start of the measurement is part of the result.
Run: ``python -m bench.docker [--quick] [--lifecycles N]``; results go to ``bench/results/docker.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.harness import store
from bench.sandbox import (
    SPEC,
    WARM_IMAGES,
    Row,
    build_images,
    lifecycle,
    row,
    sandboxes,
    seconds_of,
    warm_starts,
)
from engine.config.sandbox import DockerConfig, SandboxConfig
from engine.errors import SandboxError
from engine.sandbox.docker.backend import DockerBackend
from engine.sandbox.docker.daemon import find_daemon
from engine.sandbox.warm import WarmSettings

COMMAND = ["/bin/sh", "-c", "true"]


def daemon(host: str) -> str:
    """Return the address of the daemon to measure: ``host``, else the default of runs."""
    return find_daemon(host, Path(os.environ.get("TRAINYARD_HOME", ".trainyard")).resolve()).url


async def api_seconds(backend: DockerBackend, container: str, commands: int) -> list[float]:
    """Return round-trip times through Docker's exec API: create, start, read, inspect the status."""

    def once(client: Any) -> float:
        began = time.perf_counter()
        execution = client.exec_create(container, COMMAND)["Id"]
        client.exec_start(execution)
        assert client.exec_inspect(execution)["ExitCode"] == 0
        return time.perf_counter() - began

    return [await backend.daemon.call(once) for _ in range(commands)]


async def commands(backend: DockerBackend, parallel: int, count: int) -> list[Row]:
    """Measure the agent's exec and the exec API alternately on the same containers."""
    async with sandboxes(backend, parallel) as boxes:
        containers = [box.container_id for box in backend._live.values()]
        ours: list[float] = []
        api: list[float] = []
        for _ in range(2):  # alternately, so that changes of the machine's load affect both
            times = await asyncio.gather(*(seconds_of(box, count) for box, _ in boxes))
            ours += [seconds for of_box in times for seconds in of_box]
            share = max(1, count // 4)
            times = await asyncio.gather(*(api_seconds(backend, target, share) for target in containers))
            api += [seconds for of_box in times for seconds in of_box]
    rows = [row("exec, agent", parallel, ours), row("exec, API", parallel, api)]
    if parallel > 1:
        up = (1200.0, None) if parallel == 64 else None
        rows.insert(0, row("start", parallel, [seconds for _, seconds in boxes], up))
    return rows


async def lifecycles(backend: DockerBackend, count: int) -> dict[str, float | int]:
    """Queue all lifecycles at once; each opens a sandbox, runs a command and closes it."""

    async def one() -> str:
        try:
            async with backend.open(SPEC) as box:
                result = await box.exec("true", timeout_s=600)
                return "" if result.exit_code == 0 else f"status {result.exit_code}"
        except Exception as error:  # counted: failures are part of the result
            return f"{type(error).__name__}: {error}"

    began = time.perf_counter()
    errors = [error for error in await asyncio.gather(*(one() for _ in range(count))) if error]
    seconds = time.perf_counter() - began
    num_left = await backend.daemon.call(
        lambda client: len(client.containers(all=True, filters={"label": "trainyard.dev/run-id=bench"}))
    )
    for error in errors[:3]:
        print(error)
    return {"count": count, "errors": len(errors), "left": num_left, "seconds": round(seconds, 1)}


async def measure(options: argparse.Namespace) -> dict[str, Any] | None:
    """Run all measurements on a temporary image; return None if no daemon answers."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        images = build_images(home, WARM_IMAGES)
        config = SandboxConfig(docker=DockerConfig(host=daemon(options.docker)))
        backend = DockerBackend(config.docker, home)
        try:
            facts = await backend.facts()
        except SandboxError as error:
            print(error)
            return None
        async with backend.open(SPEC):
            pass
        rows = await lifecycle(backend, 8 if options.quick else 20, (100, None))
        rows += await commands(backend, 1, 40 if options.quick else 200)
        rows += await commands(backend, 8 if options.quick else 64, 8)
        queued = await lifecycles(backend, options.lifecycles or (16 if options.quick else 512))
        await backend.close()
        warm = DockerBackend(config.docker, home, warm=WarmSettings.of(config, config.docker, SPEC.run_id))
        rows += await warm_starts(warm, images, {1: (100, None), 64: (1200, None)}, quick=options.quick)
        await warm.close()
    machine = {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "docker": facts["ServerVersion"],
        "runtime": facts["DefaultRuntime"],
        "storage": facts["Driver"],
        "load": load,
        "max_creating": 2 * facts["NCPU"],
    }
    p50 = {(row["what"], row["parallel"]): float(row["p50"] or 0) for row in rows}
    ratio = round(p50["exec, API", 1] / p50["exec, agent", 1], 1)
    return {"machine": machine, "ms": rows, "api_to_agent": ratio, "lifecycles": queued}


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples, 8 sandboxes and 16 lifecycles")
    parser.add_argument("--lifecycles", type=int, help="how many to queue (default: 512)")
    parser.add_argument("--docker", default="", help="address of the daemon (default: as for runs)")
    options = parser.parse_args()
    results = asyncio.run(measure(options))
    if results is None:
        return
    columns = ("what", "parallel", "samples", "p50", "p99", "bar_p50", "bar_p99")
    print("".join(f"{name:>14}" for name in columns) + "   (milliseconds)")
    for entry in results["ms"]:
        print("".join(f"{'' if entry[name] is None else entry[name]:>14}" for name in columns))
    print(f"exec through the agent: {results['api_to_agent']} x faster than the API (bar 20; p50 bar 2.5 ms)")
    print(f"lifecycles: {results['lifecycles']}   machine: {results['machine']}")
    store("docker", results, quick=options.quick)


if __name__ == "__main__":
    main()
