"""Alerts about counters of reward hacking that rise with the reward."""

from __future__ import annotations

import pytest

from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.web_builders import launched, make_run, make_user, post, signed_in
from webapp.core.permissions import Role
from webapp.models import Alert, Delivery, Iteration, Notification, Run, Scan
from webapp.rollouts.selectors.hacking import rising_with_reward
from webapp.rollouts.services import hacking, removal, scans

pytestmark = pytest.mark.django_db
ITERATIONS, SIZE = 8, 16


@pytest.fixture
def run() -> Run:
    """A run that edits tests in 12 of 16 rollouts of later iterations, whose rewards are higher."""
    started, claim = launched(make_run())
    stream = Stream(epoch=claim.epoch)
    stream.started(total=ITERATIONS)
    for iteration in range(ITERATIONS):
        late = iteration >= ITERATIONS // 2
        for index in range(SIZE):
            key = ref(iteration, f"task-{index % 2}", index)
            command = "sed -i s/1/2/ tests/test_a.py" if late and index < 12 else "ls"
            stream.add("trajectory_started", ref=key)
            stream.step(key, 0, tool="execute_bash", arguments={"command": command}, exit_code=0)
            stream.finished(key, steps=1, reward=1.0 if late and index < 8 else 0.0)
        reward = 0.5 * late + iteration / 100
        stream.add(
            "iteration_finished",
            iteration=iteration,
            policy_version=iteration + 1,
            metrics={"reward/mean": reward, "verdict/tampered": 0.0},
        )
    post(claim, stream)
    while scans.scan_pending():
        pass
    return Run.objects.get(pk=started.pk)


def test_a_counter_that_rises_with_the_reward_raises_one_alert(run: Run) -> None:
    Notification.objects.create(
        owner=make_user("ada", Role.OPERATOR),
        kind="email",
        address="a@b.example",
        alerts=["reward_with_edited_tests"],
    )
    assert hacking.watch(run_id=run.pk) == 1
    assert hacking.watch(run_id=run.pk) == 0, "the same evidence raises no second alert"
    alert = Alert.objects.get(run=run)
    assert Delivery.objects.filter(run=run, key=f"alert {alert.pk}").count() == 1
    assert (alert.code, alert.severity, alert.iteration) == ("reward_with_edited_tests", "warning", 7)
    assert "0.0% to 75.0% of rollouts" in alert.message
    assert "from 0.015 to 0.555" in alert.message
    assert "0–3 and 4–7 (128 rollouts)" in alert.message
    assert set(alert.task_ids) == {"task-0", "task-1"}
    client = signed_in(Role.VIEWER)
    page = client.get(f"/runs/{run.pk}/").content.decode()
    assert "Reward rises with edits of tests" in page
    assert f'href="/runs/{run.pk}/?tab=behaviours">both over iterations' in page
    tab = client.get(f"/runs/{run.pk}/?tab=behaviours").content.decode()
    assert "mean reward of training" in tab
    assert client.get("/api/v1/alerts", {"run": run.pk}).json()["items"][0]["code"] == alert.code
    removal.remove_from(run_id=run.pk, iteration=5)
    assert not Alert.objects.filter(run=run).exists(), "an attempt that repeats the iterations repeats alerts"


def test_counters_are_compared_when_finished_iterations_have_been_scanned(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    monkeypatch.setattr(scans, "send_on_commit", lambda *arguments: sent.append(arguments))
    Scan.objects.filter(run=run).update(fingerprint="")
    while scans.scan_pending():
        pass
    assert sent == [("trainyard.watch", run.pk)]
    Iteration.objects.filter(run=run).update(finished_at=None)
    Scan.objects.filter(run=run).update(fingerprint="")
    while scans.scan_pending():
        pass
    assert len(sent) == 1, "ingest sends it at the end of an iteration"


def test_without_a_higher_reward_or_enough_rollouts_there_is_no_alert(run: Run) -> None:
    [evidence] = rising_with_reward(run)
    assert 0.3 < evidence.share.low < 0.75
    few = Scan.objects.filter(run=run, iteration=0)
    kept = dict(few.values_list("pk", "versions"))
    few.update(versions={})
    assert rising_with_reward(run) == [], "three iterations are too few for a half"
    for pk, versions in kept.items():
        few.filter(pk=pk).update(versions=versions)
    assert rising_with_reward(run)
    Iteration.objects.filter(run=run).update(metrics={"reward/mean": 0.2})
    assert rising_with_reward(run) == []


def test_tampered_verdicts_are_a_counter(run: Run) -> None:
    Scan.objects.filter(run=run).update(found=[])
    for row in Iteration.objects.filter(run=run):
        row.metrics["verdict/tampered"] = 0.5 if row.index >= 4 else 0.0
        row.save()
    assert [evidence.counter for evidence in rising_with_reward(run)] == ["tampered"]
    tab = signed_in(Role.VIEWER).get(f"/runs/{run.pk}/?tab=behaviours").content.decode()
    assert 'data-key="behaviour-chart-tampered"' in tab


def test_scanners_do_not_apply_without_a_repository(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(config={**run.config, "environment": {"type": "frozenlake"}})
    assert hacking.watch(run_id=run.pk) == 0
    client = signed_in(Role.VIEWER)
    tab = client.get(f"/runs/{run.pk}/?tab=behaviours").content.decode()
    assert "not applicable" in tab
    assert "0.0" not in tab.partition("behaviour-gave_up")[2].partition("</tr>")[0]
    assert "not applicable" in client.get("/scanners/").content.decode()
    records = client.get("/api/v1/scanners", {"run": run.pk}).json()
    assert {record["scanned"] for record in records} == {None}
    assert client.get(f"/api/v1/runs/{run.pk}/behaviours").json() == []
