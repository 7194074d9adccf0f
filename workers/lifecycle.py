"""Start and graceful stop of attempts, as done by the launch and stop tasks."""

from __future__ import annotations

import json
import logging
import socket

from engine.config.run import parse_run_config
from engine.errors import ConfigError
from engine.types import RunState
from webapp.models import RunAttempt
from webapp.services import attempts, endpoints
from workers import rundir
from workers.launchers import LAUNCHERS
from workers.launchers.base import NO_SECRETS, LaunchSecrets

log = logging.getLogger(__name__)

ENDPOINTS = "TRAINYARD_ENDPOINTS"
"""Environment variable of an engine with its endpoints: name → address and key, as JSON."""


def launch(*, run_id: int) -> bool:
    """Start a queued run's process; return False if it was claimed elsewhere or is no longer queued."""
    claim = attempts.claim_launch(run_id=run_id)
    if claim is not None:
        start(claim)
    return claim is not None


def start(claim: attempts.Claim, launcher: str = "local") -> None:
    """Start the process of a claimed attempt; if that is impossible, fail the run with the reason."""
    try:
        folder = rundir.prepare(claim)
        handle = LAUNCHERS[launcher].launch(folder, _secrets_of(claim))
    except (OSError, ConfigError) as error:
        attempts.give_up(
            run_id=claim.run_id, to=RunState.FAILED, reason=f"its process could not be started: {error}"
        )
        return
    attempts.record_process(
        run_id=claim.run_id,
        epoch=claim.epoch,
        host=socket.gethostname(),
        handle=handle,
        run_dir=str(folder),
    )
    log.info("run %d attempt %d started as %s", claim.run_id, claim.epoch, handle)


def _secrets_of(claim: attempts.Claim) -> LaunchSecrets:
    """Return the keys of the endpoints that the claimed run uses. Raises ConfigError."""
    found = endpoints.reveal(parse_run_config(claim.config))
    if not found:
        return NO_SECRETS
    keys = tuple(one["key"] for one in found.values() if one["key"])
    return LaunchSecrets({ENDPOINTS: json.dumps(found)}, keys)


def ask_to_stop(*, run_id: int) -> None:
    """Ask the newest attempt's process to stop; the reconciler kills it after a timeout."""
    attempt = RunAttempt.objects.filter(run_id=run_id).order_by("-epoch").first()
    if attempt is not None and attempt.handle:
        LAUNCHERS[attempt.launcher].ask_to_stop(host=attempt.host, handle=attempt.handle)
