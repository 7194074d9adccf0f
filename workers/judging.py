"""Questions of scanners with rubrics, asked by engine processes: workers load no endpoint client."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

from webapp.core.services.locks import alone
from webapp.rollouts.services import judgements
from webapp.rollouts.services.judgements import Batch, Reply
from webapp.rollouts.services.scans import LOCK
from workers.launchers.base import PROJECT

DEADLINE_S = 60.0
"""Time for the answers of a batch, retries included, seconds."""
START_S = 30.0
"""Time for the start of the process, seconds."""
MOST_TOKENS = 2_000
"""Longest answer, thinking included, tokens."""
MAX_RETRIES = 4

log = logging.getLogger(__name__)


def judge_pending() -> bool:
    """Ask about the next rollouts of the oldest scan with a rubric, for a minute at most.

    Returns:
        Whether there may be more; False also if another process works on finished rollouts.
    """
    with alone(LOCK) as is_alone:
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
        "timeout_s": DEADLINE_S,
    }  # fmt: skip
    asked = {
        "endpoint": {"address": batch.endpoint.address, "key": batch.key},
        "policy": policy,
        "max_tokens": MOST_TOKENS,
        "deadline_s": DEADLINE_S,
        "questions": [question.messages for question in batch.questions],
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "engine.verifiers.questions"],
            cwd=PROJECT, input=json.dumps(asked), capture_output=True, text=True,
            timeout=START_S + DEADLINE_S, check=True,
        )  # fmt: skip
        answers = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log.warning("%s: the process that asks failed: %s", batch.judgement, type(error).__name__)
        judgements.record(batch, [], ended=f"the process that asks failed ({type(error).__name__})")
        return
    replies = [Reply(**answer) for answer in answers["answers"]]
    judgements.record(batch, replies, ended=answers["ended"])
