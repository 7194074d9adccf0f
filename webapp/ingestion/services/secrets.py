"""Secrets of attempts whose launcher has no pipe to the engine process."""

from __future__ import annotations

from engine.config.run import parse_run_config
from webapp.endpoints.services import endpoints
from webapp.ingestion.services import ingest
from webapp.runs.models.runs import Run


def endpoints_of(*, run_id: int, token: str) -> dict[str, dict[str, str]]:
    """Return address and key of each endpoint that a run's configuration uses.

    Raises:
        BadTokenError: the token is not of this run.
        StaleEpochError: a newer attempt exists.
        RunOverError: the run has ended.
        ConfigError: an endpoint was removed, may not serve the model, or has a key that cannot be decrypted.
    """
    run = ingest.authenticate(run_id=run_id, token=token)
    config = Run.objects.values_list("config", flat=True).get(pk=run.pk)
    return endpoints.reveal(parse_run_config(config), run_id=run.pk, epoch=run.epoch)
