"""Builders for rows of the web application, through its own services."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, cast

from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db.models import Model
from django.test import AsyncClient, Client

from tests.builders.web.event_builders import Stream
from webapp.accounts.services import accounts
from webapp.core.permissions import Role
from webapp.ingestion.services import ingest
from webapp.models import (
    Alert,
    Checkpoint,
    Dataset,
    Evaluation,
    Event,
    ExaminedTest,
    Group,
    ImportedFields,
    Iteration,
    Regrade,
    Run,
    Score,
    Step,
    TestResult,
    TokenBlob,
    Trajectory,
    TrajectoryOpening,
)
from webapp.runs.services import attempts, runs

PASSWORD = "correct-horse-battery"


def make_user(name: str, role: Role | None) -> User:
    """Create a user; without a role, the user has no permissions."""
    if role is not None:
        return accounts.create_user(username=name, password=PASSWORD, role=role)
    return User.objects.create_user(username=name, password=PASSWORD)


def signed_in(role: Role | None, name: str = "") -> Client:
    """Return a client signed in as a user with this role; repeated calls use the same user."""
    client, name = Client(), name or f"user-{role}"
    client.force_login(User.objects.filter(username=name).first() or make_user(name, role))
    return client


def bearer(token: str) -> Client:
    """Return a client that sends an API token."""
    return Client(headers={"Authorization": f"Bearer {token}"})


def sign_in(client: Client, username: str, password: str = PASSWORD) -> bool:
    """Sign in on the login page; return whether it redirected."""
    return client.post("/login/", {"username": username, "password": password}).status_code == 302


def streamed(user: User, address: str, given: Mapping[str, Any]) -> list[bytes]:
    """Return the parts of a download as an asynchronous server streams them."""

    async def read() -> list[bytes]:
        reader = AsyncClient()
        await reader.aforce_login(user)
        response = await reader.get(address, given)
        assert vars(response)["is_async"]
        return [part async for part in cast(Any, response)]

    return async_to_sync(read)()


def make_run(**overrides: Any) -> Run:
    """Create a draft of the quickstart recipe on an (empty) dataset."""
    Dataset.objects.get_or_create(name="quickstart")
    return runs.create(recipe="quickstart", overrides=overrides)


def hand_over(username: str) -> None:
    """Make a user the owner of every run."""
    Run.objects.update(created_by=User.objects.get(username=username))


def launched(run: Run | None = None) -> tuple[Run, attempts.Claim]:
    """Claim the first attempt of a run, as if its process had just been started."""
    run = run or make_run()
    runs.start(run=run)
    claim = attempts.claim_launch(run_id=run.pk)
    assert claim is not None
    run.refresh_from_db()
    return run, claim


def relaunched(run: Run, claim: attempts.Claim) -> attempts.Claim:
    """Claim the attempt after that of ``claim``, which was lost."""
    newer = attempts.claim_relaunch(run_id=run.pk, epoch=claim.epoch, reason="test")
    assert newer is not None
    return newer


def post(claim: attempts.Claim, stream: Stream, start: int = 0, stop: int | None = None) -> ingest.Receipt:
    """Ingest lines ``start … stop-1`` of a stream."""
    return ingest.ingest(run_id=claim.run_id, token=claim.token, body=stream.body(start, stop))


_RUN_FIELDS = (
    "state", "reason", "summary", "last_seq", "total_iterations", "current_iteration", "policy_version",
    "progress_message", "progress_done", "progress_total", "progress_follows", "collection", "funnel",
)  # fmt: skip
_IDENTITIES = {"id", "run_id", "group_id", "trajectory_id"}


def snapshot(run: Run) -> dict[str, Any]:
    """Return everything that pages show of a run, by natural keys: equal for equal histories."""
    run.refresh_from_db()
    contents: dict[str, Any] = {"run": {name: getattr(run, name) for name in _RUN_FIELDS}}
    for model in (
        Iteration, Evaluation, Checkpoint, Alert, Group, Trajectory, Score, ExaminedTest, Regrade, Event,
    ):  # fmt: skip
        contents[model.__name__] = _rows(model.objects.filter(run=run))
    for part in (Step, TestResult, TokenBlob, TrajectoryOpening, ImportedFields):
        rows = part.objects.filter(trajectory__run=run).select_related("trajectory")
        contents[part.__name__] = _rows(rows)
    return contents


def stored_log(run: Run) -> list[dict[str, Any]]:
    """Return every event of a run as it was posted, with the tokens from their own table."""
    key = ("trajectory__phase", "trajectory__iteration", "trajectory__task_key", "trajectory__index")
    rows = TokenBlob.objects.filter(trajectory__run=run).values_list(*key, "data")
    blobs = {row[:-1]: row[-1] for row in rows}
    log = []
    for event in Event.objects.filter(run=run).order_by("seq"):
        payload = dict(event.payload)
        if event.type == "trajectory_finished":
            ref = payload["ref"]
            data = blobs.get((ref["phase"], ref["iteration"], ref["task_id"], ref["index"]))
            payload["tokens"] = None if data is None else base64.b64encode(data).decode()
        log.append(payload)
    return log


def _rows(rows: Any) -> list[Any]:
    return sorted((_row(row) for row in rows), key=repr)


def _row(row: Model) -> dict[str, Any]:
    values = {
        field.attname: getattr(row, field.attname)
        for field in row._meta.concrete_fields
        if field.attname not in _IDENTITIES
    }
    trajectory = getattr(row, "trajectory", None)
    if trajectory is not None:
        values["of"] = (trajectory.phase, trajectory.iteration, trajectory.task_key, trajectory.index)
    return {name: bytes(value) if isinstance(value, memoryview) else value for name, value in values.items()}
