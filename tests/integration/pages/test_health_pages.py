"""Health page, its live updates and actions, and the same through the API."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from engine.datasets.health import row_content
from engine.datasets.store import save_dataset
from engine.events.health import MutantCoverage, RowStatus, Side, SideOutcome, append
from engine.grading.counterfactual.base import Reference
from engine.grading.counterfactual.store import FileReferences
from engine.types import TaskRow, Verdict
from tests.builders.commands import run_command
from tests.builders.web.event_builders import Stream
from tests.builders.web.html_regions import inner_html, tight
from tests.builders.web.web_builders import bearer, make_user, post, signed_in
from tests.unit.datasets.test_health import make_row, record, strength
from webapp.accounts.services import accounts
from webapp.core.permissions import Role
from webapp.datasets.services import datasets
from webapp.live.fragments import Subscription, snapshot
from webapp.models import Run, Task
from webapp.runs.services import attempts

pytestmark = pytest.mark.django_db
STATUSES = (
    RowStatus.VALID,
    RowStatus.VALID,
    RowStatus.NOOP_PASSES,
    RowStatus.GOLD_FAILS,
    RowStatus.FLAKY,
    RowStatus.INFRA,
)
SIDES = {
    RowStatus.VALID: ("failed", "passed"), RowStatus.NOOP_PASSES: ("passed", "passed"),
    RowStatus.GOLD_FAILS: ("failed", "failed"), RowStatus.FLAKY: ("failed", "flaky"),
    RowStatus.INFRA: ("infra", "infra"),
}  # fmt: skip


@pytest.fixture
def rows(settings: Any, tmp_path: Path) -> list[TaskRow]:
    """Seven rows, the last of which was never validated."""
    settings.TRAINYARD_HOME = tmp_path
    task_rows = [make_row(f"row-{number}") for number in range(7)]
    save_dataset(tmp_path, "d", task_rows, {})
    records = [
        record(row, status, **_sides(status), flaky_tests=["t::a"] if status is RowStatus.FLAKY else [])
        for row, status in zip(task_rows, STATUSES, strict=False)
    ]
    append(tmp_path / "datasets" / "d", records)
    datasets.sync(name="d")
    return task_rows


def _sides(status: RowStatus) -> dict[str, Any]:
    verdicts = {
        "passed": [Verdict.PASSED] * 2, "failed": [Verdict.FAILED] * 2,
        "flaky": [Verdict.PASSED, Verdict.FAILED], "infra": [Verdict.INFRA_ERROR],
    }  # fmt: skip
    return {
        name: Side(outcome=SideOutcome(outcome), verdicts=verdicts[outcome], seconds=[0.4, 0.8])
        for name, outcome in zip(("noop", "gold"), SIDES[status], strict=True)
    }


def text(of: Client, address: str) -> str:
    response = of.get(address)
    assert response.status_code == 200
    return response.content.decode()


def test_health_page_counts_every_task(rows: list[TaskRow]) -> None:
    context = signed_in(Role.VIEWER).get("/datasets/d/health/").context
    assert {count.status: count.tasks for count in context["statuses"]} == {
        "valid": 2, "noop_passes": 1, "gold_fails": 1, "flaky": 1, "infra": 1, "": 1,
    }  # fmt: skip
    assert (context["num_validated"], context["num_quarantined"]) == (6, 3)
    cells = {(c.noop, c.gold): c.tasks for _, row in context["matrix"] for c in row if c.tasks}
    assert cells == {
        ("failed", "passed"): 2, ("passed", "passed"): 1, ("failed", "failed"): 1, ("failed", "flaky"): 1,
        ("infra", "infra"): 1,
    }  # fmt: skip
    assert [task.instance_id for task in context["quarantined"].rows] == ["row-2", "row-3", "row-4"]
    assert [bin.amounts for bin in context["time_bins"]] == [(6, 6)]
    assert context["times"][0][1].median == pytest.approx(0.6)


def test_health_page_and_api_count_mutated_tests(rows: list[TaskRow], tmp_path: Path) -> None:
    viewer = signed_in(Role.VIEWER)
    assert viewer.get("/datasets/d/health/").context["mutants"] is None
    coverage = (
        MutantCoverage(value=700, changed=1200, added=30, none=4, variants=3),
        MutantCoverage(none=5, note="no test file in a known language was found"),
    )
    records = [
        record(row, RowStatus.VALID, coverage=row_coverage, run="9", time=2.0)
        for row, row_coverage in zip(rows, coverage, strict=False)
    ]
    append(tmp_path / "datasets" / "d", records)
    datasets.sync(name="d")

    token = accounts.create_token(user=make_user("api", Role.VIEWER), name="t")
    api = bearer(token)
    counts = {
        "value": 700, "changed": 1200, "added": 30, "none": 9,
        "tasks": 2, "tasks_without": 1, "tasks_failed": 0,
    }  # fmt: skip
    assert api.get("/api/v1/datasets/d/health").json()["mutants"] == counts
    shown = tight(inner_html(text(viewer, "/datasets/d/health/"), "health-body"))
    assert "1,939 tests of 2 tasks" in shown.replace("\u202f", ",")
    assert "not audited" in shown
    page = text(viewer, f"/datasets/d/tasks/{rows[1].task.id}/")
    assert "0 by value, 0 by condition, 0 by assertion, 5 not mutable" in page
    assert "no test file in a known language was found" in page
    task_health = api.get(f"/api/v1/datasets/d/tasks/{rows[0].task.id}/health").json()
    assert task_health["validations"][0]["coverage"] == coverage[0].model_dump()
    assert task_health["validations"][1]["coverage"] is None


def test_test_strength_is_shown_filtered_sorted_and_exported(rows: list[TaskRow], tmp_path: Path) -> None:
    viewer = signed_in(Role.VIEWER)
    assert viewer.get("/datasets/d/health/").context["strength"] is None
    records = [
        record(rows[0], RowStatus.VALID, run="9", time=2.0, strength=strength(9, 10)),
        record(rows[1], RowStatus.VALID, run="9", time=2.0, strength=strength(2, 4)),
    ]
    append(tmp_path / "datasets" / "d", records)
    datasets.sync(name="d")

    context = viewer.get("/datasets/d/health/").context
    assert context["strength"].kinds == {"fault": (11, 14)}
    assert [(bin.label, bin.amounts) for bin in context["strength_bins"] if any(bin.amounts)] == [
        ("50 – 60\u202f%", (1,)),
        ("90 – 100\u202f%", (1,)),
    ]
    assert [task.instance_id for task in context["weakest"]] == ["row-1", "row-0"]
    weakest_first = viewer.get("/datasets/d/?order=weakest").context["rows"]
    assert [line.task.instance_id for line in weakest_first][:3] == ["row-1", "row-0", "row-2"]
    strong = viewer.get("/datasets/d/?strength_min=0.6").context["rows"]
    assert [line.task.instance_id for line in strong] == ["row-0"]

    address = f"/datasets/d/tasks/{rows[1].task.id}/"
    assert "of plausible wrong patches rejected: fault 2 of 4" in tight(text(viewer, address))
    assert "a fault in f, a.py:3" not in text(viewer, address)
    assert "a fault in f, a.py:3" in text(signed_in(Role.OPERATOR), address)
    token = accounts.create_token(user=make_user("api", Role.VIEWER), name="t")
    found = bearer(token).get(f"/api/v1/datasets/d/tasks/{rows[1].task.id}/health").json()
    assert found["validations"][0]["strength"] == {
        "kinds": {"fault": {"graded": 4, "rejected": 2}},
        "passed": [],
    }
    weak = bearer(token).get("/api/v1/datasets/d/tasks?strength_max=0.5").json()["items"]
    assert [(task["instance_id"], task["strength"]) for task in weak] == [("row-1", 0.5)]

    exported = [json.loads(line) for line in datasets.export_lines(name="d")]
    assert [line["task"]["instance_id"] for line in exported if "strength" in line] == ["row-0", "row-1"]
    assert exported[0]["strength"] == records[0].model_dump(mode="json")["strength"]


def test_proofs_of_curation_and_first_use_are_shown_before_any_validation(
    settings: Any, tmp_path: Path
) -> None:
    """Proofs of validated rows count too; the newest of several proofs of one content wins."""
    settings.TRAINYARD_HOME = tmp_path
    rows = [make_row(f"row-{number}") for number in range(3)]
    save_dataset(tmp_path, "d", rows, {})
    store = FileReferences(tmp_path / "datasets" / "d")
    failed = Reference(content=row_content(rows[1]), problem="the sandbox did not start")
    asyncio.run(store.save(rows[1], failed))
    asyncio.run(store.save(rows[0], Reference(content="another", problem="of other content")))
    asyncio.run(store.save(rows[0], Reference(content=row_content(rows[0]), note="no test file")))
    datasets.sync(name="d")

    viewer = signed_in(Role.VIEWER)
    context = viewer.get("/datasets/d/health/").context
    assert context["num_validated"] == 0
    counts = context["mutants"]
    assert (counts.tasks, counts.tasks_without, counts.tasks_failed) == (2, 1, 1)
    shown = tight(inner_html(text(viewer, "/datasets/d/health/"), "health-body"))
    assert "the sandbox did not start" in shown
    pages = [text(viewer, f"/datasets/d/tasks/{row.task.id}/") for row in rows]
    assert "no test file" in pages[0]
    assert "the proof failed: the sandbox did not start" in pages[1]
    assert "not proven yet" in pages[2]

    token = accounts.create_token(user=make_user("api", Role.VIEWER), name="t")
    api = bearer(token)
    proofs = [api.get(f"/api/v1/datasets/d/tasks/{row.task.id}/health").json()["proof"] for row in rows]
    assert proofs[0]["coverage"]["note"] == "no test file"
    assert (proofs[1]["problem"], proofs[1]["coverage"]) == ("the sandbox did not start", None)
    assert proofs[2] is None

    append(
        tmp_path / "datasets" / "d",
        [record(rows[1], RowStatus.VALID, coverage=MutantCoverage(changed=2, variants=3), run="9", time=9e9)],
    )
    datasets.sync(name="d")
    out = run_command("dataset", "sync", "d")
    counts = viewer.get("/datasets/d/health/").context["mutants"]
    assert (counts.changed, counts.tasks_failed) == (2, 0)
    assert json.loads(out.splitlines()[1]) == {"mutated_tests": asdict(counts)}


def test_a_validation_is_started_and_watched_live(rows: list[TaskRow]) -> None:
    operator = signed_in(Role.OPERATOR)
    form = {"rows": "unvalidated", "split": "train", "repeats": "2", "backend": "local"}
    response = operator.post("/datasets/d/validate/", form)
    assert response["Location"] == "/datasets/d/health/"
    run = Run.objects.get(recipe="validate-dataset")
    assert (run.state, run.created_by) == ("queued", response.wsgi_request.user)
    assert run.config["validation"] | {"rows": "unvalidated", "repeats": 2} == run.config["validation"]
    run, claim = launched_again(run)
    stream = Stream()
    stream.started()
    stream.add("run_progress", message="validated: 1 flaky", done=1, total=1)
    stream.add(
        "task_validated", record=record(rows[6], RowStatus.FLAKY, run=str(run.pk)).model_dump(mode="json")
    )
    post(claim, stream)
    page = text(operator, "/datasets/d/health/")
    assert 'data-live-page="health"' in page
    assert "validated: 1 flaky" in page
    live = snapshot(Subscription("health", run.pk, ("d",), (), Role.OPERATOR))
    assert tight(live.html["health-body"]) == tight(inner_html(page, "health-body"))
    stream.add(
        "run_finished", state="succeeded", summary={"dataset": "d", "rows": 1, "flaky": 1, "seconds": 2.0}
    )
    post(claim, stream, 3)
    assert "data-live-page" not in text(operator, "/datasets/d/health/")
    entries = [row.text for row in operator.get(f"/runs/{run.pk}/").context["panel"].rows]
    assert entries[0] == "succeeded"
    assert entries[1].startswith(f"{rows[6].task.id}: flaky")
    kinds = dict(operator.get(f"/runs/{run.pk}/").context["panel"].kinds)
    assert "task_validated" in kinds
    assert not kinds.keys() & {"validation", "decision"}, "records are no events"


def launched_again(run: Run) -> Any:
    claim = attempts.claim_launch(run_id=run.pk)
    assert claim is not None
    run.refresh_from_db()
    return run, claim


def test_api_returns_the_health_and_performs_the_actions_of_the_page(rows: list[TaskRow]) -> None:
    def caller(role: Role) -> Client:
        token = accounts.create_token(user=make_user(f"api-{role}", role), name="t", scope=role)
        return bearer(token)

    def send(of: Client, path: str, body: Any) -> Any:
        return of.post(f"/api/v1{path}", json.dumps(body), content_type="application/json")

    viewer, operator = caller(Role.VIEWER), caller(Role.OPERATOR)
    health = viewer.get("/api/v1/datasets/d/health").json()
    assert (health["num_validated"], health["num_quarantined"], health["statuses"]["valid"]) == (6, 3, 2)
    task = f"/datasets/d/tasks/{rows[4].task.id}"
    task_health = viewer.get(f"/api/v1{task}/health").json()
    assert (task_health["health"], task_health["validations"][0]["flaky_tests"]) == ("flaky", ["t::a"])
    assert task_health["solve_rate"] | {"kind": "unmeasured", "graded": 0} == task_health["solve_rate"]
    listed = viewer.get("/api/v1/datasets/d/tasks?health=quarantined").json()
    assert [item["instance_id"] for item in listed["items"]] == ["row-2", "row-3", "row-4"]
    assert viewer.get("/api/v1/datasets/d/tasks?solved=unmeasured").json()["total"] == 7
    decision = {"quarantined": False, "reason": "fine"}
    assert send(viewer, f"{task}/quarantine", decision).status_code == 403
    assert send(operator, f"{task}/quarantine", decision).json()["quarantined"] is False
    assert send(operator, f"{task}/quarantine", {"quarantined": True, "reason": ""}).status_code == 422
    assert send(viewer, "/datasets/d/validate", {}).status_code == 403
    created = send(operator, "/datasets/d/validate", {"repeats": 1, "overrides": {"grading.max_parallel": 5}})
    assert (created.status_code, created.json()["kind"]) == (201, "validate")
    assert Run.objects.get(pk=created.json()["id"]).config["grading"]["max_parallel"] == 5
    assert send(operator, "/datasets/d/validate", {"rows": "nonsense"}).status_code == 422


def test_operators_harden_a_dataset_from_its_health_page(rows: list[TaskRow], tmp_path: Path) -> None:
    operator = signed_in(Role.OPERATOR)
    assert "Start hardening" in operator.get("/datasets/d/health/").content.decode()
    form = {"output": "d-hard", "wrong_patches": "8", "alternatives_of": "7, 8", "backend": "docker"}
    page = operator.post("/datasets/d/harden/", form, follow=True).content.decode()
    assert "there is no run &#x27;7&#x27; with trajectories" in page
    assert 'value="d-hard"' in page, "what was typed is kept"
    for name in ("7", "8"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    answer = operator.post("/datasets/d/harden/", form)
    run = Run.objects.get(kind="curate")
    assert answer.headers["location"] == f"/runs/{run.pk}/"
    assert (run.config["source"], run.config["sandbox"]["backend"]) == ("hardening", "docker")
    assert run.dataset is not None
    assert run.dataset.name == "d"
    curation = {"dataset": "d", "output": "d-hard", "wrong_patches": 8, "alternatives_of": ["7", "8"]}
    assert run.config["curation"] | curation == run.config["curation"]
    summary = {"tasks": 7, "hardened": 3, "tests_added": 5}
    Run.objects.filter(pk=run.pk).update(state="succeeded", summary=summary)
    results = operator.get(f"/runs/{run.pk}/").content.decode()
    assert "a weak task is hardened by tests" in results
    assert "Candidate faults" not in results
    page = operator.post("/datasets/d/harden/", {"output": "d"}, follow=True).content.decode()
    assert "No hardening was started" in page
    assert "there is a dataset &#x27;d&#x27; already" in page
    assert Run.objects.filter(kind="curate").count() == 1


def test_commands_and_api_start_hardenings_and_measurements_of_test_strength(rows: list[TaskRow]) -> None:
    started = json.loads(run_command("dataset", "harden", "d", "--output", "d-hard", "--no-wait", "--json"))
    assert Run.objects.get(pk=started["id"]).config["curation"]["output"] == "d-hard"
    run_command("dataset", "validate", "d", "--wrong-patches", "9", "--no-wait", "--json")
    assert Run.objects.get(kind="validate").config["validation"]["wrong_patches"] == 9
    tokens = {
        role: accounts.create_token(user=make_user(f"{role}-api", role), name="t", scope=role)
        for role in (Role.VIEWER, Role.OPERATOR)
    }
    body = {"output": "d-harder", "overrides": {"curation.max_tests": 3}}
    answers = {
        role: bearer(token).post(
            "/api/v1/datasets/d/harden", json.dumps(body), content_type="application/json"
        )
        for role, token in tokens.items()
    }
    assert answers[Role.VIEWER].status_code == 403
    assert answers[Role.OPERATOR].status_code == 201
    run = Run.objects.get(pk=answers[Role.OPERATOR].json()["id"])
    assert (run.config["curation"]["output"], run.config["curation"]["max_tests"]) == ("d-harder", 3)


def test_nul_characters_are_removed_or_refused(rows: list[TaskRow]) -> None:
    operator = signed_in(Role.OPERATOR)
    task = f"/datasets/d/tasks/{rows[0].task.id}"
    reason = {"quarantined": "yes", "reason": "odd\0row"}
    assert operator.post(f"{task}/quarantine/", reason).status_code == 302
    assert Task.objects.get(key=rows[0].task.id).quarantine_reason == "oddrow"
    assert operator.get("/datasets/d%00/").status_code == 404
    body = json.dumps({"quarantined": True, "reason": "odd\0row"})
    answer = operator.post(f"/api/v1{task}/quarantine", body, content_type="application/json")
    assert (answer.status_code, "NUL" in answer.json()["detail"]) == (422, True)
    assert operator.get("/api/v1/datasets/d/tasks?q=%00").status_code == 422
