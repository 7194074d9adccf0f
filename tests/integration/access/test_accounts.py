"""Signing in and out: lock-out, rates, sessions that end, cookies behind TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from tests.builders.web_builders import PASSWORD, launched, make_user, sign_in
from webapp.guards import rates
from webapp.models import AuditEntry, SignIn
from webapp.permissions import Role
from webapp.services.access import accounts

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[3]
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


def lock(address: str = "192.0.2.1", name: str = "ada") -> Client:
    client = Client(REMOTE_ADDR=address)
    for _ in range(5):
        assert not sign_in(client, name, "wrong")
    return client


def test_five_failures_lock_a_name_for_an_address(settings: Any) -> None:
    make_user("ada", Role.VIEWER)
    make_user("eve", Role.VIEWER)
    client = lock()
    answer = client.post("/login/", {"username": "ada", "password": PASSWORD})
    assert (answer.status_code, answer["Retry-After"]) == (429, "900")
    text = answer.content.decode()
    assert "Sign-in locked" in text
    assert "15 minutes" in text
    assert sign_in(client, "eve"), "another name from there"
    assert sign_in(Client(REMOTE_ADDR="192.0.2.2"), "ada"), "the name from elsewhere"
    AccessAttempt.objects.update(attempt_time=timezone.now() - timedelta(minutes=16))
    assert sign_in(Client(REMOTE_ADDR="192.0.2.1"), "ada"), "after the lock"


def test_the_address_is_the_connection_s_not_a_header_s() -> None:
    make_user("ada", Role.VIEWER)
    for number in range(5):
        client = Client(REMOTE_ADDR="192.0.2.1", headers={"X-Forwarded-For": f"198.51.100.{number}"})
        assert not sign_in(client, "ada", "wrong")
    assert client.post("/login/", {"username": "ada", "password": PASSWORD}).status_code == 429


def test_the_admin_pages_have_no_login_of_their_own() -> None:
    make_user("ada", Role.ADMIN)
    answer = Client().post("/admin/login/", {"username": "ada", "password": PASSWORD})
    assert (answer.status_code, answer["Location"]) == (302, "/login/?next=/admin/")
    assert not Session.objects.exists()


@pytest.mark.parametrize("how", ["admin", "command"])
def test_an_administrator_unlocks(how: str) -> None:
    user = make_user("ada", Role.VIEWER)
    client = lock()
    if how == "admin":
        admin = Client()
        admin.force_login(make_user("root", Role.ADMIN))
        page = admin.post(
            "/admin/auth/user/", {"action": "unlock", "_selected_action": [user.pk]}, follow=True
        )
        assert "1 accounts were unlocked" in page.content.decode()
    else:
        call_command("unlock_user", "ada", stdout=StringIO())
    assert AuditEntry.objects.filter(action="account.unlock", target="user ada").exists()
    assert sign_in(client, "ada")


# --- sessions -------------------------------------------------------------------------------------


def browser(user: User, address: str = "192.0.2.1", agent: str = FIREFOX) -> Client:
    client = Client(REMOTE_ADDR=address, headers={"User-Agent": agent})
    client.force_login(user)
    assert client.get("/").status_code == 200
    return client


def test_people_see_and_end_their_sessions() -> None:
    user, other = make_user("ada", Role.VIEWER), make_user("eve", Role.VIEWER)
    here, there = browser(user), browser(user, "2001:db8::1", "<b>curl</b>/8")
    stranger = browser(other)
    text = here.get("/account/").content.decode()
    assert "Firefox on Linux" in text
    assert "2001:db8::1" in text
    assert "&lt;b&gt;curl&lt;" in text
    assert text.count("(this one)") == 1
    of_there = SignIn.objects.get(user=user, address="2001:db8::1")
    assert stranger.post(f"/account/sessions/{of_there.pk}/end/").status_code == 404
    assert there.get("/account/").status_code == 200
    assert here.post(f"/account/sessions/{of_there.pk}/end/")["Location"] == "/account/"
    assert there.get("/account/")["Location"].startswith("/login/")
    assert here.get("/account/").status_code == 200
    own = SignIn.objects.get(user=user)
    assert here.post(f"/account/sessions/{own.pk}/end/")["Location"] == "/login/"
    assert here.get("/account/").status_code == 302
    assert stranger.get("/account/").status_code == 200


def test_signing_out_everywhere_ends_all_sessions_of_one_person() -> None:
    user, other = make_user("ada", Role.VIEWER), make_user("eve", Role.VIEWER)
    clients = [browser(user), browser(user)]
    unused = Client()
    unused.force_login(user)
    stranger = browser(other)
    assert clients[0].post("/account/sessions/end/")["Location"] == "/login/"
    for client in [*clients, unused]:
        assert client.get("/").status_code == 302
    assert stranger.get("/").status_code == 200
    assert not SignIn.objects.filter(user=user).exists()


def test_a_command_and_the_admin_pages_sign_people_out() -> None:
    user = make_user("ada", Role.VIEWER)
    client = browser(user)
    out = StringIO()
    call_command("sign_out_user", "ada", stdout=out)
    assert client.get("/").status_code == 302
    client = browser(user)
    admin = Client()
    admin.force_login(make_user("root", Role.ADMIN))
    admin.post("/admin/auth/user/", {"action": "sign_out", "_selected_action": [user.pk]})
    assert client.get("/").status_code == 302
    assert AuditEntry.objects.filter(action="account.sign_out_everywhere", actor__username="root").exists()


def test_a_dismissed_person_s_sessions_end() -> None:
    user = make_user("ada", Role.VIEWER)
    client = browser(user)
    accounts.set_active(user=user, active=False)
    accounts.set_active(user=user, active=True)
    assert client.get("/").status_code == 302


def test_the_use_of_a_session_is_noted_once_a_minute() -> None:
    client = browser(make_user("ada", Role.VIEWER))
    SignIn.objects.update(seen_at=timezone.now() - timedelta(hours=1))
    client.get("/")
    assert SignIn.objects.get().seen_at < timezone.now() - timedelta(minutes=59)
    session = client.session
    session["seen"] -= 61
    session.save()
    client.get("/")
    assert SignIn.objects.get().seen_at > timezone.now() - timedelta(minutes=5)


def test_a_token_makes_no_session() -> None:
    token = accounts.create_token(user=make_user("ada", Role.VIEWER), name="t")
    client = Client(headers={"Authorization": f"Bearer {token}"})
    assert client.get("/api/v1/runs").status_code == 200
    assert not SignIn.objects.exists()


# --- rates ----------------------------------------------------------------------------------------


@pytest.fixture
def counted(redis_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Empty counters in a window that does not end."""
    monkeypatch.setattr(rates, "_silent_until", 0.0)
    monkeypatch.setattr("webapp.guards.rates.time.time", lambda: 1_790_000_001.0)
    cache.clear()
    yield monkeypatch
    cache.clear()


def test_logins_are_bounded_by_address(counted: pytest.MonkeyPatch) -> None:
    make_user("ada", Role.VIEWER)
    client = Client(REMOTE_ADDR="192.0.2.1")
    for number in range(rates.LOGIN.most):
        assert not sign_in(client, f"name-{number}", "wrong")
    answer = client.post("/login/", {"username": "ada", "password": PASSWORD})
    assert answer.status_code == 429
    assert 0 < int(answer["Retry-After"]) <= 60
    assert "Too many requests" in answer.content.decode()
    assert "script-src 'self'" in answer["Content-Security-Policy"]
    assert client.get("/login/").status_code == 200
    assert sign_in(Client(REMOTE_ADDR="192.0.2.2"), "ada")


def test_the_api_is_bounded_by_credential(counted: pytest.MonkeyPatch) -> None:
    counted.setattr(rates, "API", rates.Rule("api", 3))
    clients = [
        Client(headers={"Authorization": f"Bearer {accounts.create_token(user=user, name='t')}"})
        for user in (make_user("ada", Role.VIEWER), make_user("eve", Role.VIEWER))
    ]
    assert [clients[0].get("/api/v1/runs").status_code for _ in range(5)] == [200, 200, 200, 429, 429]
    assert clients[1].get("/api/v1/runs").status_code == 200
    assert clients[0].get("/api/v1/runs").json()["detail"].startswith("more than 3 requests a minute")


def test_guessed_tokens_are_soon_not_looked_at_and_keep_nobody_else_out(counted: pytest.MonkeyPatch) -> None:
    counted.setattr(rates, "REFUSED", rates.Rule("refused", 3))
    run, claim = launched()
    beat = json.dumps({"epoch": 1})

    def send(token: str) -> int:
        client = Client(headers={"Authorization": f"Bearer {token}"})
        path = f"/api/v1/runs/{run.pk}/heartbeat"
        return client.post(path, beat, content_type="application/json").status_code

    assert send(claim.token) == 200
    assert [send(f"guess-{number}") for number in range(6)] == [401, 401, 401, 401, 429, 429]
    assert send(claim.token) == 200


def test_without_redis_nobody_is_kept_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    monkeypatch.setattr(rates, "_silent_until", 0.0)
    make_user("ada", Role.VIEWER)
    assert sign_in(Client(), "ada")
    assert "request rates are not bounded" in caplog.text


# --- cookies --------------------------------------------------------------------------------------

_SHOW = """
import json, django
from django.conf import settings
django.setup()
print(json.dumps([
    settings.SESSION_COOKIE_SECURE, settings.CSRF_COOKIE_SECURE, settings.SECURE_HSTS_SECONDS > 0,
    settings.CSRF_TRUSTED_ORIGINS, "yard.example" in settings.ALLOWED_HOSTS, settings.SECURE_PROXY_SSL_HEADER,
]))
"""


def test_a_public_address_with_tls_secures_cookies() -> None:
    environment = {"TRAINYARD_PUBLIC_URL": "https://yard.example:8443/", "TRAINYARD_TRUST_PROXY": "1"}
    shown = subprocess.run(
        [sys.executable, "-c", _SHOW], cwd=ROOT, capture_output=True, text=True, check=True,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "webapp.settings"} | environment,
    )  # fmt: skip
    forwarded = ["HTTP_X_FORWARDED_PROTO", "https"]
    expected = [True, True, True, ["https://yard.example:8443"], True, forwarded]
    assert json.loads(shown.stdout) == expected
