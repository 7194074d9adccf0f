"""Permissions: the least role for every page and every route of the API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from tests.builders.web.html_regions import form_targets, links
from tests.builders.web.page_builders import Yard, make_yard
from tests.builders.web.web_builders import hand_over, make_user, signed_in
from webapp.accounts.services import accounts
from webapp.api.app import api
from webapp.core.permissions import Role, role_of
from webapp.models import AuditEntry, Trajectory

pytestmark = pytest.mark.django_db
PUBLIC = {"login", "logout", "healthz", "outage-banner"}
OPERATORS = {
    "run-new", "run-start", "run-stop", "run-pause", "run-resume", "run-archive", "run-restore",
    "run-acknowledge", "run-delete", "run-checkpoint", "run-edit",
    "evaluation-submission", "evaluation-submission-zip",
    "alert-acknowledge", "trajectory-test-log", "sandbox-reap", "endpoint-list", "import-list", "import-new",
    "dataset-validate", "dataset-harden", "task-quarantine", "run-selected", "experiment-new",
    "experiment-launch", "experiment-edit", "experiment-stop", "experiment-archive", "annotation-add",
    "annotation-remove", "scanner-save", "scanner-remove", "run-file", "notification-list",
    "notification-test", "notification-remove", "disk", "disk-remove", "recipe-save", "recipe-remove",
    "search-save", "search-remove", "scanner-judge", "judgement-stop", "model-try",
}  # fmt: skip
ADMINISTRATORS = {"endpoint-save", "endpoint-test", "endpoint-remove", "scanner-scan"}
"""Pages by the least role that opens them; viewers open all other pages."""
ENGINES = {f"POST /runs/{{int:run_id}}/{name}" for name in ("events", "heartbeat", "secrets")}
API_OPERATORS = {
    "POST /runs", "POST /models/try",
    *(
        f"POST /runs/{{int:run_id}}/{action}"
        for action in (
            "start", "stop", "token", "pause", "resume", "clone", "edit", "archive", "restore", "acknowledge",
        )
    ),
    "DELETE /runs/{int:run_id}",
    "GET /runs/{int:run_id}/checkpoints/{int:iteration}", "GET /runs/{int:run_id}/log",
    "GET /runs/{int:run_id}/files", "GET /runs/{int:run_id}/files/{path:name}", "POST /pool/reap",
    "POST /alerts/{int:alert_id}/acknowledge", "POST /imports", "GET /datasets/{name}/export",
    "POST /datasets/{name}/sync", "POST /datasets/{name}/validate", "POST /datasets/{name}/harden",
    "POST /datasets/{name}/tasks/{key}/quarantine", "GET /disk", "POST /disk/remove", "GET /endpoints",
    "GET /trajectories/{int:trajectory_id}/test-log", "POST /experiments",
    "POST /trajectories/{int:trajectory_id}/annotations",
    "GET /notifications", "POST /notifications", "DELETE /notifications/{int:notification_id}",
    "POST /notifications/{int:notification_id}/test", "GET /notifications/{int:notification_id}/deliveries",
    "PUT /scanners/{name}", "DELETE /scanners/{name}", "POST /recipes", "DELETE /recipes/{name}",
    "PUT /searches/{name}", "DELETE /searches/{name}", "GET /judgements", "POST /scanners/{name}/judge",
    "POST /judgements/{int:judgement_id}/stop",
    "DELETE /trajectories/{int:trajectory_id}/annotations/{int:annotation_id}",
    *(
        f"POST /experiments/{{int:experiment_id}}/{action}"
        for action in ("edit", "launch", "stop", "archive")
    ),
    "GET /runs/{int:run_id}/evaluations/{phase}/{int:iteration}/submission",
    "GET /runs/{int:run_id}/evaluations/{phase}/{int:iteration}/submission/findings",
}  # fmt: skip
API_ADMINISTRATORS = {
    "POST /scanners/scan",
    "PUT /endpoints/{name}",
    "DELETE /endpoints/{name}",
    "POST /endpoints/{name}/test",
}


def patterns(resolver: URLResolver | None = None) -> Iterator[URLPattern]:
    """Yield the URL patterns of all pages outside of the admin site."""
    for entry in (resolver or get_resolver()).url_patterns:
        if isinstance(entry, URLResolver):
            if entry.namespace not in ("admin", "api"):
                yield from patterns(entry)
        else:
            yield entry


def known_arguments(yard: Yard) -> dict[str, Any]:
    trajectory = Trajectory.objects.filter(run=yard.run, phase="train").earliest("id")
    return {
        "run_id": yard.run.pk, "phase": "train", "iteration": 0, "task_key": yard.tasks[0].key, "index": 0,
        "alert_id": yard.run.alerts.earliest("id").pk, "trajectory_id": trajectory.pk, "number": 0,
        "sign_in_id": 1, "token_id": 1, "experiment_id": yard.experiment.pk, "name": "quickstart",
        "key": yard.tasks[0].key, "annotation_id": 1, "notification_id": 1, "judgement_id": 1,
    }  # fmt: skip


def arguments(pattern: URLPattern, yard: Yard) -> dict[str, Any]:
    """Return URL arguments of a page that address rows of a yard."""
    known = known_arguments(yard)
    return {name: known[name] for name in pattern.pattern.converters}


def least_role(name: str, operators: set[str], administrators: set[str]) -> Role:
    if name in administrators:
        return Role.ADMIN
    return Role.OPERATOR if name in operators else Role.VIEWER


ROLES = (None, *Role)
MISSING = frozenset(
    {"run-checkpoint", "run-file", "token-arithmetic", "token-strips", "trajectory-compare", "step-example"}
)
"""There are no files and no traced tokens, and the addresses name neither rollouts nor steps."""


def test_every_page_is_open_to_its_roles_only() -> None:
    yard = make_yard(iterations=1, group_size=2)
    clients = {role: signed_in(role) for role in ROLES}
    hand_over("user-operator")
    names = {str(pattern.name) for pattern in patterns()}
    assert names >= PUBLIC | OPERATORS | ADMINISTRATORS
    for pattern in patterns():
        name = str(pattern.name)
        address = reverse(name, kwargs=arguments(pattern, yard))
        anonymous = Client().get(address)
        if name in PUBLIC:
            assert anonymous.status_code in (200, 405), name
            continue
        assert (anonymous.status_code, anonymous.headers["Location"][:13]) == (302, "/login/?next="), name
        least = least_role(name, OPERATORS, ADMINISTRATORS)
        opened = (404,) if name in MISSING else (200, 405)
        for role in ROLES:
            expected = opened if ROLES.index(role) >= ROLES.index(least) else (403,)
            assert clients[role].get(address).status_code in expected, (name, role)
        if 405 in opened:
            assert Client().post(address).status_code == 302, name


def test_operators_change_their_own_runs_and_administrators_all_runs() -> None:
    """Cover every POST of pages and API that changes a run or an alert."""
    yard = make_yard(iterations=1, group_size=2)
    owner, admin, other = signed_in(Role.OPERATOR), signed_in(Role.ADMIN), signed_in(Role.OPERATOR, "eve")
    hand_over("user-operator")
    known = known_arguments(yard)
    addresses = [
        reverse(str(pattern.name), kwargs=arguments(pattern, yard))
        for pattern in patterns()
        if {"run_id", "alert_id"} & set(pattern.pattern.converters)
        and str(pattern.name) in OPERATORS - {"recipe-save"}  # which only reads the run
    ]
    changing = [address for address in addresses if owner.get(address).status_code == 405]
    assert len(changing) >= 9
    operations = [f"{method} {path}" for method, path in api_operations()]
    written = [name for name in operations if re.match(r"POST /(runs|alerts)/{int:\w+}/", name)]
    read = {"clone", "what-if", *(name.rpartition("/")[2] for name in ENGINES)}
    changing += [
        re.sub(r"{(?:\w+:)?(\w+)}", lambda match: str(known[match[1]]), f"/api/v1{name[5:]}")
        for name in written
        if name.rpartition("/")[2] not in read
    ]
    for address in changing:
        refused = other.post(address, "{}", content_type="application/json")
        assert refused.status_code == 403, address
        assert "belongs to user-operator" in unescape(refused.content.decode())
    assert not AuditEntry.objects.filter(actor__username="eve").exists()
    for client in (owner, admin):
        for address in changing:
            answered = client.post(address, "{}", content_type="application/json")
            assert answered.status_code in (200, 302, 409), address
    for client, logged_owner in ((owner, None), (admin, "user-operator")):
        client.post(f"/api/v1/runs/{yard.run.pk}/edit", {"notes": f"for {logged_owner}"}, "application/json")
        assert AuditEntry.objects.filter(action="run.edit").latest("id").changes.get("owner") == logged_owner


def test_pages_name_the_owner_and_disable_controls_for_others() -> None:
    yard = make_yard(iterations=1, group_size=2)
    owner, admin, other = signed_in(Role.OPERATOR), signed_in(Role.ADMIN), signed_in(Role.OPERATOR, "eve")
    address = f"/runs/{yard.run.pk}/"
    for client in (owner, other):
        page = client.get(address).content.decode()
        assert "was created by a command: only administrators may change it" in page
    hand_over("user-operator")
    for client, is_allowed in ((owner, True), (admin, True), (other, False)):
        page, overview = client.get(address).content.decode(), client.get("/").content.decode()
        assert ("belongs to user-operator" in page) is not is_allowed
        assert ('id="edit-run"' in page) is is_allowed
        assert (re.search(r"<button[^>]*disabled[^>]*>Stop<", page) is None) is is_allowed
        acknowledge = f"/alerts/{yard.run.alerts.get().pk}/acknowledge/"
        assert (acknowledge in page) is is_allowed
        assert (acknowledge in overview) is is_allowed


def api_operations() -> Iterator[tuple[str, str]]:
    """Yield method and path of every route of the API."""
    for _, router in api._routers:
        for path, view in router.path_operations.items():
            for operation in view.operations:
                for method in operation.methods:
                    yield method, path


def test_every_route_of_the_api_is_open_to_its_roles_only() -> None:
    yard = make_yard(iterations=1, group_size=2)
    known = known_arguments(yard)
    clients = {role: signed_in(role) for role in ROLES}
    hand_over("user-operator")
    operations = list(api_operations())
    assert {" ".join(operation) for operation in operations} >= ENGINES | API_OPERATORS | API_ADMINISTRATORS
    for number, (method, path) in enumerate(operations):
        name = f"{method} {path}"
        address = "/api/v1" + re.sub(r"{(?:\w+:)?(\w+)}", lambda match: str(known[match[1]]), path)

        def status(client: Client, method: str = method, address: str = address) -> int:
            return client.generic(method, address, "{}", content_type="application/json").status_code

        # Requests without credentials are counted by address.
        assert status(Client(REMOTE_ADDR=f"10.0.{number // 250}.{number % 250}")) == 401, name
        least = least_role(name, API_OPERATORS, API_ADMINISTRATORS)
        for role in ROLES:
            answered = status(clients[role])
            if name in ENGINES:
                assert answered == 401, name
            else:
                is_open = ROLES.index(role) >= ROLES.index(least)
                assert (answered not in (401, 403)) == is_open, (name, role)


def test_viewers_cannot_control_runs() -> None:
    yard = make_yard(iterations=1, group_size=2)
    viewer = signed_in(Role.VIEWER)
    page = viewer.get(f"/runs/{yard.run.pk}/").content.decode()
    assert not [target for target in form_targets(page) if "/runs/" in target]
    for action in ("stop", "pause"):
        assert viewer.post(f"/runs/{yard.run.pk}/{action}/").status_code == 403
        assert viewer.post(f"/api/v1/runs/{yard.run.pk}/{action}").status_code == 403
    yard.run.refresh_from_db()
    assert (yard.run.desired, yard.run.state) == ("run", "running")


def test_only_administrators_enter_the_admin_pages() -> None:
    assert signed_in(Role.OPERATOR).get("/admin/").status_code == 302
    client = signed_in(Role.ADMIN)
    index = client.get("/admin/").content.decode()
    for address in [link for link in links(index) if link.startswith("/admin/") and "logout" not in link]:
        assert client.get(address).status_code == 200, address


def test_gold_patches_are_visible_to_operators_only() -> None:
    yard = make_yard(iterations=1, group_size=2)
    key = yard.tasks[0].key
    addresses = (
        f"/datasets/quickstart/tasks/{key}/",
        f"/runs/{yard.run.pk}/train/0/{key}/0/",
        f"/api/v1/datasets/quickstart/tasks/{key}",
    )
    for address in addresses:
        assert "# gold" not in signed_in(Role.VIEWER).get(address).content.decode()
        assert "# gold" in signed_in(Role.OPERATOR).get(address).content.decode()


def test_highest_role_of_a_user_counts() -> None:
    user = make_user("ada", Role.VIEWER)
    for name in (Role.OPERATOR, "others"):
        user.groups.add(Group.objects.get_or_create(name=name)[0])
    assert role_of(user) is Role.OPERATOR


def test_api_tokens_have_the_role_of_their_user() -> None:
    for role, status in ((Role.VIEWER, 200), (None, 403)):
        user = make_user(f"token-{role}", Role.VIEWER)
        token = accounts.create_token(user=user, name="t")
        if role is None:
            user.groups.clear()
        for address in ("/metrics", "/api/v1/runs"):
            for sent, expected in ((token, status), (f"{token}x", 401)):
                answer = Client().get(address, headers={"Authorization": f"Bearer {sent}"})
                assert answer.status_code == expected, (address, role)
    assert Client().get("/metrics", headers={"Authorization": "Basic eDp5"}).status_code == 401
