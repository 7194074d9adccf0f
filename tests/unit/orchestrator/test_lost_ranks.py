"""Attempts that lose a rank of their trainer, and notices of waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import orchestrator
from engine.config.recipes import resolve
from engine.errors import RankLostError
from engine.events.delivery.control import Control
from engine.events.delivery.spool import SpoolSink
from engine.orchestrator.context import RunContext, RunStopped
from tests.integration.toy_yard import events
from tests.unit.orchestrator.memory_sink import MemorySink, context


@pytest.mark.parametrize(
    ("is_relaunched", "code", "recorded"),
    [(True, orchestrator.EXIT_LOST, []), (False, orchestrator.EXIT_FAILED, ["run_finished"])],
)
def test_a_lost_rank_ends_the_attempt_and_the_run_unless_relaunched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_relaunched: bool, code: int, recorded: list[str]
) -> None:
    async def lose(_config: Any, _run: RunContext) -> None:
        raise RankLostError("rank 1 of the trainer ended unexpectedly")

    monkeypatch.setattr(orchestrator, "_function", lambda _config: lose)
    sink = SpoolSink(tmp_path, epoch=1)
    run = RunContext(
        run_id="1", epoch=1, run_dir=tmp_path, home=tmp_path, sink=sink, control=Control(),
        is_relaunched=is_relaunched,
    )  # fmt: skip
    assert orchestrator.execute(resolve("quickstart"), run) == code
    sink.close()
    assert [event["type"] for event in events(tmp_path)] == recorded


def test_a_wait_is_reported_on_change_and_ends_when_the_run_is_stopped() -> None:
    sink, control = MemorySink(), Control()
    notice = context(sink, control).notice()
    for text in ("waiting for 2 × 4 GPUs", "waiting for 2 × 4 GPUs", ""):
        notice(text)
    control.stop("a person stopped it")
    with pytest.raises(RunStopped, match="a person stopped it"):
        notice("")
    assert [event["message"] for _, event in sink.events] == ["waiting for 2 × 4 GPUs", ""]
