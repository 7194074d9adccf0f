"""Models of a curation behind a local endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engine.config.curation import CommitCuration, CurationConfig
from engine.config.policies import NoPolicyConfig
from engine.datasets.cached_model import CachedModel
from engine.events.delivery.control import Control
from engine.orchestrator.context import RunContext
from engine.orchestrator.policies.chat_models import open_chat_model
from tests.fakes.openai_server import OpenAIServer, Reply
from tests.unit.orchestrator.memory_sink import MemorySink

READY = Reply(content="ready")
"""Answer to the check of an endpoint."""


def endpoint_config(server: OpenAIServer, **settings: Any) -> dict[str, Any]:
    """Return the settings of a model behind a server, without retries."""
    return {"type": "endpoint", "endpoint": server.url, "model": "m", "max_retries": 0, **settings}


@asynccontextmanager
async def opened_models(
    home: Path, config: CommitCuration | CurationConfig
) -> AsyncIterator[tuple[CachedModel | None, CachedModel | None]]:
    """Open writer and judge of a curation; one by faults has no judge."""
    run = RunContext(run_id="r", epoch=1, run_dir=home, home=home, sink=MemorySink(), control=Control())
    judge = config.judge if isinstance(config, CommitCuration) else NoPolicyConfig()
    async with run.closing:
        writer = await open_chat_model(config.writer, config.writing, "writer", run)
        yield writer, await open_chat_model(judge, config.writing, "judge", run)
