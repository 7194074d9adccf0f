"""Endpoints: permissions, encryption of keys, and their use in runs without leaks."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.test import Client

from engine.errors import ConfigError
from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.web_builders import make_user
from webapp.core.permissions import Role
from webapp.core.services import sealing
from webapp.endpoints.services import endpoints, places
from webapp.models import AuditEntry, Dataset, Endpoint, Run, RunAttempt
from webapp.runs.services import attempts, runs
from workers import lifecycle
from workers.launchers import LAUNCHERS
from workers.launchers.base import PROJECT, ProcessState
from workers.launchers.local import LocalLauncher

pytestmark = pytest.mark.django_db
KEY = "sk-planted-key-of-an-endpoint-1234"
ADDRESS = "https://api.example.org/v1"


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.TRAINYARD_HOME = tmp_path
    return tmp_path


def client_of(role: Role) -> Client:
    client = Client()
    client.force_login(make_user(role.value, role))
    return client


def save(**values: Any) -> Endpoint:
    return endpoints.save(**({"name": "hosted", "address": ADDRESS, "key": KEY} | values))


# --- keys ----------------------------------------------------------------------------------------


def test_key_is_stored_encrypted_and_needs_the_sealing_keys(home: Path) -> None:
    endpoint = save()
    assert KEY not in endpoint.sealed_key
    assert endpoint.key_hint == KEY[-4:]
    assert endpoints.key_of(endpoint) == KEY
    path = home / "sealing.keys"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be decrypted"):
        endpoints.key_of(endpoint)


def test_key_survives_a_change_of_djangos_secret_key(settings: Any) -> None:
    endpoint = save()
    settings.SECRET_KEY = "another-secret-key-of-this-server"
    assert endpoints.key_of(endpoint) == KEY


def test_key_is_bound_to_the_address_it_was_entered_for() -> None:
    endpoint = save()
    Endpoint.objects.update(address="https://thief.example.org/v1")
    endpoint.refresh_from_db()
    with pytest.raises(ConfigError, match="for another address"):
        endpoints.key_of(endpoint)


def test_only_a_new_address_requires_the_key_again() -> None:
    save()
    with pytest.raises(ConfigError, match="enter the key again"):
        save(address="https://thief.example.org/v1", key=None)
    assert endpoints.key_of(save(note="for judges", key=None)) == KEY
    moved = save(address="https://other.example.org/v1", key="another-key-for-the-new-address")
    assert endpoints.key_of(moved) == "another-key-for-the-new-address"
    assert save(key="").key_set_at is None


@pytest.mark.parametrize("where", ["file", "environment"])
def test_rotation_reencrypts_keys_and_drops_the_old_sealing_key(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = sealing.sealing_keys()
    if where == "environment":
        monkeypatch.setenv(sealing.VARIABLE, ",".join(old))
    endpoint = save()
    before = endpoint.sealed_key
    fresh = "7oZcdPvd5VAoYnWbzDjXOuZgFzp0y9bmMkdBqBGGTGg="
    if where == "environment":
        monkeypatch.setenv(sealing.VARIABLE, ",".join([fresh, *old]))
    run_command("endpoint", "rotate")
    if where == "environment":
        monkeypatch.setenv(sealing.VARIABLE, fresh)
    assert not set(old) & set(sealing.sealing_keys())
    endpoint.refresh_from_db()
    assert endpoint.sealed_key != before
    assert endpoints.key_of(endpoint) == KEY


def test_failed_rotation_keeps_existing_keys() -> None:
    endpoint = save()
    Endpoint.objects.create(name="damaged", address=ADDRESS, sealed_key="nonsense")
    with pytest.raises(ConfigError, match="cannot be decrypted"):
        endpoints.rotate()
    endpoint.refresh_from_db()
    assert endpoints.key_of(endpoint) == KEY


def test_invalid_endpoint_values_are_refused() -> None:
    refused: tuple[tuple[dict[str, str], str], ...] = (
        ({"name": "a/b"}, "is no name"),
        ({"name": ""}, "is no name"),
        ({"address": "file:///etc/passwd"}, "no address"),
        ({"address": "https://me:secret@api.example.org/v1"}, "no user or password"),
        ({"address": "https://api.example.org/v1?key=x"}, r"no '\?'"),
        ({"address": "https://api.example.org/v1\r\nX: y"}, "no address"),
        ({"note": "n" * 301}, "301 characters are too many"),
        ({"key": "short"}, "at least 8"),
        ({"key": "a key with spaces"}, "no spaces"),
    )
    for values, reason in refused:
        with pytest.raises(ConfigError, match=reason) as error:
            save(**values)
        assert KEY not in str(error.value)
    assert not Endpoint.objects.exists()


# --- page, API, command --------------------------------------------------------------------------


def test_operators_see_no_addresses_or_keys() -> None:
    save(note="for judges")
    client = client_of(Role.OPERATOR)
    text = client.get("/endpoints/?edit=hosted").content.decode()
    assert "hosted" in text
    assert "for judges" in text
    for hidden in (ADDRESS, KEY, KEY[-4:], "endpoint-form"):
        assert hidden not in text
    (row,) = client.get("/api/v1/endpoints").json()
    assert row["name"] == "hosted"
    assert row["address"] is row["key_hint"] is row["has_key"] is None


def test_administrator_creates_changes_and_removes_an_endpoint_on_the_page() -> None:
    client = client_of(Role.ADMIN)
    posted = {"name": "hosted", "address": ADDRESS, "key": KEY, "models": "gpt-*", "note": "<b>&"}
    assert client.post("/endpoints/save/", posted).status_code == 302
    text = client.get("/endpoints/").content.decode()
    assert f"…{KEY[-4:]}" in text
    assert "&lt;b&gt;&amp;" in text
    form = client.get("/endpoints/?edit=hosted").content.decode()
    assert 'value="https://api.example.org/v1"' in form
    for page in (text, form):
        assert KEY not in page
    twice = client.post("/endpoints/save/", posted)
    assert twice.status_code == 422
    assert "already" in twice.content.decode()
    assert KEY not in twice.content.decode()
    changed = {"editing": "hosted", "address": ADDRESS, "key": "", "models": "", "note": "n"}
    assert client.post("/endpoints/save/", changed).status_code == 302
    endpoint = Endpoint.objects.get()
    assert (endpoint.note, endpoints.key_of(endpoint)) == ("n", KEY)
    client.post("/endpoints/save/", changed | {"no_key": "yes"})
    assert Endpoint.objects.get().key_set_at is None
    client.post("/endpoints/hosted/remove/")
    assert not Endpoint.objects.exists()
    actions = list(AuditEntry.objects.order_by("pk").values_list("action", "actor__username"))
    assert actions[-4:] == [
        ("endpoint.create", "admin"), ("endpoint.change", "admin"), ("endpoint.change", "admin"),
        ("endpoint.remove", "admin"),
    ]  # fmt: skip
    assert KEY not in json.dumps(list(AuditEntry.objects.values_list("changes", flat=True)))


def test_api_accepts_a_key_and_never_returns_it() -> None:
    client = client_of(Role.ADMIN)
    body = {"address": ADDRESS, "key": KEY, "models": "a,b"}
    answer = client.put("/api/v1/endpoints/hosted", body, content_type="application/json")
    assert answer.status_code == 200
    assert answer.json()["key_hint"] == KEY[-4:]
    listed = client.get("/api/v1/endpoints").json()
    assert listed == [answer.json()]
    assert KEY not in json.dumps(listed)
    wrong = client.put(
        "/api/v1/endpoints/hosted", {"address": "x", "key": KEY}, content_type="application/json"
    )
    assert wrong.status_code == 422
    assert KEY not in wrong.content.decode()
    assert client.delete("/api/v1/endpoints/hosted").status_code == 204
    assert client.delete("/api/v1/endpoints/hosted").status_code == 404


def test_the_command_reads_the_key_from_standard_input_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{KEY}\n"))
    run_command("endpoint", "add", "hosted", ADDRESS, "--models", "gpt-*")
    assert endpoints.key_of(Endpoint.objects.get()) == KEY
    run_command("endpoint", "add", "hosted", ADDRESS, "--keep-key", "--note", "n")
    shown = run_command("endpoint", "list")
    assert f"hosted  {ADDRESS}  key …{KEY[-4:]} of " in shown
    assert KEY not in shown
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(CommandFailedError, match="no key was given"):
        run_command("endpoint", "add", "other", ADDRESS)
    run_command("endpoint", "add", "local", "http://127.0.0.1:8000/v1", "--no-key")
    run_command("endpoint", "remove", "hosted")
    assert list(Endpoint.objects.values_list("name", flat=True)) == ["local"]
    with pytest.raises(CommandFailedError, match="there is no endpoint"):
        run_command("endpoint", "remove", "hosted")


# --- runs ----------------------------------------------------------------------------------------

USES = {"policy.type": "endpoint", "policy.endpoint": "hosted", "policy.model": "gpt-small"}


ATTACHES = {"policy.engine": "vllm", "policy.vllm.addresses": ["lab"]}


def test_runs_attach_only_to_endpoints_marked_attachable() -> None:
    Dataset.objects.create(name="quickstart")
    admin = client_of(Role.ADMIN)
    posted = {"name": "lab", "address": ADDRESS, "key": KEY}
    assert admin.post("/endpoints/save/", posted).status_code == 302
    with pytest.raises(ConfigError, match=r"an endpoint that runs may attach to \(there is none\)"):
        runs.create(recipe="quickstart", overrides=ATTACHES)
    posted = {"editing": "lab", "address": ADDRESS, "key": "", "attachable": "yes"}
    assert admin.post("/endpoints/save/", posted).status_code == 302
    assert "attachable" in admin.get("/endpoints/").content.decode()
    assert "checked" in admin.get("/endpoints/?edit=lab").content.decode()
    run = runs.create(recipe="quickstart", overrides=ATTACHES)
    config = places.checked(run.config)
    assert endpoints.reveal(config, run_id=run.pk, epoch=1) == {"lab": {"address": ADDRESS, "key": KEY}}
    body = {"address": ADDRESS, "attachable": False}
    answer = admin.put("/api/v1/endpoints/lab", body, content_type="application/json")
    assert answer.json()["attachable"] is False
    with pytest.raises(ConfigError, match="may not be attached to"):
        endpoints.reveal(config, run_id=run.pk, epoch=1)
    run_command("endpoint", "add", "lab", ADDRESS, "--keep-key", "--attachable")
    assert endpoints.reveal(config, run_id=run.pk, epoch=1) == {"lab": {"address": ADDRESS, "key": KEY}}
    assert client_of(Role.OPERATOR).get("/api/v1/endpoints").json()[0]["attachable"] is True


def test_run_with_a_removed_endpoint_neither_starts_nor_launches() -> None:
    Dataset.objects.create(name="quickstart")
    endpoint = save()
    draft = runs.create(recipe="quickstart-evaluate", overrides=USES)
    queued = runs.create(recipe="quickstart-evaluate", overrides=USES)
    runs.start(run=queued)
    claim = attempts.claim_launch(run_id=queued.pk)
    assert claim is not None
    endpoints.remove(endpoint=endpoint)
    with pytest.raises(ConfigError, match="is no endpoint of this server"):
        runs.start(run=draft)
    lifecycle.start(claim)
    queued.refresh_from_db()
    assert queued.state == "failed"
    assert "endpoint 'hosted' was removed" in queued.reason


def test_engine_gets_only_its_own_endpoint_keys_and_no_key_leaks(
    home: Path,
    redis_server: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    django_capture_on_commit_callbacks: Any,
) -> None:
    other = "sk-key-of-another-endpoint-9876"
    monkeypatch.setenv(sealing.VARIABLE, sealing.sealing_keys()[0])
    monkeypatch.setenv("TRAINYARD_ENDPOINT_KEY", "key-of-the-workers-shell")
    monkeypatch.setenv("TRAINYARD_VLLM_KEY", "key-of-the-workers-shell")
    Dataset.objects.create(name="quickstart")
    client = client_of(Role.ADMIN)
    for name, key in (("hosted", KEY), ("other", other)):
        client.post("/endpoints/save/", {"name": name, "address": ADDRESS, "key": key})
    posted = {"recipe": "quickstart-evaluate", "then": "start"} | USES
    with django_capture_on_commit_callbacks(execute=True):
        assert client.post("/runs/new/", posted).status_code == 302
    run = Run.objects.get()
    script = home / "process.py"
    script.write_text(
        "import hashlib, os, sys; from engine.redaction import RedactingStream\n"
        "from engine.inference.endpoint.keys import _named, read_secrets\n"
        "read_secrets(); sys.stdout = RedactingStream(sys.stdout)\n"
        "print(sorted(n for n in os.environ if n.startswith('TRAINYARD_')))\n"
        "given = '; '.join(f'{n} {e.address} {e.key.get_secret_value()}' for n, e in _named.items())\n"
        "print(given)\n"
        "print(hashlib.sha256(given.encode()).hexdigest())\n"
        "print(open('/proc/self/environ').read().count('planted'), flush=True)\n"
    )
    launcher = LocalLauncher((sys.executable, str(script)))
    monkeypatch.setitem(LAUNCHERS, "local", launcher)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    assert lifecycle.launch(run_id=run.pk)
    attempt = RunAttempt.objects.get(run=run)
    deadline = time.monotonic() + 240
    while launcher.poll(host=attempt.host, handle=attempt.handle).state is ProcessState.ALIVE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    names, printed, digest, shown = (home / "runs" / str(run.pk) / "engine.log").read_text().splitlines()
    expected = f"hosted {ADDRESS} {KEY}"
    assert digest == hashlib.sha256(expected.encode()).hexdigest()
    assert printed == expected.replace(KEY, "[redacted]")
    assert shown == "0"
    for withheld in ("TRAINYARD_SEALING_KEYS", "TRAINYARD_ENDPOINT_KEY", "TRAINYARD_VLLM_KEY"):
        assert withheld not in names
    call_command("dumpdata")
    queues = list(_redis(redis_server))
    assert any("launch_run" in text for text in queues)
    redis.Redis.from_url(redis_server).delete("celery")
    texts = [capfd.readouterr().out, *_files(home), *queues, *_pages(client, run)]
    assert any("hosted" in text for text in texts)
    for text in texts:
        for key in (KEY, other, base64.b64encode(KEY.encode()).decode().rstrip("=")):
            assert key not in text


def _files(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes().decode("latin-1")


def _redis(address: str) -> Iterator[str]:
    """Yield everything in Redis: queues, results, caches."""
    store: Any = redis.Redis.from_url(address)
    for key in store.scan_iter():
        yield f"{key!r} {store.dump(key)!r}"
        if store.type(key) == b"list":
            yield repr(store.lrange(key, 0, -1))


def _pages(client: Client, run: Run) -> Iterator[str]:
    page = f"/runs/{run.pk}/"
    addresses = ["/endpoints/", "/endpoints/?edit=hosted", page, "/admin/webapp/auditentry/"]
    addresses += [
        f"{page}?tab=configuration",
        f"{page}?tab=events",
        "/api/v1/endpoints",
        f"/api/v1{page[:-1]}",
    ]
    for address in addresses:
        response = client.get(address)
        assert response.status_code == 200, address
        yield response.content.decode()
