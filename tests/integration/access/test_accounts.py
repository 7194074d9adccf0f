"""Accounts: sign-in, lock-out, sessions, tokens, request rates and secure cookies."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from tests.builders.commands import run_command
from tests.builders.web.web_builders import PASSWORD, bearer, launched, make_user, sign_in
from webapp.accounts import middleware
from webapp.accounts.services import accounts
from webapp.core import rates
from webapp.core.permissions import Role
from webapp.models import ApiToken, AuditEntry, Dataset, SignIn, Task, TaskAnswer

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[3]
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


def lock(address: str = "192.0.2.1", name: str = "ada") -> Client:
    client = Client(REMOTE_ADDR=address)
    for _ in range(5):
        assert not sign_in(client, name, "wrong")
    return client


def test_five_failed_sign_ins_lock_the_name_for_that_address(settings: Any) -> None:
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


def test_lock_uses_the_connection_address_and_no_header() -> None:
    make_user("ada", Role.VIEWER)
    for number in range(5):
        client = Client(REMOTE_ADDR="192.0.2.1", headers={"X-Forwarded-For": f"198.51.100.{number}"})
        assert not sign_in(client, "ada", "wrong")
    assert client.post("/login/", {"username": "ada", "password": PASSWORD}).status_code == 429


def test_admin_login_redirects_to_the_sign_in_page() -> None:
    make_user("ada", Role.ADMIN)
    answer = Client().post("/admin/login/", {"username": "ada", "password": PASSWORD})
    assert (answer.status_code, answer["Location"]) == (302, "/login/?next=/admin/")
    assert not Session.objects.exists()


@pytest.mark.parametrize("how", ["admin", "command"])
def test_administrator_unlocks_an_account(how: str) -> None:
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
        run_command("account", "unlock", "ada")
    assert AuditEntry.objects.filter(action="account.unlock", target="user ada").exists()
    assert sign_in(client, "ada")


# --- sessions -------------------------------------------------------------------------------------


def browser(user: User, address: str = "192.0.2.1", agent: str = FIREFOX) -> Client:
    client = Client(REMOTE_ADDR=address, headers={"User-Agent": agent})
    client.force_login(user)
    assert client.get("/").status_code == 200
    return client


def test_users_list_and_end_their_own_sessions() -> None:
    user, other = make_user("ada", Role.VIEWER), make_user("eve", Role.VIEWER)
    firefox, curl = browser(user), browser(user, "2001:db8::1", "<b>curl</b>/8")
    stranger = browser(other)
    text = firefox.get("/account/").content.decode()
    assert "Firefox on Linux" in text
    assert "2001:db8::1" in text
    assert "&lt;b&gt;curl&lt;" in text
    assert text.count("(this one)") == 1
    curl_session = SignIn.objects.get(user=user, address="2001:db8::1")
    assert stranger.post(f"/account/sessions/{curl_session.pk}/end/").status_code == 404
    assert curl.get("/account/").status_code == 200
    assert firefox.post(f"/account/sessions/{curl_session.pk}/end/")["Location"] == "/account/"
    assert curl.get("/account/")["Location"].startswith("/login/")
    assert firefox.get("/account/").status_code == 200
    firefox_session = SignIn.objects.get(user=user)
    assert firefox.post(f"/account/sessions/{firefox_session.pk}/end/")["Location"] == "/login/"
    assert firefox.get("/account/").status_code == 302
    assert stranger.get("/account/").status_code == 200


def test_signing_out_everywhere_ends_all_sessions_of_the_user() -> None:
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


def test_command_and_admin_action_sign_users_out() -> None:
    user = make_user("ada", Role.VIEWER)
    client = browser(user)
    run_command("account", "sign-out", "ada")
    assert client.get("/").status_code == 302
    client = browser(user)
    admin = Client()
    admin.force_login(make_user("root", Role.ADMIN))
    admin.post("/admin/auth/user/", {"action": "sign_out", "_selected_action": [user.pk]})
    assert client.get("/").status_code == 302
    assert AuditEntry.objects.filter(action="account.sign_out_everywhere", actor__username="root").exists()


def test_deactivating_a_user_ends_their_sessions() -> None:
    user = make_user("ada", Role.VIEWER)
    client = browser(user)
    accounts.set_active(user=user, active=False)
    accounts.set_active(user=user, active=True)
    assert client.get("/").status_code == 302


def test_session_use_is_recorded_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "EVERY_S", 60)
    client = browser(make_user("ada", Role.VIEWER))
    SignIn.objects.update(seen_at=timezone.now() - timedelta(hours=1))
    client.get("/")
    assert SignIn.objects.get().seen_at < timezone.now() - timedelta(minutes=59)
    session = client.session
    session["seen"] -= 61
    session.save()
    client.get("/")
    assert SignIn.objects.get().seen_at > timezone.now() - timedelta(minutes=5)


def test_token_requests_create_no_session() -> None:
    token = accounts.create_token(user=make_user("ada", Role.VIEWER), name="t")
    client = bearer(token)
    assert client.get("/api/v1/runs").status_code == 200
    assert not SignIn.objects.exists()


# --- tokens and passwords -------------------------------------------------------------------------


def created_token(page: Client, **fields: str) -> str:
    """Create a token on its page and return its text."""
    posted = {"name": "ci", "scope": "viewer", "days": "30"} | fields
    text = page.post("/account/tokens/", posted).content.decode()
    (token,) = re.findall(r'data-copy="(ty_[^"]+)"', text)
    return str(token)


def test_users_create_and_revoke_tokens_on_their_page() -> None:
    user = make_user("ada", Role.OPERATOR)
    page = browser(user)
    assert "No tokens yet" in page.get("/account/tokens/").content.decode()
    token = created_token(page, name=" <b>ci</b> ")
    text = page.get("/account/tokens/").content.decode()
    assert token not in text
    assert "&lt;b&gt;ci&lt;/b&gt;" in text
    assert "never" in text
    assert bearer(token).get("/api/v1/runs").status_code == 200
    stored = ApiToken.objects.get()
    stranger = browser(make_user("eve", Role.ADMIN))
    assert stranger.post(f"/account/tokens/{stored.pk}/revoke/").status_code == 404
    assert page.post(f"/account/tokens/{stored.pk}/revoke/")["Location"] == "/account/tokens/"
    assert bearer(token).get("/api/v1/runs").status_code == 401
    trail = AuditEntry.objects.filter(actor=user, action__startswith="token.").order_by("pk")
    assert [entry.action for entry in trail] == ["token.create", "token.revoke"]
    assert trail[0].changes == {"scope": "viewer", "days": 30}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": " "}, "at most 100 characters, not 0"),
        ({"name": "x" * 101}, "at most 100 characters, not 101"),
        ({"scope": "admin"}, "the scope admin is above it"),
        ({"scope": "all"}, "one of viewer, operator, admin, not"),
        ({"days": "366"}, "days, not 366"),
        ({"days": "no"}, "whole number of days, not &#x27;no&#x27;"),
    ],
)
def test_invalid_tokens_are_refused_with_the_reason(fields: dict[str, str], reason: str) -> None:
    page = browser(make_user("ada", Role.OPERATOR))
    posted = {"name": "mine", "scope": "operator", "days": "30"} | fields
    answer = page.post("/account/tokens/", posted)
    assert answer.status_code == 422
    assert "No token was created" in answer.content.decode()
    assert reason in answer.content.decode()
    assert not ApiToken.objects.exists()


def test_a_token_has_the_permissions_of_its_scope_and_its_user() -> None:
    user = make_user("ada", Role.OPERATOR)
    run, _ = launched()
    for scope, status in (("viewer", 403), ("operator", 200)):
        answer = bearer(created_token(browser(user), scope=scope)).get(f"/api/v1/runs/{run.pk}/log")
        assert answer.status_code == status
        if status == 403:
            assert "token with the scope operator" in answer.json()["detail"]
    dataset = Dataset.objects.create(name="d")
    task = Task.objects.create(dataset=dataset, key="k1", instance_id="i", split="train")
    TaskAnswer.objects.create(task=task, gold_patch="the gold")
    reader = bearer(created_token(browser(user), scope="viewer"))
    assert reader.get("/api/v1/datasets/d/tasks/k1").json()["answer"] is None
    writer = bearer(created_token(browser(user), scope="operator"))
    assert writer.get("/api/v1/datasets/d/tasks/k1").json()["answer"]["gold_patch"] == "the gold"
    accounts.set_role(user=user, role=Role.VIEWER)
    assert writer.get("/api/v1/datasets/d/tasks/k1").json()["answer"] is None


def test_tokens_expire() -> None:
    token = created_token(browser(make_user("ada", Role.VIEWER)))
    ApiToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert bearer(token).get("/api/v1/runs").status_code == 401
    assert bearer(token).get("/metrics").status_code == 401


NEW = "another-horse-battery"


def changed_on_the_page(user: User) -> None:
    page = browser(user)
    form = {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW}
    weak = page.post("/account/password/", form | {"new_password1": "1234", "new_password2": "1234"})
    wrong = page.post("/account/password/", form | {"old_password": "guess"})
    for answer in (weak, wrong):
        assert answer.status_code == 422
        assert "The password was not changed" in answer.content.decode()
    assert page.post("/account/password/", form)["Location"] == "/account/"
    assert "(this one)" in page.get("/account/").content.decode(), "its own session goes on"


def changed_by_an_administrator(user: User) -> None:
    form = {"username": "ada", "email": "", "role": "viewer", "new_password": NEW, "is_active": "on"}
    root = browser(make_user("root", Role.ADMIN))
    assert root.post(f"/admin/auth/user/{user.pk}/change/", form).status_code == 302


def test_administrators_who_change_their_own_password_keep_a_listed_session() -> None:
    form = {"username": "root", "email": "", "role": "admin", "new_password": NEW, "is_active": "on"}
    user = make_user("root", Role.ADMIN)
    page = browser(user)
    assert "(this one)" in page.get("/account/").content.decode()
    assert page.post(f"/admin/auth/user/{user.pk}/change/", form).status_code == 302
    assert "(this one)" in page.get("/account/").content.decode()


def changed_by_the_command(_user: User) -> None:
    run_command("account", "reset-password", "ada")


def changed_elsewhere(user: User) -> None:
    """Set the password as Django's own command does."""
    user.set_password(NEW)
    user.save()


@pytest.mark.parametrize(
    ("change", "entry"),
    [
        (changed_on_the_page, ("account.password", "ada")),
        (changed_by_an_administrator, ("account.password_reset", "root")),
        (changed_by_the_command, ("account.password_reset", None)),
        (changed_elsewhere, ("token.revoke_all", None)),
    ],
)
def test_password_change_ends_tokens_and_sessions(
    change: Callable[[User], None], entry: tuple[str, str | None]
) -> None:
    user = make_user("ada", Role.VIEWER)
    other = browser(user)
    token = created_token(other)
    change(user)
    assert bearer(token).get("/api/v1/runs").status_code == 401
    assert other.get("/").status_code == 302
    action, actor = entry
    assert AuditEntry.objects.filter(action=action, actor__username=actor, target="user ada").exists()
    assert not sign_in(Client(), "ada")


def test_sign_in_is_recorded_in_the_audit_log() -> None:
    user = make_user("ada", Role.VIEWER)
    assert not sign_in(Client(REMOTE_ADDR="192.0.2.7"), "ada", "wrong")
    assert sign_in(Client(REMOTE_ADDR="192.0.2.7"), "ada")
    entry = AuditEntry.objects.get(action="account.sign_in")
    assert (entry.actor, entry.target, entry.changes) == (user, "user ada", {"address": "192.0.2.7"})


# --- rates ----------------------------------------------------------------------------------------


@pytest.fixture
def counted(redis_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Monkeypatch with empty request counters and a frozen clock."""
    monkeypatch.setattr(rates, "_silent_until", 0.0)
    monkeypatch.setattr("webapp.core.rates.time.time", lambda: 1_790_000_001.0)
    cache.clear()
    yield monkeypatch
    cache.clear()


def test_logins_are_rate_limited_by_address(counted: pytest.MonkeyPatch) -> None:
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


def test_api_requests_are_rate_limited_by_credential(counted: pytest.MonkeyPatch) -> None:
    counted.setattr(rates, "API", rates.Rule("api", 3))
    clients = [
        bearer(accounts.create_token(user=user, name="t"))
        for user in (make_user("ada", Role.VIEWER), make_user("eve", Role.VIEWER))
    ]
    assert [clients[0].get("/api/v1/runs").status_code for _ in range(5)] == [200, 200, 200, 429, 429]
    assert clients[1].get("/api/v1/runs").status_code == 200
    assert clients[0].get("/api/v1/runs").json()["detail"].startswith("more than 3 requests a minute")


def test_guessed_tokens_are_rate_limited_without_blocking_valid_ones(counted: pytest.MonkeyPatch) -> None:
    counted.setattr(rates, "REFUSED", rates.Rule("refused", 3))
    run, claim = launched()
    beat = json.dumps({"epoch": 1})

    def send(token: str) -> int:
        client = bearer(token)
        path = f"/api/v1/runs/{run.pk}/heartbeat"
        return client.post(path, beat, content_type="application/json").status_code

    assert send(claim.token) == 200
    assert [send(f"guess-{number}") for number in range(6)] == [401, 401, 401, 401, 429, 429]
    assert send(claim.token) == 200


def test_requests_are_not_rate_limited_without_redis(
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


def test_public_https_address_secures_cookies() -> None:
    environment = {"TRAINYARD_PUBLIC_URL": "https://yard.example:8443/", "TRAINYARD_TRUST_PROXY": "1"}
    completed = subprocess.run(
        [sys.executable, "-c", _SHOW], cwd=ROOT, capture_output=True, text=True, check=True,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "webapp.settings"} | environment,
    )  # fmt: skip
    forwarded = ["HTTP_X_FORWARDED_PROTO", "https"]
    expected = [True, True, True, ["https://yard.example:8443"], True, forwarded]
    assert json.loads(completed.stdout) == expected
