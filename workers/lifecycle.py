"""Start and graceful stop of attempts, as done by the launch and stop tasks."""

from __future__ import annotations

import logging
import socket

from engine.config.run import parse_run_config
from engine.errors import ConfigError
from engine.types import RunState
from webapp.models import RunAttempt
from webapp.services.access import endpoints
from webapp.services.run import attempts
from workers import rundir
from workers.launchers import LAUNCHERS

log = logging.getLogger(__name__)


def launch(*, run_id: int) -> bool:
    """Start a queued run's process; return False if it was claimed elsewhere or is no longer queued."""
    claim = attempts.claim_launch(run_id=run_id)
    if claim is not None:
        start(claim)
    return claim is not None


def start(claim: attempts.Claim, launcher: str = "local") -> None:
    """Start the process of a claimed attempt; if that is impossible, fail the run with the reason.

    Nothing happens to an attempt that was replaced while it was prepared; a run that was stopped then ends.
    """
    try:
        folder = rundir.prepare(claim)
        used = endpoints.reveal(parse_run_config(claim.config))
        handle = LAUNCHERS[launcher].launch(folder, used)
    except attempts.SupersededError as error:
        log.warning("%s", error)
        attempts.end_unstarted(run_id=claim.run_id, epoch=claim.epoch)
        return
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


def ask_to_stop(*, run_id: int) -> None:
    """Ask the newest attempt's process to stop; the reconciler kills it after a timeout."""
    attempt = RunAttempt.objects.filter(run_id=run_id).order_by("-epoch").first()
    if attempt is not None and attempt.handle:
        LAUNCHERS[attempt.launcher].ask_to_stop(host=attempt.host, handle=attempt.handle)
