"""Ingest API for engines: batches of events, heartbeats. The protocol is in the README of ``webapp``."""

from __future__ import annotations

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest
from ninja import Field, Router, Schema

from webapp.api.auth import RunToken
from webapp.ingestion.services import heartbeats, ingest, secrets

router = Router(tags=["engine"], auth=RunToken())


class ReceiptOut(Schema):
    """Progress of the storage of a run's events."""

    acked_seq: int
    accepted: int
    duplicates: int


class BeatIn(Schema):
    """Heartbeat of an attempt."""

    epoch: int
    pid: int = 0
    host: str = ""
    seq: int = Field(default=0, ge=0, lt=2**63)


class BeatOut(Schema):
    """Desired state of the run."""

    desired: str
    epoch: int
    acked_seq: int


class EndpointSecretOut(Schema):
    """Address and key of an endpoint."""

    address: str
    key: str


class SecretsOut(Schema):
    """Secrets of an attempt, as ``engine.inference.endpoint.keys.LaunchSecrets`` reads them."""

    endpoints: dict[str, EndpointSecretOut]


def token_of(request: HttpRequest) -> str:
    """Return the bearer token passed on by ``RunToken``."""
    return str(getattr(request, "auth", ""))


@router.post("/runs/{int:run_id}/events", response=ReceiptOut)
def post_events(request: HttpRequest, run_id: int) -> ingest.Receipt:
    """Store a batch of NDJSON events of one epoch with consecutive ``seq``, atomically."""
    try:
        body = request.body
    except RequestDataTooBig:
        raise ingest.TooLargeError("the batch is too large; send fewer events") from None
    encoding = request.headers.get("Content-Encoding", "")
    return ingest.ingest(run_id=run_id, token=token_of(request), body=body, encoding=encoding)


@router.post("/runs/{int:run_id}/heartbeat", response=BeatOut)
def post_heartbeat(request: HttpRequest, run_id: int, beat: BeatIn) -> heartbeats.Answer:
    """Report that an attempt is alive and return the desired state of the run."""
    return heartbeats.beat(run_id=run_id, token=token_of(request), epoch=beat.epoch, seq=beat.seq)


@router.post("/runs/{int:run_id}/secrets", response=SecretsOut)
def post_secrets(request: HttpRequest, run_id: int) -> dict[str, object]:
    """Return addresses and keys of the run's endpoints, for the newest attempt to keep in memory only."""
    return {"endpoints": secrets.endpoints_of(run_id=run_id, token=token_of(request))}
