"""All pages of a populated yard: working links, escaped model output, and bounded query counts."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import get_resolver, reverse

from tests.builders.sandbox_builders import lease, pool
from tests.builders.web.html_regions import form_targets, links
from tests.builders.web.page_builders import Yard, add_iteration, make_dataset, make_yard
from tests.builders.web.web_builders import make_run, signed_in
from webapp.core.permissions import Role
from webapp.models import Trajectory
from webapp.rollouts.services import passages
from webapp.runs.kinds import TABS

pytestmark = pytest.mark.django_db
HOSTILE = """<script>alert(1)</script>"'><img src=x onerror=alert(1)>{{7*7}}\u202e😀"""


def pages(yard: Yard) -> dict[str, str]:
    """Return one address of every kind of page."""
    run, key = yard.run.pk, yard.tasks[0].key
    pair = f"first={run}:train:0&second={run}:eval:heldout:0"
    return {
        "overview": "/",
        "runs": "/runs/",
        "new": "/runs/new/?recipe=quickstart",
        "clone": f"/runs/new/?clone={run}",
        **{f"run-{tab}": f"/runs/{run}/?tab={tab}" for tab in TABS},
        "iteration": f"/runs/{run}/train/0/",
        "evaluation": f"/runs/{run}/eval:heldout/0/",
        "report": f"/evaluations/{run}/eval:heldout/0/",
        "submission": f"/evaluations/{run}/eval:heldout/0/submission/",
        "comparison": f"/evaluations/compare/?{pair}",
        "comparison of runs": f"/runs/compare/?runs={run}",
        "comparison of a task": f"/evaluations/compare/{key}/?{pair}",
        "group": f"/runs/{run}/train/0/{key}/",
        "trajectory": f"/runs/{run}/train/0/{key}/0/",
        "live": f"/runs/{run}/train/{yard.iterations}/{key}/0/",
        "sandboxes": "/sandboxes/",
        "sandboxes of a run": f"/sandboxes/?run={run}",
        "search": "/trajectories/?q=line",
        "account": "/account/",
        "tokens": "/account/tokens/",
        "password": "/account/password/",
        "endpoints": "/endpoints/",
        "experiments": "/experiments/",
        "experiment": f"/experiments/{yard.experiment.pk}/",
        "datasets": "/datasets/",
        "import": "/imports/new/",
        "left out": "/datasets/quickstart/left-out/",
        "dataset": "/datasets/quickstart/",
        "health": "/datasets/quickstart/health/",
        "task": f"/datasets/quickstart/tasks/{key}/",
    }


def test_empty_pages_explain_what_will_appear() -> None:
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


def test_error_pages_explain_missing_pages_roles_and_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    client = signed_in(Role.VIEWER)
    missing = client.get("/runs/999999999/")
    assert missing.status_code == 404
    assert "There is no run 999999999" in missing.content.decode()
    assert client.get("/runs/99999999999999999999999/").status_code == 404
    assert "needs the role operator" in client.get("/runs/new/").content.decode()
    assert client.get("/static-nothing").status_code == 404

    def fail(**_arguments: object) -> None:
        raise ValueError("hunter2")

    monkeypatch.setattr("webapp.overview.views.overview.build_overview", fail)
    client.raise_request_exception = False
    broken = client.get("/")
    assert broken.status_code == 500
    text = broken.content.decode()
    assert "Server error" in text
    assert "The error was logged" in text
    assert "hunter2" not in text


# --- hostile content ------------------------------------------------------------------------------


def test_model_output_is_never_rendered_as_markup() -> None:
    yard = make_yard(iterations=1, group_size=2, mark=HOSTILE)
    passages.index_pending()
    client = signed_in(Role.ADMIN)
    for name, address in pages(yard).items():
        response = client.get(address)
        text = response.content.decode()
        assert response.status_code == 200, name
        assert "<script>alert" not in text, name
        assert "<img" not in text, name
        assert "49" not in re.findall(r"alert\(1\)&gt;(\d+)", text), name
        policy = response["Content-Security-Policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy


def test_whole_texts_of_steps_are_served_as_plain_text() -> None:
    yard = make_yard(iterations=1, group_size=2, mark=HOSTILE)
    trajectory = Trajectory.objects.filter(run=yard.run, phase="train").earliest("id")
    client = signed_in(Role.VIEWER)
    for part in ("observation", "thought", "response"):
        response = client.get(f"/trajectories/{trajectory.pk}/steps/0/{part}/")
        assert response["Content-Type"] == "text/plain; charset=utf-8"
        assert response["X-Content-Type-Options"] == "nosniff"
        assert HOSTILE in response.content.decode()


def test_unusual_task_ids_have_working_addresses() -> None:
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


def test_pages_have_no_dead_links() -> None:
    make_yard(iterations=1, group_size=2)
    client = signed_in(Role.ADMIN)
    seen: set[str] = set()
    shapes: dict[str, int] = {}
    queue = ["/"]
    while queue:
        address = queue.pop()
        path, _, query = address.partition("?")
        # Rows of one kind link to pages of one kind; two of each are enough.
        shape = re.sub(r"\d+|quic\w+", "N", path) + re.sub(r"=[^&]*", "=", query)
        if address in seen or shapes.get(shape, 0) >= 2 or path.startswith("/admin"):
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
    with CaptureQueriesContext(connection) as captured:
        assert client.get(address).status_code == 200
    return len(captured)


def test_query_count_of_pages_is_independent_of_the_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webapp.runs.selectors.runs.STALE_AFTER", timedelta(hours=1))  # on a busy machine
    yard = make_yard(iterations=1, group_size=2)
    yard.stream.add("sandboxes_changed", records=[lease(0, sandbox_id="sb-live"), lease(1, "failed")])
    yard.stream.add("pool_status", **pool())
    yard.post()
    client = signed_in(Role.OPERATOR)
    run, key = yard.run.pk, yard.tasks[0].key
    addresses = [
        "/", "/runs/", f"/runs/{run}/", *[f"/runs/{run}/?tab={tab}" for tab in TABS],
        f"/runs/{run}/train/0/", f"/runs/{run}/train/0/{key}/", f"/runs/{run}/train/0/{key}/0/",
        "/trajectories/", "/trajectories/?q=line&place=thoughts", "/sandboxes/", "/metrics",
        "/experiments/", f"/experiments/{yard.experiment.pk}/",
        "/datasets/", "/datasets/quickstart/", "/datasets/quickstart/?health=flaky",
        "/datasets/quickstart/health/", f"/datasets/quickstart/tasks/{key}/",
    ]  # fmt: skip
    for address in addresses:
        client.get(address)  # fills caches
    passages.index_pending()
    before = {address: count_queries(client, address) for address in addresses}
    for iteration in range(1, 4):
        add_iteration(yard, iteration)
    records = [lease(number, sandbox_id="sb-live") for number in range(5)]
    yard.stream.add("sandboxes_changed", records=[*records, *(lease(n, "failed") for n in range(5, 10))])
    for index in range(2, 6):
        yard.stream.trajectory(yard.ref(0, 0, index), steps=8)
    yard.post()
    for number in range(3):
        make_dataset(f"other{number}", tasks=1)
        make_run(name=f"another {number}")
    passages.index_pending()
    after = {address: count_queries(client, address) for address in addresses}
    assert after == before
