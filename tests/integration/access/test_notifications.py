"""Messages about runs: stored once, sent signed, repeated after failures, never to private addresses."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from engine.errors import ConfigError
from engine.types import RunState
from tests.builders.web.event_builders import Stream
from tests.builders.web.web_builders import launched, make_run, make_user, post, relaunched
from tests.fakes.webhook_server import WebhookServer, webhook_server
from webapp.core.permissions import Role
from webapp.endpoints.services import endpoints
from webapp.models import Alert, Delivery, Experiment, Notification, Run
from webapp.notifications.services import delivery, notifications, outbox, webhooks
from webapp.runs.services import attempts, states

pytestmark = pytest.mark.django_db


@pytest.fixture
def server(settings: Any) -> Iterator[WebhookServer]:
    with webhook_server() as server:
        settings.TRAINYARD_WEBHOOK_HOSTS = {f"127.0.0.1:{server.port}", f"hooks.test:{server.port}"}
        yield server


@pytest.fixture
def ada() -> User:
    return make_user("ada", Role.OPERATOR)


def webhook(owner: User, url: str, **values: Any) -> tuple[Notification, str]:
    values = {"states": ["failed", "succeeded", "stopped"], "alerts": ["*"]} | values
    return notifications.add(owner=owner, kind="webhook", address=url, **values)


def end(run: Run, state: RunState = RunState.FAILED, reason: str = "the disk is full") -> None:
    Run.objects.filter(pk=run.pk).update(state=RunState.RUNNING)
    assert states.move(run_id=run.pk, to=state, reason=reason)


def make_due() -> None:
    Delivery.objects.filter(state="pending").update(next_at=timezone.now())


def test_the_end_of_a_run_is_sent_once_and_signed(server: WebhookServer, ada: User) -> None:
    _, secret = webhook(ada, server.url("/ok?token=1"))
    run = make_run()
    end(run)
    assert not states.move(run_id=run.pk, to=RunState.FAILED)
    outbox.run_ended(run_id=run.pk, state=RunState.FAILED)  # the same event again
    assert not delivery.send_due()
    delivery.send_due()
    (request,) = server.received
    assert request.path == "/ok?token=1"
    message_id, timestamp = (request.headers[f"webhook-{name}"] for name in ("id", "timestamp"))
    signed = f"{message_id}.{timestamp}.".encode() + request.body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"
    assert abs(int(timestamp) - timezone.now().timestamp()) < 60
    body = json.loads(request.body)
    assert (body["type"], body["data"]["run"]["id"]) == ("run.failed", run.pk)
    assert body["data"]["run"]["reason"] == "the disk is full"
    assert body["data"]["run"]["url"].endswith(f"/runs/{run.pk}/")
    sent = Delivery.objects.get()
    assert (sent.state, sent.attempts, sent.status, sent.detail) == ("delivered", 1, 200, "thanks")
    # Another end in the same attempt is another event.
    end(run)
    assert Delivery.objects.count() == 2


def test_signature_of_the_standards_example() -> None:
    signature = webhooks.signature(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        timestamp=1614265330,
        body=b'{"test": 2432232314}',
    )
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_failed_messages_are_repeated_and_then_given_up(server: WebhookServer, ada: User) -> None:
    webhook(ada, server.url("/fail"))
    end(make_run())
    pauses = []
    for _ in range(len(delivery.PAUSES) + 3):
        before = timezone.now()
        delivery.send_due()
        if (due := Delivery.objects.get().next_at) is not None:
            pauses.append(round((due - before) / timedelta(seconds=10)) * 10)
        make_due()
    assert pauses == [pause.total_seconds() for pause in delivery.PAUSES]
    assert len(server.received) == len(delivery.PAUSES) + 1
    assert len({request.headers["webhook-id"] for request in server.received}) == 1
    assert len({request.body for request in server.received}) == 1
    sent = Delivery.objects.get()
    assert (sent.state, sent.status, sent.next_at) == ("failed", 500, None)
    assert sent.detail == "the receiver is \ufffd broken"


def test_one_hanging_receiver_does_not_delay_others(
    server: WebhookServer, ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 2.0)
    for path in ("/hang", "/drip", "/redirect", "/flood", "/gone", "/ok"):
        webhook(ada, server.url(path))
    end(make_run())
    delivery.send_due()
    found = {
        request.path: Delivery.objects.get(pk=request.headers["webhook-id"].removeprefix("msg_"))
        for request in server.received
    }
    assert {path: (sent.state, sent.status) for path, sent in found.items()} == {
        "/hang": ("pending", None), "/drip": ("pending", None), "/redirect": ("pending", 302),
        "/flood": ("delivered", 200), "/gone": ("failed", 410), "/ok": ("delivered", 200),
    }  # fmt: skip
    assert "within 2 s" in found["/hang"].detail
    assert "redirects are not followed" in found["/redirect"].detail
    assert len(found["/flood"].detail) == 500


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1",
        "::1", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "224.0.0.1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2", "::",
    ],
)  # fmt: skip
def test_private_addresses_are_refused(
    server: WebhookServer, ada: User, settings: Any, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    settings.TRAINYARD_WEBHOOK_HOSTS = frozenset()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET

    def resolved(_host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        public = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.215.14", port))
        return [public, (family, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    target, _ = webhook(ada, f"http://rebound.test:{server.port}/ok")
    sent = delivery.send_test(notification=target)
    assert (sent.state, sent.status) == ("failed", None)
    assert "TRAINYARD_WEBHOOK_HOSTS" in sent.detail
    assert server.received == []


@pytest.mark.parametrize(
    "url", ["http://2130706433/", "http://0x7f.1/", "http://127.1/", "http://localhost/"]
)
def test_other_spellings_of_loopback_are_refused(ada: User, url: str) -> None:
    target, _ = webhook(ada, url)
    assert "not public" in delivery.send_test(notification=target).detail


def test_the_connection_goes_to_the_checked_address(
    server: WebhookServer, ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def resolved(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        # A second look-up would lead elsewhere.
        address = "127.0.0.1" if len(asked) == 1 else "127.0.0.2"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    target, _ = webhook(ada, server.url("/ok", host="hooks.test"))
    assert delivery.send_test(notification=target).state == "delivered"
    # The transport resolves only the checked address itself.
    assert asked[0] == "hooks.test"
    assert set(asked[1:]) <= {"127.0.0.1"}
    (request,) = server.received
    assert request.headers["host"] == f"hooks.test:{server.port}"


def test_certificates_are_checked_against_the_name(
    ada: User, settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    context = _tls_context(tmp_path, "hooks.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    look_up = socket.getaddrinfo

    def resolved(host: str, port: int, *rest: Any, **more: Any) -> list[Any]:
        return look_up("127.0.0.1" if str(host).endswith(".test") else host, port, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setattr(webhooks, "tls_context", webhooks.tls_context.__wrapped__)
    settings.TRAINYARD_WEBHOOK_HOSTS = {"*"}
    with webhook_server(context) as server:
        named, _ = webhook(ada, server.url("/ok", host="hooks.test"))
        other, _ = webhook(ada, server.url("/ok", host="other.test"))
        assert delivery.send_test(notification=named).state == "delivered"
        refused = delivery.send_test(notification=other)
        assert refused.state == "failed"
        assert "certificate" in refused.detail.lower()


def test_alerts_are_sent_by_kind_and_bounded(ada: User) -> None:
    everything, _ = webhook(ada, "https://a.example.org/", states=[])
    entropy, _ = webhook(ada, "https://b.example.org/", states=[], alerts=["entropy_low", "note"])
    ends, _ = webhook(ada, "https://c.example.org/", alerts=[])
    run, claim = launched()
    stream = Stream(epoch=claim.epoch)
    stream.started()
    stream.add("alert", severity="info", code="note", message="for your information", iteration=0)
    for number in range(40):
        stream.add("alert", severity="error", code=f"code_{number}", message="m" * 5_000, iteration=0)
    stream.add("alert", severity="warning", code="entropy_low", message="entropy fell", iteration=0)
    post(claim, stream)
    post(claim, stream)
    assert Alert.objects.filter(run=run).count() == 42
    kinds = [
        [sent.payload["data"]["alert"]["code"] for sent in target.deliveries.order_by("created_at")]
        for target in (everything, entropy, ends)
    ]
    assert kinds[0] == [f"code_{number}" for number in range(outbox.MOST_ALERTS)]
    assert sorted(kinds[1]) == ["entropy_low", "note"]
    assert kinds[2] == []
    newest = everything.deliveries.filter(payload__data__alert__code="code_0").get()
    assert len(newest.payload["data"]["alert"]["message"]) == 2_000
    Delivery.objects.filter(payload__data__alert__code="code_1").delete()
    second = Stream(epoch=relaunched(run, claim).epoch, first_seq=stream.next_seq)
    assert second.next_seq == stream.next_seq
    assert everything.deliveries.count() == outbox.MOST_ALERTS
    assert everything.deliveries.filter(payload__data__alert__code="run.relaunched").exists()


def test_experiments_and_owners_decide_what_is_sent(ada: User) -> None:
    experiment = Experiment.objects.create(name="ablation")
    webhook(ada, "https://a.example.org/", experiment=experiment)
    eve = make_user("eve", Role.OPERATOR)
    webhook(eve, "https://b.example.org/")
    run = make_run()
    end(run)
    assert [sent.notification.owner for sent in Delivery.objects.all()] == [eve]
    Run.objects.filter(pk=run.pk).update(experiment=experiment, epoch=5)
    User.objects.filter(pk=eve.pk).update(is_active=False)
    end(run, RunState.SUCCEEDED, "")
    newest = Delivery.objects.filter(key__startswith="ended succeeded").get()
    assert newest.notification.owner == ada
    assert newest.payload["data"]["run"]["experiment"] == "ablation"


def test_the_url_is_encrypted_and_follows_new_sealing_keys(server: WebhookServer, ada: User) -> None:
    target, secret = webhook(ada, server.url("/ok?token=hidden"))
    stored = json.dumps(list(Notification.objects.values()), default=str)
    assert "hidden" not in stored
    assert secret not in stored
    assert target.address == f"http://127.0.0.1:{server.port}"
    endpoints.rotate()
    target.refresh_from_db()
    assert notifications.webhook_of(target) == (server.url("/ok?token=hidden"), secret)
    # A changed host makes the stored URL unreadable.
    Notification.objects.filter(pk=target.pk).update(address="https://other.example.org")
    target.refresh_from_db()
    sent = delivery.send_test(notification=target)
    assert (sent.state, server.received) == ("failed", [])


def test_old_messages_are_deleted(ada: User) -> None:
    webhook(ada, "https://a.example.org/")
    end(make_run())
    Delivery.objects.update(created_at=timezone.now() - timedelta(days=31))
    delivery.sweep()
    assert not Delivery.objects.exists()


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"address": "ftp://a.example.org/"}, "address"),
        ({"address": "https://user:pass@a.example.org/"}, "address"),
        ({"address": "https://a.example.org/ü"}, "address"),
        ({"address": "https://a.example.org:99999/"}, "address"),
        ({"kind": "pigeon"}, "kind"),
        ({"kind": "email", "address": "ada@example.org"}, "kind"),
        ({"states": ["running"]}, "states"),
        ({"states": [], "alerts": []}, "states"),
        ({"alerts": ["no code"]}, "alerts"),
    ],
)
def test_wrong_values_are_refused(ada: User, values: dict[str, Any], field: str) -> None:
    valid = {"kind": "webhook", "address": "https://a.example.org/", "states": ["failed"]}
    with pytest.raises(ConfigError) as caught:
        notifications.add(owner=ada, **(valid | values))
    assert [problem.setting for problem in caught.value.problems] == [field]


def test_mails_are_sent_without_additional_headers(ada: User, settings: Any) -> None:
    with mail_server() as (port, received):
        settings.EMAIL_URL = "smtp://set"
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", port
        notifications.add(owner=ada, kind="email", address="team@example.org", states=["failed"])
        run = make_run()
        Run.objects.filter(pk=run.pk).update(name="a\r\nBcc: eve@example.org")
        end(run, reason="line one\nline two")
        delivery.send_due()
        text = received.pop()
    head, _, body = text.partition("\r\n\r\n")
    assert "To: team@example.org" in head
    assert "\r\nBcc:" not in head
    assert "line one\\nline two" in body
    assert f"/runs/{run.pk}/" in body
    sent = Delivery.objects.get()
    assert (sent.state, sent.status) == ("delivered", None)
    # The server is gone.
    end(run, RunState.FAILED)
    Delivery.objects.update(state="pending", next_at=timezone.now())
    delivery.send_due()
    sent.refresh_from_db()
    assert (sent.state, sent.attempts) == ("pending", 2)
    assert "refused" in sent.detail.lower()


class mail_server:
    """SMTP server that accepts every mail; yields its port and the mails."""

    def __enter__(self) -> tuple[int, list[str]]:
        received: list[str] = []

        class Session(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(b"220 ready\r\n")
                for line in self.rfile:
                    command = line.split()[0].upper() if line.split() else b""
                    if command == b"DATA":
                        self.wfile.write(b"354 go\r\n")
                        text = b""
                        while (part := self.rfile.readline()) != b".\r\n":
                            text += part
                        received.append(text.decode())
                    self.wfile.write(b"250 ok\r\n")
                    if command == b"QUIT":
                        return

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        return int(self.server.server_address[1]), received

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def _tls_context(folder: Path, host: str) -> ssl.SSLContext:
    """Return a server's context with a new certificate for a host name, stored in the folder."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "private.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "private.pem")
    return context


def test_failures_without_a_process_are_sent_once_to_each_notification(ada: User) -> None:
    alerts, _ = webhook(ada, "https://a.example.org/", states=[])
    both, _ = webhook(ada, "https://b.example.org/")
    run, claim = launched()
    attempts.give_up(run_id=run.pk, epoch=claim.epoch, to=RunState.FAILED, reason="its process fell silent")
    sent = [target.deliveries.get().payload for target in (alerts, both)]
    assert [payload["type"] for payload in sent] == ["alert.raised", "run.failed"]
    assert (sent[0]["data"]["alert"]["code"], sent[0]["data"]["run"]["state"]) == ("run.failed", "failed")


def test_messages_of_former_operators_are_not_sent(server: WebhookServer, ada: User) -> None:
    webhook(ada, server.url("/ok"))
    end(make_run())
    ada.groups.clear()
    delivery.send_due()
    sent = Delivery.objects.get()
    assert (sent.state, server.received) == ("failed", [])
    assert "no active operator" in sent.detail


def test_a_notification_that_is_removed_meanwhile_does_not_prevent_the_end_of_a_run(
    ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, _ = webhook(ada, "https://a.example.org/")
    wanted = outbox._wanted

    def removed_meanwhile(run_id: int, **fields: Any) -> list[Notification]:
        rows = wanted(run_id, **fields)
        notifications.remove(notification=target)
        return rows

    monkeypatch.setattr(outbox, "_wanted", removed_meanwhile)
    run = make_run()
    end(run)
    connection.check_constraints()
    run.refresh_from_db()
    assert (run.state, Delivery.objects.exists()) == ("failed", False)
