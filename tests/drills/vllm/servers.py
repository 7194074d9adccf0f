"""Settings of test servers, requests to them, and the same models in the built-in implementation."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import torch

import engine.models.builtin
from engine.inference.base import Generation, GenerationRequest, SamplingParams
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.servers.server import ServerCommand, VllmServer
from engine.models.base import LanguageModel
from engine.models.loader import open_model
from tests.unit.models import small

QUICKSTART = Path(engine.models.builtin.__file__).parent / "shipped" / "quickstart"
PARITY = 1e-4
"""Largest allowed difference between sampled and recomputed log-probabilities in float32."""
_COMPANY = 47
"""Requests that slow down the one that a test interrupts, which could otherwise end before."""


def command(model: Path, python: Path, **changes: Any) -> ServerCommand:
    """Return the settings of a small float32 server on the CPU."""
    settings: dict[str, Any] = {
        "model": model, "python": python, "max_context": 512, "dtype": "float32", "cpu_cache_gib": 0.25,
    }  # fmt: skip
    return ServerCommand(**settings | changes)


@asynccontextmanager
async def started(settings: ServerCommand, log: Path) -> AsyncIterator[tuple[VllmServer, VllmClient]]:
    """Start a server for one test; yield it and its client."""
    server = VllmServer(settings, log=log)
    try:
        await server.start()
        client = server.client()
        await client.check()
        yield server, client
        await client.close()
    finally:
        await server.stop()


def request(prompt: Sequence[int], *, stop: int = 2, **sampling: Any) -> GenerationRequest:
    """Build a request from ``seed`` and fields of ``SamplingParams``."""
    plain = small.request(prompt, seed=sampling.pop("seed", 0), stop=stop)
    return GenerationRequest(
        prompt_ids=plain.prompt_ids,
        sampling=SamplingParams(**{"max_tokens": 24} | sampling),
        seed=plain.seed,
        stop_ids=plain.stop_ids,
        context=plain.context,
    )


def open_folder(folder: Path) -> LanguageModel:
    """Open a folder's model in float32."""
    torch.set_num_threads(1)
    return open_model(str(folder), home=folder).model


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float = 300) -> None:
    """Wait until a condition is true. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > deadline:
            raise TimeoutError(condition)
        await asyncio.sleep(0.05)


@asynccontextmanager
async def in_flight(client: VllmClient, prompt_ids: Sequence[int]) -> AsyncIterator[asyncio.Task[Generation]]:
    """Yield a partly sampled request of 480 tokens; other requests slow it down until the block ends."""
    before = (await client.metrics()).generated_tokens
    long_request = request(prompt_ids, max_tokens=480, stop=2047)
    tasks = [
        asyncio.create_task(client.generate(long_request, request_id=f"{time.monotonic_ns()}-{i}"))
        for i in range(1 + _COMPANY)
    ]

    async def has_sampled() -> bool:
        return (await client.metrics()).generated_tokens > before + 4 * len(tasks)

    try:
        await until(has_sampled)
        yield tasks[0]
    finally:
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks[1:], return_exceptions=True)


def session_processes(session: int) -> list[psutil.Process]:
    """Return the living processes of a session."""
    members = []
    for process in psutil.process_iter():
        try:
            is_member = os.getsid(process.pid) == session
            if is_member and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (psutil.Error, ProcessLookupError):
            continue
    return members
