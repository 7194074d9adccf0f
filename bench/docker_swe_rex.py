"""Latency of a command through the sandbox agent and through SWE-ReX, in containers of the same image.

SWE-ReX runs an HTTP server in the container that writes into a bash session; our agent runs each command in a
separate process. Both run ``true``, alternately. SWE-ReX and its dependencies are in a folder that is mounted
read-only:

    pip install --target FOLDER swe-rex==1.4.0
    python -m bench.docker_swe_rex FOLDER [--quick]

Results go to ``bench/results/docker_swe_rex.json``; without a folder nothing is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.docker import daemon
from bench.harness import store
from bench.sandbox import SPEC, Row, row, seconds_of
from engine.config.sandbox import DockerConfig
from engine.processes.ports import free_port
from engine.sandbox.docker.backend import DockerBackend
from engine.sandbox.docker.image import DockerImage
from engine.sandbox.local.images import build_image

_INSIDE = "/opt/swe-rex"


def server_config(image: DockerImage, folder: Path, port: int, token: str) -> dict[str, Any]:
    """Return the configuration of a container with SWE-ReX's server on a loopback port."""
    mounts = [*image.binds, (str(folder), _INSIDE)]
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--auth-token", token]
    return {
        "Image": image.id,
        "Entrypoint": [image.python, "-m", "swerex.server", *arguments],
        "Env": [f"PYTHONPATH={_INSIDE}", f"PATH={image.env['PATH']}", "HOME=/tmp"],
        "User": image.user,
        "HostConfig": {
            "NetworkMode": "host",
            "Mounts": [
                {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}
                for source, target in mounts
            ],
        },
    }


async def rex_seconds(runtime: Any, count: int) -> list[float]:
    """Return round-trip times of ``true`` in one session."""
    from swerex.runtime.abstract import BashAction

    times = []
    for _ in range(count):
        began = time.perf_counter()
        answer = await runtime.run_in_session(BashAction(command="true"))
        times.append(time.perf_counter() - began)
        assert answer.exit_code == 0
    return times


async def in_turns(backend: DockerBackend, folder: Path, count: int) -> list[Row]:
    """Measure both alternately, so that the machine's load affects them equally."""
    from swerex.runtime.abstract import CreateBashSessionRequest
    from swerex.runtime.remote import RemoteRuntime

    image, _ = await backend.images.ensure(SPEC.image)
    port = free_port()
    token = secrets.token_hex(16)
    config = server_config(image, folder, port, token)
    container = await backend.daemon.call(lambda client: client.create_container_from_config(config)["Id"])
    try:
        began = time.perf_counter()
        await backend.daemon.call(lambda client: client.start(container))
        runtime = RemoteRuntime(auth_token=token, host="http://127.0.0.1", port=port, timeout=1.0)
        await runtime.wait_until_alive(timeout=120)
        await runtime.create_session(CreateBashSessionRequest())
        starts = [time.perf_counter() - began]
        ours: list[float] = []
        rex: list[float] = []
        async with backend.open(SPEC) as box:
            for _ in range(4):
                ours += await seconds_of(box, count)
                rex += await rex_seconds(runtime, count)
    finally:
        await backend.daemon.call(lambda client: client.remove_container(container, force=True))
    return [row("agent", 1, ours), row("SWE-ReX", 1, rex), row("SWE-ReX start", 1, starts)]


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all measurements on a temporary image."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "tree").mkdir()
        (home / "tree" / "file").write_text("content\n")
        build_image(home, "bench", home / "tree")
        backend = DockerBackend(DockerConfig(host=daemon(options.docker)), home)
        rows = await in_turns(backend, options.folder.resolve(), 5 if options.quick else 25)
        await backend.close()
    p50 = {row["what"]: float(row["p50"] or 0) for row in rows}
    return {"load": load, "ms": rows, "rex_to_agent": round(p50["SWE-ReX"] / p50["agent"], 1)}


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="where SWE-ReX was installed")
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    parser.add_argument("--docker", default="", help="address of the daemon (default: as for runs)")
    options = parser.parse_args()
    if options.folder is None:
        print("nothing measured: name a folder made with `pip install --target FOLDER swe-rex==1.4.0`")
        return
    sys.path.append(str(options.folder))
    results = asyncio.run(measure(options))
    for ms in results["ms"]:
        print(f"{ms['what']:>14} p50 {ms['p50']:>8} ms   p99 {ms['p99']:>8} ms   {ms['samples']} samples")
    print(f"our agent is {results['rex_to_agent']} x faster (load {results['load']:.1f})")
    store("docker_swe_rex", results, quick=options.quick)


if __name__ == "__main__":
    main()
