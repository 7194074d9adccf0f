"""Questions of scanners with rubrics, asked by engine processes: workers load no endpoint client."""

from __future__ import annotations

import json
import logging

from webapp.core.services.locks import alone
from webapp.rollouts.services import judgements
from webapp.rollouts.services.judgements import Batch, Reply
from webapp.supervisor.engine_process import EngineFailedError, engine_json
from workers.launchers.base import PROJECT

DEADLINE_S = 60.0
"""Time for the answers of a batch, retries included, seconds."""
REQUEST_S = 30.0
"""Time for one request, seconds; one retry has as much."""
START_S = 30.0
"""Time for the start of the process, seconds."""
MOST_TOKENS = 2_000
"""Longest answer, thinking included, tokens."""
MAX_RETRIES = 4
_LOCK = 0x5CAA
"""Key of the advisory lock of the process that asks."""

log = logging.getLogger(__name__)


def judge_pending() -> bool:
    """Ask about the next rollouts of the oldest scan with a rubric, for a minute at most.

    Returns:
        Whether there may be more; False also if another process asks.
    """
    with alone(_LOCK) as is_alone:
        batch = judgements.next_batch() if is_alone else None
        if batch is None:
            return False
        _ask(batch)
    return True


def _ask(batch: Batch) -> None:
    """Ask the questions of a batch and store the answers."""
    scanner = batch.judgement.scanner
    policy = {
        "type": "endpoint", "endpoint": scanner.endpoint, "model": scanner.model, "max_retries": MAX_RETRIES,
        "timeout_s": REQUEST_S,
    }  # fmt: skip
    asked = {
        "endpoint": {"address": batch.endpoint.address, "key": batch.key},
        "policy": policy,
        "max_tokens": MOST_TOKENS,
        "deadline_s": DEADLINE_S,
        "questions": [question.messages for question in batch.questions],
    }
    try:
        answers = engine_json(
            ["engine.verifiers.questions"],
            project=PROJECT,
            stdin=json.dumps(asked),
            timeout_s=START_S + DEADLINE_S,
        )
    except EngineFailedError as error:
        log.warning("%s: the process that asks failed: %s", batch.judgement, error)
        judgements.record(batch, [], ended=f"the process that asks failed: {error}")
        return
    replies = [Reply(**answer) for answer in answers["answers"]]
    judgements.record(batch, replies, ended=answers["ended"])
