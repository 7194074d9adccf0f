"""Start and graceful stop of attempts, for the launch and stop tasks."""

from __future__ import annotations

import hashlib
import logging
import socket
from functools import partial

from django.conf import settings

from engine.config.placement import run_bundles
from engine.config.run import parse_run_config
from engine.errors import ConfigError
from engine.types import RunState
from webapp.endpoints.services import endpoints
from webapp.runs.models.runs import RunAttempt
from webapp.runs.services import attempts
from workers import rundir
from workers.launchers import LAUNCHERS
from workers.launchers.base import LaunchOrder

log = logging.getLogger(__name__)


def launch(*, run_id: int) -> bool:
    """Start a queued run's process; return False if the run waits or was claimed elsewhere."""
    claim = attempts.claim_launch(run_id=run_id, host=socket.gethostname())
    if claim is not None:
        start(claim, first=True)
    return claim is not None


def start(claim: attempts.Claim, *, first: bool = False) -> None:
    """Start the process of a claimed attempt; if that is impossible, fail the run with the reason.

    An attempt that was replaced during its preparation is not started; a run that was stopped meanwhile ends.

    Args:
        claim: the attempt.
        first: true for a launch requested by a person, which fails at once if its launcher lacks a resource.
            The replacement of a lost attempt waits instead: a restarting cluster lacks nodes for a while.
    """
    try:
        config = parse_run_config(claim.config)
        launcher = LAUNCHERS[config.launcher.backend]
        if first:
            launcher.check(config)
        order = LaunchOrder(
            run_dir=rundir.prepare(claim),
            name=f"trainyard-{_installation()}-run-{claim.run_id}-attempt-{claim.epoch}",
            settings=config.launcher,
            uses_cluster=bool(run_bundles(config, cluster_has_gpus=False)),
            endpoints=endpoints.reveal(config, run_id=claim.run_id, epoch=claim.epoch),
        )
        launcher.launch(order, partial(_record, claim, order))
    except attempts.SupersededError as error:
        log.warning("%s", error)
        attempts.end_unstarted(run_id=claim.run_id, epoch=claim.epoch)
        return
    except (OSError, ConfigError) as error:
        attempts.give_up(
            run_id=claim.run_id,
            epoch=claim.epoch,
            to=RunState.FAILED,
            reason=f"its process could not be started: {error}",
        )


def _record(claim: attempts.Claim, order: LaunchOrder, host: str, handle: str) -> None:
    attempts.record_process(
        run_id=claim.run_id, epoch=claim.epoch, host=host, handle=handle, run_dir=str(order.run_dir)
    )
    log.info("run %d attempt %d is %s on %s", claim.run_id, claim.epoch, handle, host)


def _installation() -> str:
    """Return a short name of this installation, which may share a cluster with others."""
    return hashlib.sha256(f"installation {settings.SECRET_KEY}".encode()).hexdigest()[:8]


def ask_to_stop(*, run_id: int) -> None:
    """Ask the newest attempt's process to stop; the reconciler kills it after a timeout."""
    attempt = RunAttempt.objects.filter(run_id=run_id).order_by("-epoch").first()
    if attempt is not None and attempt.handle:
        LAUNCHERS[attempt.launcher].ask_to_stop(host=attempt.host, handle=attempt.handle)
