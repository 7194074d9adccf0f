"""Scanners on pages, in the API and in commands: hits, shares, filters, agreement with labels, roles."""

from __future__ import annotations

import json
import re

import pytest

from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.html_regions import inner_html
from tests.builders.web.page_builders import Yard, make_yard
from tests.builders.web.web_builders import signed_in
from webapp.core.permissions import Role
from webapp.live.fragments import Subscription, is_affected
from webapp.models import AuditEntry, EnteredScanner, Run, Scan, Trajectory
from webapp.rollouts.services import annotations as annotation_writes
from webapp.rollouts.services import scanners, scans

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def yard() -> Yard:
    yard = make_yard(iterations=2, group_size=2, mark=HOSTILE)
    key = yard.ref(1, 0, 8)
    yard.stream.add("trajectory_started", ref=key)
    for index, command in enumerate(
        (f"sed -i s/1/2/ tests/test_a.py # {HOSTILE}", "pytest tests", "pytest tests")
    ):
        yard.stream.step(key, index, tool="execute_bash", arguments={"cmd": command}, exit_code=0)
    yard.stream.finished(key, steps=3, reward=0.0)
    yard.post()
    scans.scan_pending()
    return yard


def edited(yard: Yard) -> Trajectory:
    return Trajectory.objects.get(run=yard.run, index=8)


def page_of(row: Trajectory) -> str:
    return f"/runs/{row.run_id}/{row.phase}/{row.iteration}/{row.task_key}/{row.index}/"


def test_hits_link_to_their_steps(yard: Yard) -> None:
    row, client = edited(yard), signed_in(Role.VIEWER)
    panel = inner_html(client.get(page_of(row)).content.decode(), "trajectory-outcome")
    assert re.search(
        r'scanner=edited_tests"[^>]*>edited tests</a>\s*<span class="small"><a href="\?from=0#step-0"', panel
    )
    assert f'title="{HOSTILE}' not in panel
    hits = client.get(f"/api/v1/trajectories/{row.pk}").json()["hits"]
    by_name = {hit["name"]: hit for hit in hits}
    assert by_name["edited_tests"]["first"] == [[0, "tests/test_a.py"]]
    assert (by_name["ran_project_tests"]["count"], by_name["repeated_command"]["first"][0][0]) == (2, 2)
    live = Trajectory.objects.get(run=yard.run, state="running")
    assert client.get(f"/api/v1/trajectories/{live.pk}").json()["hits"] is None
    assert 'id="hits"' not in client.get(page_of(live)).content.decode()


def test_failed_rollouts_that_edited_tests_are_one_query(yard: Yard) -> None:
    row, client = edited(yard), signed_in(Role.VIEWER)
    query = "scanner=edited_tests&verdict=failed"
    page = client.get(f"/trajectories/?{query}")
    assert [found.trajectory.pk for found in page.context["rows"]] == [row.pk]
    assert '<option value="edited_tests" selected>edited tests</option>' in page.content.decode()
    assert [item["id"] for item in client.get(f"/api/v1/trajectories?{query}").json()["items"]] == [row.pk]
    assert client.get("/api/v1/trajectories?scanner=edited_tests&verdict=passed").json()["total"] == 0
    assert client.get("/api/v1/trajectories?scanner=unknown").json()["total"] == 0
    assert run_command("search", "--scanner", "edited_tests", "--verdict", "failed").startswith(page_of(row))


def test_behaviours_of_a_run_are_shown_over_iterations(yard: Yard) -> None:
    client = signed_in(Role.VIEWER)
    page = client.get(f"/runs/{yard.run.pk}/?tab=behaviours")
    panel = inner_html(page.content.decode(), "run-panel")
    assert f"/trajectories/?run={yard.run.pk}&amp;scanner=edited_tests" in panel
    assert panel.count('data-key="behaviour-chart-') == 4, "scanners with hits have charts"
    records = client.get(f"/api/v1/runs/{yard.run.pk}/behaviours").json()
    assert json.loads(run_command("run", "behaviours", yard.run.pk)) == records
    found = {(r["phase"], r["iteration"]): r["found"] for r in records if r["scanner"] == "edited_tests"}
    assert {key: count for key, count in found.items() if count} == {("train", 1): 1}
    tab = Subscription("run", yard.run.pk, (), (("tab", "behaviours"),), Role.VIEWER)
    scanned = {"after": 0, "areas": ["scans"], "groups": [], "rollouts": []}
    assert is_affected(tab, scanned)
    assert not is_affected(Subscription("run", yard.run.pk, (), (("tab", "log"),), Role.VIEWER), scanned)


def test_labels_measure_precision_and_recall(yard: Yard) -> None:
    rows = list(Trajectory.objects.filter(run=yard.run, state="finished", iteration=1, phase="train"))
    hit = edited(yard)
    others = [row for row in rows if row != hit]
    annotation_writes.add(trajectory=hit, kind="label", text="edited tests", step_index=0)
    annotation_writes.add(trajectory=hit, kind="label", text="edited_tests")
    annotation_writes.add(trajectory=hit, kind="label", text="not ran_project_tests")
    annotation_writes.add(trajectory=others[0], kind="label", text="edited_tests")
    annotation_writes.add(trajectory=others[1], kind="label", text="not edited tests")
    listed = {record["name"]: record for record in signed_in(Role.VIEWER).get("/api/v1/scanners").json()}
    assert (listed["edited_tests"]["precision"], listed["edited_tests"]["recall"]) == (1.0, 0.5)
    assert (listed["ran_project_tests"]["precision"], listed["ran_project_tests"]["recall"]) == (0.0, None)
    assert listed["gave_up"]["precision"] is None
    page = signed_in(Role.VIEWER).get("/scanners/").content.decode()
    assert 'title="1 rollouts found, 1 missed">50.0' in page
    assert listed["edited_tests"]["step_recall"] == 1.0
    annotation_writes.add(trajectory=hit, kind="label", text="edited_tests", step_index=2)
    annotation_writes.add(trajectory=hit, kind="label", text="not ran project tests", step_index=1)
    listed = {record["name"]: record for record in signed_in(Role.VIEWER).get("/api/v1/scanners").json()}
    by_steps = [(record["step_precision"], record["step_recall"]) for record in listed.values()]
    assert [pair for pair in by_steps if pair != (None, None)] == [(0.0, None), (1.0, 0.5)]
    assert listed["edited_tests"]["recall"] == 0.5, "a labelled step is one rollout"
    Scan.objects.filter(pk=hit.pk).update(hits={"edited_tests": {"count": 30, "first": [[0, "a"]]}})
    listed = {record["name"]: record for record in signed_in(Role.VIEWER).get("/api/v1/scanners").json()}
    assert listed["edited_tests"]["step_recall"] == 1.0, "whether step 2 has a hit is not stored"
    whole = {"count": 2, "first": [[0, "a"], [None, ""]]}
    Scan.objects.filter(pk=hit.pk).update(hits={"edited_tests": whole})
    listed = {record["name"]: record for record in signed_in(Role.VIEWER).get("/api/v1/scanners").json()}
    assert listed["edited_tests"]["step_recall"] == 1.0, "a hit of the trajectory may mean step 2"
    page = signed_in(Role.VIEWER).get("/scanners/").content.decode()
    assert 'title="1 steps found, 0 missed">100' in page


def test_people_enter_change_and_remove_expressions(yard: Yard) -> None:
    ada, eve = signed_in(Role.OPERATOR, "ada"), signed_in(Role.OPERATOR, "eve")
    form = {"name": "sees_lines", "pattern": "line (316)", "place": "thoughts", "words": HOSTILE}
    assert ada.post("/scanners/save/", form).status_code == 302
    run_command("scanner", "scan")
    shown = signed_in(Role.VIEWER).get("/scanners/").content.decode()
    assert "<code>line (316)</code>" in shown
    assert HOSTILE not in shown
    assert "/scanners/sees_lines/remove/" not in shown
    listed = json.loads(run_command("scanner", "list", "--run", yard.run.pk, "--json"))
    record = next(record for record in listed if record["name"] == "sees_lines")
    assert record["found"] == record["scanned"] - 1, "all but the rollout of the fixture"
    assert eve.post("/scanners/save/", form).status_code == 403
    assert eve.put("/api/v1/scanners/sees_lines", {"pattern": "x"}, "application/json").status_code == 403
    assert eve.delete("/api/v1/scanners/sees_lines").status_code == 403
    changed = ada.put(
        "/api/v1/scanners/sees_lines", {"pattern": "x", "place": "actions"}, "application/json"
    ).json()
    assert (changed["version"], changed["place"]) == (2, "actions")
    assert 'value="sees_lines"' in ada.get("/scanners/?edit=sees_lines").content.decode()
    assert signed_in(Role.ADMIN).delete("/api/v1/scanners/sees_lines").status_code == 204
    assert ada.post("/scanners/sees_lines/remove/").status_code == 404
    actions = AuditEntry.objects.filter(action__startswith="scanner.").values_list("action", flat=True)
    assert sorted(actions) == ["scanner.remove", "scanner.save", "scanner.save"]
    assert run_command("scanner", "add", "sees_lines", "y") == "scanner sees_lines 3\n"
    assert run_command("scanner", "remove", "sees_lines") == "scanner sees_lines 3 was removed\n"


def test_invalid_expressions_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    client = signed_in(Role.OPERATOR)
    good = {"name": "mine", "pattern": "x", "place": "thoughts"}
    for change, reason in (
        ({"name": "Mine!"}, "expected lower-case letters"),
        ({"name": "edited_tests"}, "no shipped scanner"),
        ({"pattern": "("}, "not a regular expression"),
        ({"pattern": ""}, "1 to 500 characters"),
        ({"place": "patches"}, "expected one of thoughts, actions, observations"),
        ({"words": "x" * 301}, "at most 300 characters"),
    ):
        refused = client.post("/scanners/save/", good | change)
        assert refused.status_code == 422
        assert reason in refused.content.decode(), change
        assert f'value="{(good | change)["pattern"]}"' in refused.content.decode(), "what was typed is kept"
    answer = client.put("/api/v1/scanners/mine", {"pattern": "a("}, "application/json")
    assert (answer.status_code, "not a regular expression" in answer.json()["detail"]) == (422, True)
    monkeypatch.setattr(scanners, "MOST", 0)
    with pytest.raises(CommandFailedError, match="remove one first"):
        run_command("scanner", "add", "mine", "x")
    assert not EnteredScanner.objects.exists()


def test_a_name_that_two_people_enter_at_once_is_refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(**values: object) -> EnteredScanner:
        EnteredScanner(**{**values, "pattern": "theirs"}).save()
        return original(**values)

    original = EnteredScanner.objects.create
    monkeypatch.setattr(EnteredScanner.objects, "create", create)
    good = {"name": "mine", "pattern": "x", "place": "thoughts"}
    refused = signed_in(Role.OPERATOR).post("/scanners/save/", good)
    assert refused.status_code == 422
    assert "somebody else has just entered a scanner" in refused.content.decode()


def test_administrators_start_the_scan_of_the_past(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    monkeypatch.setattr("webapp.rollouts.views.scanners.send_on_commit", sent.append)
    monkeypatch.setattr("webapp.rollouts.api.scanners.send_on_commit", sent.append)
    scanners.save(name="mine", pattern="x", place="thoughts")
    client = signed_in(Role.ADMIN)
    count = Trajectory.objects.filter(state="finished").count()
    assert f"Scan {count} rollouts now" in client.get("/scanners/").content.decode()
    client.post("/scanners/scan/")
    assert client.post("/api/v1/scanners/scan").json() == {"pending": count}
    assert sent == ["trainyard.scan"] * 2
    assert run_command("scanner", "scan") == f"scanned {count} trajectories\n"
    assert "disabled>Scan 0 rollouts now" in client.get("/scanners/").content.decode()


def test_hits_in_oracle_rollouts_are_for_readers_of_answers(yard: Yard) -> None:
    config = yard.run.config | {"policy": {"type": "oracle"}}
    Run.objects.filter(pk=yard.run.pk).update(config=config)
    for role, is_shown in ((Role.VIEWER, False), (Role.OPERATOR, True)):
        client = signed_in(role)
        assert (client.get("/api/v1/trajectories?scanner=edited_tests").json()["total"] > 0) is is_shown
        for address in (f"/api/v1/scanners?run={yard.run.pk}", f"/api/v1/runs/{yard.run.pk}/behaviours"):
            assert client.get(address).status_code == (200 if is_shown else 403)
        assert (f"run {yard.run.pk}</a>" in client.get("/scanners/").content.decode()) is is_shown
        tab = client.get(f"/runs/{yard.run.pk}/?tab=behaviours").content.decode()
        assert ("scanner=edited_tests" in tab) is is_shown
