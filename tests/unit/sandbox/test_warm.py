"""The pool of warm sandboxes, with a source whose starts end as the test wants."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import SandboxStartError
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.warm import WarmPool, WarmSettings, WarmSource

SETTINGS = WarmSettings(
    per_image=1, idle_s=600.0, max_live=8, at_once=1, limits=SandboxLimits(), run_id="run"
)


async def until_count(pool: WarmPool[str], count: int) -> None:
    async with asyncio.timeout(60):
        while pool.count != count:
            await asyncio.sleep(0)


@pytest.mark.parametrize("error", [SandboxStartError("no answer"), OSError(24, "Too many open files")])
async def test_a_request_gets_none_when_the_warm_start_it_waits_for_fails(error: Exception) -> None:
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def launch(_spec: SandboxSpec) -> str:
        return await started

    async def remove() -> None:
        raise AssertionError("nothing has started")

    source = WarmSource(
        launch=launch,
        discard=lambda _name: asyncio.ensure_future(remove()),
        usable=lambda _name: True,
        existing=lambda: 0,
    )
    pool = WarmPool(source, SETTINGS)
    pool.prepare({"kind": (SETTINGS.wanted("image"), 1)})
    await until_count(pool, 1)
    request = asyncio.ensure_future(pool.take("kind"))
    await until_count(pool, 0)
    started.set_exception(error)
    assert await request is None
    await pool.close()
