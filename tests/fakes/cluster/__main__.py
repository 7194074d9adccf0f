"""Serve a fake cluster until Ctrl-C: ``python -m tests.fakes.cluster --home DIR``.

Prints the path of a kubeconfig.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path

from tests.fakes.cluster.cluster import FakeCluster


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.cluster", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="data folder that holds the local images")
    parser.add_argument(
        "--image", action="append", default=[], metavar="REFERENCE=NAME", help="a reference for a local image"
    )
    parser.add_argument("--pod-pids-limit", type=int, default=64, help="processes of one container")
    parser.add_argument(
        "--own-agents", action="store_true", help="run the commands that pods give for agents"
    )
    return parser.parse_args()


async def _serve(arguments: argparse.Namespace) -> None:
    cluster = FakeCluster(
        arguments.home, own_agents=arguments.own_agents, pod_pids_limit=arguments.pod_pids_limit
    )
    for text in arguments.image:
        reference, _, name = text.rpartition("=")
        cluster.registry.add(reference, name)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with cluster:
        print(cluster.kubeconfig, flush=True)
        await ended.wait()


asyncio.run(_serve(_arguments()))
