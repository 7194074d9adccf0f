"""Run logs on the page, by command and in the API; secrets that engines fetch from the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from django.test import Client

from engine import redaction
from engine.errors import FencedError, PreflightError
from engine.inference.endpoint import keys
from engine.redaction import Redactor, add_secrets
from engine.types import RunState
from tests.builders.commands import run_command
from tests.builders.web.web_builders import launched, make_run, relaunched, signed_in
from webapp.core.permissions import Role
from webapp.endpoints.services import endpoints
from webapp.models import AuditEntry, Dataset
from webapp.runs.selectors.folders import run_folder
from webapp.runs.services import attempts, runs

pytestmark = pytest.mark.django_db
SECRET = "planted-known-secret"
ADDRESS, KEY = "https://api.example.org/v1", "sk-key-of-an-endpoint-1234"


@pytest.fixture(autouse=True)
def _home(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.TRAINYARD_HOME = tmp_path
    monkeypatch.setattr(redaction, "_process", Redactor())
    add_secrets([SECRET])


def test_operators_read_the_end_of_a_redacted_log() -> None:
    run = make_run()
    folder = run_folder(run.pk)
    folder.mkdir(parents=True)
    operator, viewer = signed_in(Role.OPERATOR), signed_in(Role.VIEWER)
    page, api = f"/runs/{run.pk}/?tab=log", f"/api/v1/runs/{run.pk}/log"
    assert "No log yet" in operator.get(page).content.decode()
    (folder / "engine.log").write_text("".join(f"line {i} <b>{SECRET}</b>\n" for i in range(10_000)))
    shown = operator.get(page).content.decode()
    assert "line 9999 &lt;b&gt;[redacted]&lt;/b&gt;" in shown
    assert "line 0 " not in shown
    answer = operator.get(f"{api}?most=100").json()
    assert answer["text"].splitlines()[-1] == "line 9999 <b>[redacted]</b>"
    assert answer["text"].startswith("line "), "whole lines only"
    assert answer["shortened"] is True
    printed = run_command("run", "log", str(run.pk), "--bytes", "100")
    assert printed.strip() == answer["text"].strip()
    assert viewer.get(api).status_code == 403
    assert "line 9999" not in viewer.get(page).content.decode()


def test_launcher_condition_is_shown_until_the_run_ends() -> None:
    run, claim = launched()
    attempts.note_condition(run_id=run.pk, epoch=claim.epoch, condition=f"the cluster is away ({SECRET})")
    client = signed_in(Role.VIEWER)
    page, api = f"/runs/{run.pk}/", f"/api/v1/runs/{run.pk}"
    assert "the cluster is away ([redacted])" in client.get(page).content.decode()
    assert client.get(api).json()["condition"] == "the cluster is away ([redacted])"
    attempts.give_up(run_id=run.pk, epoch=claim.epoch, to=RunState.STOPPED, reason="stopped")
    assert "the cluster is away" not in client.get(page).content.decode()


def test_only_the_newest_live_attempt_gets_its_endpoint_keys() -> None:
    endpoints.save(name="hosted", address=ADDRESS, key=KEY)
    Dataset.objects.create(name="quickstart")
    policy = {"policy.type": "endpoint", "policy.endpoint": "hosted", "policy.model": "a-model"}
    run, claim = launched(runs.create(recipe="quickstart-evaluate", overrides=policy))

    def ask(token: str) -> tuple[int, Any]:
        address = f"/api/v1/runs/{run.pk}/secrets"
        answer = Client().post(address, headers={"Authorization": f"Bearer {token}"})
        return answer.status_code, answer.json()

    hosted = {"address": ADDRESS, "key": KEY}
    assert ask(claim.token) == (200, {"endpoints": {"hosted": hosted}})
    entry = AuditEntry.objects.get(action="endpoint.reveal", run=run)
    assert (entry.target, entry.changes) == ("attempt 1", {"endpoints": ["hosted"]})
    assert ask("another")[0] == 401
    newer = relaunched(run, claim)
    assert ask(claim.token)[0] == 409
    assert ask(newer.token)[0] == 200
    attempts.give_up(run_id=run.pk, epoch=newer.epoch, to=RunState.STOPPED, reason="stopped")
    assert ask(newer.token)[0] == 409, "it is fenced"


def test_failed_secret_fetch_raises_the_matching_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PreflightError, match="set TRAINYARD_WEB_URL"):
        keys.fetch_secrets("http://127.0.0.1:9/secrets", "token", within_s=0.0)
    for status, error in ((409, FencedError), (410, FencedError), (401, PreflightError)):
        answer = httpx.Response(status, text="no")
        monkeypatch.setattr(httpx, "post", lambda *_args, answer=answer, **_kwargs: answer)
        with pytest.raises(error):
            keys.fetch_secrets("http://127.0.0.1:9/secrets", "token")
