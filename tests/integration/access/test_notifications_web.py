"""Notifications on their page, by API and commands: who sees which, and what is never shown again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.builders.commands import command_result, run_command
from tests.builders.web.web_builders import make_run, make_user, signed_in
from tests.fakes.webhook_server import WebhookServer, webhook_server
from webapp.core.permissions import Role
from webapp.models import AuditEntry, Delivery, Experiment, Notification, Run
from webapp.notifications.services import delivery, notifications
from webapp.runs.services import states

pytestmark = pytest.mark.django_db


@pytest.fixture
def server(settings: Any) -> Iterator[WebhookServer]:
    with webhook_server() as server:
        settings.TRAINYARD_WEBHOOK_HOSTS = {f"127.0.0.1:{server.port}"}
        yield server


def test_an_operator_adds_tests_and_removes_a_webhook(server: WebhookServer) -> None:
    client = signed_in(Role.OPERATOR)
    assert "No notifications yet" in client.get("/notifications/").content.decode()
    experiment = Experiment.objects.create(name="ablation <1>")
    form = {
        "kind": "webhook", "address": server.url("/ok?token=concealed"), "experiment": experiment.pk,
        "states": ["failed", "stopped"], "alerts": "entropy_low, clip_fraction",
    }  # fmt: skip
    html = client.post("/notifications/", form).content.decode()
    target = Notification.objects.get()
    _, secret = notifications.webhook_of(target)
    assert html.count(secret) == 2  # the text, and the button that copies it
    assert "concealed" not in html
    page = client.get("/notifications/").content.decode()
    assert secret not in page
    assert "run failed, run stopped, Many tokens clipped, Entropy collapses" in page
    assert "ablation &lt;1&gt;" in page
    assert (target.states, target.alerts) == (["failed", "stopped"], ["clip_fraction", "entropy_low"])
    tested = client.post(f"/notifications/{target.pk}/test/").content.decode()
    assert "The test was delivered to" in tested
    assert len(server.received) == 1
    assert client.post(f"/notifications/{target.pk}/remove/").status_code == 302
    assert not Delivery.objects.exists()
    actions = AuditEntry.objects.filter(action__startswith="notification.").order_by("id")
    assert [entry.action for entry in actions] == [
        "notification.create",
        "notification.test",
        "notification.remove",
    ]
    assert "concealed" not in json.dumps(list(AuditEntry.objects.values()), default=str)


def test_wrong_values_are_explained_on_the_page() -> None:
    response = signed_in(Role.OPERATOR).post("/notifications/", {"kind": "webhook", "address": "nothing"})
    assert response.status_code == 422
    html = response.content.decode()
    assert "no URL of a webhook" in html
    assert "choose at least one state or alert" in html
    assert "No mail server is configured" in html


def test_operators_see_their_own_and_administrators_all() -> None:
    ada, eve = make_user("ada", Role.OPERATOR), make_user("eve", Role.OPERATOR)
    own, other = (
        notifications.add(
            owner=user, kind="webhook", address=f"https://{user.username}.example.org/", states=["failed"]
        )[0]
        for user in (ada, eve)
    )
    client = signed_in(Role.OPERATOR, "ada")
    assert [row["address"] for row in client.get("/api/v1/notifications").json()] == [
        "https://ada.example.org"
    ]
    html = client.get("/notifications/").content.decode()
    assert "eve.example.org" not in html
    for address in (f"/notifications/{other.pk}/test/", f"/notifications/{other.pk}/remove/"):
        assert client.post(address).status_code == 404
    assert client.delete(f"/api/v1/notifications/{other.pk}").status_code == 404
    assert client.get(f"/api/v1/notifications/{other.pk}/deliveries").status_code == 404
    admin = signed_in(Role.ADMIN)
    assert len(admin.get("/api/v1/notifications").json()) == 2
    assert admin.delete(f"/api/v1/notifications/{own.pk}").status_code == 204
    listed = admin.get("/admin/webapp/notification/").content.decode()
    assert "https://eve.example.org" in listed
    detail = admin.get(f"/admin/webapp/notification/{other.pk}/change/").content.decode()
    assert other.sealed not in detail


def test_the_api_and_the_commands_return_the_same(server: WebhookServer) -> None:
    make_user("ada", Role.OPERATOR)
    client = signed_in(Role.OPERATOR, "ada")
    body = {"kind": "webhook", "address": server.url("/fail"), "states": ["succeeded"], "alerts": ["*"]}
    created = client.post("/api/v1/notifications", body, content_type="application/json")
    assert created.status_code == 201
    target = created.json()
    assert target.pop("secret").startswith("whsec_")
    assert json.loads(run_command("notification", "list", "--json")) == [target]
    failed = client.post(f"/api/v1/notifications/{target['id']}/test").json()
    assert (failed["state"], failed["status"]) == ("failed", 500)
    listed = client.get(f"/api/v1/notifications/{target['id']}/deliveries").json()
    assert json.loads(run_command("notification", "log", target["id"], "--json")) == listed
    assert len(listed) == 1
    refused = command_result("notification", "test", target["id"])
    assert refused.status == 1
    assert "not delivered: status 500: the receiver is" in refused.errors
    assert "status 500" in run_command("notification", "log", target["id"])
    run_command("notification", "remove", target["id"])
    added = run_command(
        "notification",
        "add",
        "ada",
        "webhook",
        server.url("/ok"),
        "--state",
        "failed",
        "--alert",
        "entropy_low",
    )
    assert "signing secret whsec_" in added
    newest = Notification.objects.get()
    assert "delivered: status 200" in run_command("notification", "test", newest.pk)
    assert "failed, alert entropy_low" in run_command("notification", "list")
    unknown = command_result(
        "notification", "add", "ada", "webhook", server.url("/ok"), "--experiment", "none"
    )
    assert "there is no experiment 'none'" in unknown.errors
    viewer = make_user("vic", Role.VIEWER)
    rejected = command_result(
        "notification", "add", viewer.username, "webhook", server.url("/ok"), "--state", "failed"
    )
    assert "needs the role operator" in rejected.errors


def test_the_page_lists_messages_with_a_fixed_number_of_queries() -> None:
    ada = make_user("ada", Role.OPERATOR)
    client = signed_in(Role.OPERATOR, "ada")
    client.get("/notifications/")  # the first request of a session notes the sign-in
    counts = []
    for number in range(2):
        for part in range(4):
            address = f"https://{number}-{part}.example.org/"
            notifications.add(owner=ada, kind="webhook", address=address, states=["failed"])
        run = make_run()
        Run.objects.filter(pk=run.pk).update(state="running")
        states.move(run_id=run.pk, to=states.S.FAILED, reason="<b>full</b>")
        Delivery.objects.update(detail="<script>x</script>\u202e")
        with CaptureQueriesContext(connection) as captured:
            html = client.get("/notifications/").content.decode()
        counts.append(len(captured))
    assert counts[0] == counts[1] <= 15
    assert "<script>x" not in html
    assert "\u202e" not in html
    assert html.count('data-key="delivery-') == Delivery.objects.count() == 12


def test_workers_send_what_is_due(server: WebhookServer) -> None:
    from workers.app import app

    ada = make_user("ada", Role.OPERATOR)
    notifications.add(owner=ada, kind="webhook", address=server.url("/ok"), states=["stopped"])
    run = make_run()
    Run.objects.filter(pk=run.pk).update(state="running")
    states.move(run_id=run.pk, to=states.S.STOPPED, reason="enough")
    scheduled = {entry["task"] for entry in app.conf.beat_schedule.values()}
    assert "trainyard.notify" in scheduled
    app.tasks["trainyard.notify"]()
    assert [json.loads(request.body)["type"] for request in server.received] == ["run.stopped"]
    assert not delivery.send_due()
