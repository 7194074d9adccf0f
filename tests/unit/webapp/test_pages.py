"""Every page on a populated yard: who may open it, what it shows, that it never runs what models wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from tests.builders.html_regions import form_targets, links
from tests.builders.page_builders import Yard, add_iteration, make_dataset, make_yard
from tests.builders.sandbox_builders import lease, pool
from tests.builders.web_builders import make_run, make_user
from webapp.contexts.account import AccountContext
from webapp.contexts.dataset.datasets import DatasetContext, DatasetListContext, TaskContext
from webapp.contexts.dataset.health import HealthContext
from webapp.contexts.dataset.imports import ImportFormContext, LeftOutContext
from webapp.contexts.endpoints import EndpointsContext
from webapp.contexts.evaluation.evaluation_comparison import CompareContext
from webapp.contexts.evaluation.evaluation_report import ReportContext
from webapp.contexts.evaluation.evaluation_submission import SubmissionContext
from webapp.contexts.evaluation.evaluation_task import TaskComparisonContext
from webapp.contexts.forms.new_run import RunFormContext
from webapp.contexts.rollout.groups import GroupContext
from webapp.contexts.rollout.trajectories import SearchContext, TrajectoryContext
from webapp.contexts.run.experiments import ExperimentContext, ExperimentListContext
from webapp.contexts.run.iterations import IterationContext
from webapp.contexts.run.overview import OverviewContext
from webapp.contexts.run.run_comparison import RunComparisonContext
from webapp.contexts.run.run_tabs import TABS
from webapp.contexts.run.runs import RunDetailContext, RunListContext
from webapp.contexts.sandboxes import PoolContext
from webapp.models import Trajectory
from webapp.permissions import Role
from webapp.templatetags import yard as yard_tags

pytestmark = pytest.mark.django_db
TEMPLATES = Path(__file__).resolve().parents[3] / "templates"
PUBLIC = {"login", "logout", "healthz", "outage-banner"}
HOSTILE = """<script>alert(1)</script>"'><img src=x onerror=alert(1)>{{7*7}}\u202e😀"""


def signed_in(role: Role | None) -> Client:
    client = Client()
    name = f"user-{role}"
    client.force_login(User.objects.filter(username=name).first() or make_user(name, role))
    return client


def pages(yard: Yard) -> dict[str, tuple[type[Any], str]]:
    """One address of every kind of page, with its dataclass."""
    run, key = yard.run.pk, yard.tasks[0].key
    return {
        "overview": (OverviewContext, "/"),
        "runs": (RunListContext, "/runs/"),
        "new": (RunFormContext, "/runs/new/?recipe=quickstart"),
        "clone": (RunFormContext, f"/runs/new/?clone={run}"),
        **{f"run-{tab}": (RunDetailContext, f"/runs/{run}/?tab={tab}") for tab in TABS},
        "iteration": (IterationContext, f"/runs/{run}/train/0/"),
        "evaluation": (IterationContext, f"/runs/{run}/eval:heldout/0/"),
        "report": (ReportContext, f"/evaluations/{run}/eval:heldout/0/"),
        "submission": (SubmissionContext, f"/evaluations/{run}/eval:heldout/0/submission/"),
        "comparison": (
            CompareContext,
            f"/evaluations/compare/?first={run}:train:0&second={run}:eval:heldout:0",
        ),
        "comparison of runs": (RunComparisonContext, f"/runs/compare/?runs={run}"),
        "comparison of a task": (
            TaskComparisonContext,
            f"/evaluations/compare/{key}/?first={run}:train:0&second={run}:eval:heldout:0",
        ),
        "group": (GroupContext, f"/runs/{run}/train/0/{key}/"),
        "trajectory": (TrajectoryContext, f"/runs/{run}/train/0/{key}/0/"),
        "live": (TrajectoryContext, f"/runs/{run}/train/{yard.iterations}/{key}/0/"),
        "sandboxes": (PoolContext, "/sandboxes/"),
        "sandboxes of a run": (PoolContext, f"/sandboxes/?run={run}"),
        "search": (SearchContext, "/trajectories/?q=line"),
        "account": (AccountContext, "/account/"),
        "endpoints": (EndpointsContext, "/endpoints/"),
        "experiments": (ExperimentListContext, "/experiments/"),
        "experiment": (ExperimentContext, f"/experiments/{yard.experiment.pk}/"),
        "datasets": (DatasetListContext, "/datasets/"),
        "import": (ImportFormContext, "/imports/new/"),
        "left out": (LeftOutContext, "/datasets/quickstart/left-out/"),
        "dataset": (DatasetContext, "/datasets/quickstart/"),
        "health": (HealthContext, "/datasets/quickstart/health/"),
        "task": (TaskContext, f"/datasets/quickstart/tasks/{key}/"),
    }


def test_each_page_shows_exactly_its_dataclass() -> None:
    yard = make_yard(iterations=1, group_size=2)
    client = signed_in(Role.OPERATOR)
    sources = "\n".join(path.read_text() for path in TEMPLATES.rglob("*.html"))
    sources += Path(yard_tags.__file__).read_text()  # the tag ``query`` reads ``params``
    for name, (dataclass, address) in pages(yard).items():
        response = client.get(address)
        assert response.status_code == 200, name
        given = response.context.keys()
        for field in fields(dataclass):
            assert field.name in given, f"{name} is not given {field.name}"
            assert re.search(rf"\b{field.name}\b", sources), f"no template shows {field.name} of {name}"


def test_empty_pages_say_what_will_be_here() -> None:
    client = signed_in(Role.OPERATOR)
    for address in ("/", "/runs/", "/trajectories/", "/sandboxes/", "/experiments/", "/datasets/"):
        text = client.get(address).content.decode()
        assert any(words in text for words in (" yet", "Nothing is running", "No sandboxes in use")), address
    run = make_run()
    for tab in TABS:
        response = client.get(f"/runs/{run.pk}/?tab={tab}")
        assert response.status_code == 200
    assert "–" in client.get(f"/runs/{run.pk}/").content.decode()


# --- access --------------------------------------------------------------------------------------


def patterns(resolver: URLResolver | None = None) -> Iterator[URLPattern]:
    for entry in (resolver or get_resolver()).url_patterns:
        if isinstance(entry, URLResolver):
            if entry.namespace not in ("admin", "api"):
                yield from patterns(entry)
        else:
            yield entry


def test_every_address_is_gated() -> None:
    for pattern in patterns():
        assert pattern.name in PUBLIC or hasattr(pattern.callback, "least_role"), pattern


def arguments(pattern: URLPattern, yard: Yard) -> dict[str, Any]:
    trajectory = Trajectory.objects.filter(run=yard.run, phase="train").earliest("id")
    known = {
        "run_id": yard.run.pk, "phase": "train", "iteration": 0, "task_key": yard.tasks[0].key, "index": 0,
        "alert_id": yard.run.alerts.earliest("id").pk, "trajectory_id": trajectory.pk,
        "sign_in_id": 1, "experiment_id": yard.experiment.pk, "name": "quickstart", "key": yard.tasks[0].key,
    }  # fmt: skip
    return {name: known[name] for name in pattern.pattern.converters}


def test_roles_on_every_address() -> None:
    yard = make_yard(iterations=1, group_size=2)
    clients = {role: signed_in(role) for role in (None, Role.VIEWER, Role.OPERATOR, Role.ADMIN)}
    for pattern in patterns():
        if pattern.name in PUBLIC:
            continue
        address = reverse(str(pattern.name), kwargs=arguments(pattern, yard))
        anonymous = Client().get(address)
        assert anonymous.status_code == 302, address
        assert anonymous["Location"].startswith("/login/?next=")
        for role, client in clients.items():
            least = vars(pattern.callback)["least_role"]
            allowed = role is not None and role.includes(least)
            status = client.get(address).status_code
            found = (404,) if pattern.name == "run-checkpoint" else (200, 405)  # none is on this disk
            assert status in (found if allowed else (403,)), (address, role)


def test_viewers_cannot_change_anything() -> None:
    yard = make_yard(iterations=1, group_size=2)
    viewer = signed_in(Role.VIEWER)
    for action in ("start", "stop", "pause", "resume"):
        assert viewer.post(f"/runs/{yard.run.pk}/{action}/").status_code == 403
    assert viewer.post("/runs/new/", {"recipe": "quickstart"}).status_code == 403
    assert viewer.get("/admin/").status_code == 302
    yard.run.refresh_from_db()
    assert yard.run.desired == "run"
    page = viewer.get(f"/runs/{yard.run.pk}/").content.decode()
    assert not [target for target in form_targets(page) if "/runs/" in target]


def test_only_admins_enter_the_admin_pages() -> None:
    assert signed_in(Role.OPERATOR).get("/admin/").status_code == 302
    client = signed_in(Role.ADMIN)
    index = client.get("/admin/").content.decode()
    for address in [link for link in links(index) if link.startswith("/admin/") and "logout" not in link]:
        assert client.get(address).status_code == 200, address


def test_answers_are_for_operators() -> None:
    yard = make_yard(iterations=1, group_size=2)
    key = yard.tasks[0].key
    for address in (f"/datasets/quickstart/tasks/{key}/", f"/runs/{yard.run.pk}/train/0/{key}/0/"):
        assert "# gold" not in signed_in(Role.VIEWER).get(address).content.decode()
        assert "# gold" in signed_in(Role.OPERATOR).get(address).content.decode()


def test_error_pages() -> None:
    client = signed_in(Role.VIEWER)
    missing = client.get("/runs/999999999/")
    assert missing.status_code == 404
    assert "There is no run 999999999" in missing.content.decode()
    assert client.get("/runs/99999999999999999999999/").status_code == 404
    assert "needs the role operator" in client.get("/runs/new/").content.decode()
    broken = Client(raise_request_exception=False)
    assert broken.get("/static-nothing").status_code == 404


# --- hostile content ------------------------------------------------------------------------------


def test_nothing_a_model_wrote_is_ever_markup() -> None:
    yard = make_yard(iterations=1, group_size=2, mark=HOSTILE)
    client = signed_in(Role.ADMIN)
    for name, (_, address) in pages(yard).items():
        response = client.get(address)
        text = response.content.decode()
        assert response.status_code == 200, name
        assert "<script>alert" not in text, name
        assert "<img" not in text, name
        assert "49" not in re.findall(r"alert\(1\)&gt;(\d+)", text), name
        policy = response["Content-Security-Policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy


def test_whole_texts_are_plain_text() -> None:
    yard = make_yard(iterations=1, group_size=2, mark=HOSTILE)
    trajectory = Trajectory.objects.filter(run=yard.run, phase="train").earliest("id")
    client = signed_in(Role.VIEWER)
    for part in ("observation", "thought", "response"):
        response = client.get(f"/trajectories/{trajectory.pk}/steps/0/{part}/")
        assert response["Content-Type"] == "text/plain; charset=utf-8"
        assert response["X-Content-Type-Options"] == "nosniff"
        assert HOSTILE in response.content.decode()


def test_odd_task_ids_have_addresses() -> None:
    yard = make_yard(iterations=1, group_size=2)
    client = signed_in(Role.VIEWER)
    for key in ("a/b", "../..", "~2F", ".", "ü b?c#d%2F", "<b>"):
        ref = {"iteration": 0, "phase": "train", "task_id": key, "index": 0}
        yard.stream.trajectory(ref, steps=1)
        yard.post()
        address = reverse("trajectory-detail", args=[yard.run.pk, "train", 0, key, 0])
        page = client.get(address)
        assert page.status_code == 200, key
        assert page.context["trajectory"].task_key == key


# --- links ----------------------------------------------------------------------------------------


def test_no_dead_link() -> None:
    make_yard(iterations=1, group_size=2)
    client = signed_in(Role.ADMIN)
    seen: set[str] = set()
    shapes: dict[str, int] = {}
    queue = ["/"]
    while queue:
        address = queue.pop()
        path, _, query = address.partition("?")
        # Rows of one kind lead to pages of one kind: a few of each are enough.
        shape = re.sub(r"\d+|quic\w+", "N", path) + re.sub(r"=[^&]*", "=", query)
        if address in seen or shapes.get(shape, 0) >= 4 or path.startswith("/admin"):
            continue
        seen.add(address)
        shapes[shape] = shapes.get(shape, 0) + 1
        response = client.get(address)
        assert response.status_code == 200, address
        page = response.content.decode()
        for link in links(page):
            if link.startswith("?"):
                queue.append(path + link.replace("&amp;", "&"))
            elif link.startswith("/"):
                queue.append(link.split("#")[0].replace("&amp;", "&"))
            else:
                assert link.startswith("#"), link
        for target in form_targets(page):
            get_resolver().resolve(target)
    assert len(seen) > 40


# --- queries --------------------------------------------------------------------------------------


def count_queries(client: Client, address: str) -> int:
    client.get(address)
    with CaptureQueriesContext(connection) as captured:
        assert client.get(address).status_code == 200
    return len(captured)


def test_lists_take_as_many_queries_for_20_rows_as_for_10() -> None:
    yard = make_yard(iterations=1, group_size=10)
    yard.stream.add("sandboxes_changed", records=[lease(0, sandbox_id="sb-live"), lease(1, "failed")])
    yard.stream.add("pool_status", **pool())
    yard.post()
    client = signed_in(Role.OPERATOR)
    run, key = yard.run.pk, yard.tasks[0].key
    addresses = [
        "/", "/runs/", f"/runs/{run}/", *[f"/runs/{run}/?tab={tab}" for tab in TABS],
        f"/runs/{run}/train/0/", f"/runs/{run}/train/0/{key}/", f"/runs/{run}/train/0/{key}/0/",
        "/trajectories/", "/trajectories/?q=line", "/sandboxes/", "/metrics",
        "/experiments/", f"/experiments/{yard.experiment.pk}/",
        "/datasets/", "/datasets/quickstart/", "/datasets/quickstart/?health=flaky",
        "/datasets/quickstart/health/", f"/datasets/quickstart/tasks/{key}/",
    ]  # fmt: skip
    before = {address: count_queries(client, address) for address in addresses}
    yard.group_size = 2
    for iteration in range(1, 11):
        add_iteration(yard, iteration)
    records = [lease(number, sandbox_id="sb-live") for number in range(20)]
    yard.stream.add("sandboxes_changed", records=[*records, *(lease(n, "failed") for n in range(20, 40))])
    for index in range(10, 20):
        yard.stream.trajectory(yard.ref(0, 0, index), steps=20)
    yard.post()
    for number in range(10):
        make_dataset(f"other{number}", tasks=1)
        make_run(name=f"another {number}")
    after = {address: count_queries(client, address) for address in addresses}
    assert after == before
