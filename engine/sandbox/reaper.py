"""Removal of sandboxes whose owner is dead or whose deadline has passed, on every backend in use.

Each backend removes its own orphans (``SandboxBackend.reap``). All are asked concurrently, and a failure of
one does not affect the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from engine.config.sandbox import SandboxConfig
from engine.sandbox.backends import make_backend

TIMEOUT_S = 45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """Result of reaping one backend."""

    backend: str
    removed: int = 0
    error: str = ""
    """Reason for an incomplete result; empty on success."""


async def reap_all(
    configs: Iterable[SandboxConfig], home: Path, *, run_id: str | None = None, timeout_s: float = TIMEOUT_S
) -> list[Reaped]:
    """Remove the orphans of one run, or of all, on every configured backend.

    Args:
        configs: addresses of the backends; settings that differ only in budgets name the same backend.
        home: the data folder.
        run_id: run to clean up after; None for all.
        timeout_s: time limit for each backend, seconds.
    """
    distinct = {_address(config): config for config in configs}
    return await asyncio.gather(
        *(_reap(config, home, run_id=run_id, timeout_s=timeout_s) for config in distinct.values())
    )


async def _reap(config: SandboxConfig, home: Path, *, run_id: str | None, timeout_s: float) -> Reaped:
    try:
        async with asyncio.timeout(timeout_s):
            backend = make_backend(config, home)
            try:
                return Reaped(backend=config.backend, removed=await backend.reap(run_id=run_id))
            finally:
                await backend.close()
    except TimeoutError:
        return Reaped(backend=config.backend, error=f"no answer within {timeout_s:g} s")
    except Exception as error:  # client libraries share no base class; one failure must not stop the rest
        text = " ".join(str(error).split())[:500]
        return Reaped(backend=config.backend, error=text or type(error).__name__)


def _address(config: SandboxConfig) -> str:
    """Return a key that is equal for two configurations of the same backend."""
    section = {"docker": config.docker, "kubernetes": config.kubernetes}.get(config.backend)
    return config.backend + (section.model_dump_json() if section is not None else "")
