"""Later verdicts: from events to the page, the API, the commands and the page of a trajectory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from engine.errors import ConfigError
from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.evaluation_builders import FIRST, evaluated, scored
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.html_regions import inner_html
from tests.builders.web.page_builders import make_dataset
from tests.builders.web.web_builders import launched, post, snapshot
from tests.integration.verifiers.test_scores_web import HOSTILE, folder_of, reader
from webapp.core.permissions import Role
from webapp.evaluations.contexts.regrading import build_regrading
from webapp.models import Regrade, Run, Trajectory
from webapp.runs.services import runs

pytestmark = pytest.mark.django_db(transaction=True)
Change = tuple[str, str | None]


def changes(source: str, task: str, verdicts: Iterable[Change], *, phase: str = "eval:heldout") -> Stream:
    """Return the events of a regrading of one task's rollouts: old and new verdict of each."""
    stream = Stream()
    stream.started(total=0)
    for index, (old, new) in enumerate(verdicts):
        change(stream, source, ref(0, task, index, phase=phase), old, new)
    return stream


def change(
    stream: Stream, source: str, key: dict[str, Any], old: str, new: str | None, **fields: Any
) -> None:
    lost = new in (None, "infra_error")
    record = {
        "old_verdict": old, "old_reward": float(old == "passed"), "verdict": new,
        "reward": None if lost else float(new == "passed"),
        "obstacle": "no_row" if new is None else None, **fields,
    }  # fmt: skip
    stream.add("trajectory_regraded", source=source, source_epoch=1, ref=key, regrade=record)


def regrading(source: str, stream: Stream) -> Run:
    """Create a run that grades another one again, and post its events."""
    folder_of(source)
    run, claim = launched(runs.create(recipe="regrade", overrides={"regrade.runs": [source]}))
    post(claim, stream)
    run.refresh_from_db()
    return run


def some_changes() -> Stream:
    stream = changes("9107", "t1", [("passed", "failed"), ("failed", "passed"), ("passed", "tampered")])
    key = ref(0, "t2", 0, phase="train")
    change(
        stream, "9107", key, "failed", "failed", detail=HOSTILE, failed_tests=[HOSTILE], num_failed_tests=1
    )
    change(stream, "9107", ref(0, "t3", 0, phase="train"), "passed", None, detail=HOSTILE)
    change(stream, "9107", ref(0, "t4", 0, phase="train"), "passed", "infra_error")
    return stream


def printed(*command: Any) -> Any:
    return json.loads(run_command(*command))


@pytest.fixture
def client() -> Client:
    return reader(Role.OPERATOR)


def panel_of(client: Client, run: Run, show: str = "") -> str:
    page = client.get(f"/runs/{run.pk}/?tab=verdicts&show={show}").content.decode()
    return " ".join(inner_html(page, "run-panel").split())


def test_flips_and_obstacles_are_on_the_page_and_in_the_api(client: Client) -> None:
    run = regrading("9107", some_changes())
    panel = panel_of(client, run)
    assert panel.count('data-key="regrade-') == 3
    assert "1 × no row of this task" in panel
    assert "<strong>1</strong> passed → failed" in panel
    whole = panel_of(client, run, "all")
    assert whole.count('data-key="regrade-') == 6
    assert HOSTILE not in whole
    assert whole.count("&lt;script&gt;alert(1)") >= 3
    for show, count in (("passed_failed", 1), ("not_regraded", 1), ("lost", 1), ("failed_tampered", 0)):
        assert panel_of(client, run, show).count('data-key="regrade-') == count
        assert client.get(f"/api/v1/runs/{run.pk}/regraded", {"show": show}).json()["total"] == count
    assert client.get(f"/api/v1/runs/{run.pk}/regraded", {"show": "none"}).status_code == 422
    answer = client.get(f"/api/v1/runs/{run.pk}/regrading").json()
    assert answer["flips"] == {"passed_failed": 1, "failed_passed": 1, "passed_tampered": 1}
    assert (answer["num_regraded"], answer["num_lost"], answer["obstacles"]) == (4, 1, {"no_row": 1})
    held, trained = sorted(answer["parts"], key=lambda part: part["phase"])
    assert (held["before"]["solve_rate"], held["after"]["solve_rate"]) == (
        pytest.approx(2 / 3),
        pytest.approx(1 / 3),
    )
    assert (trained["num_regraded"], trained["before"]["solve_rate"]) == (1, 0.0)
    command = printed("run", "flips", run.pk, "--json")
    assert command["flips"] == answer["flips"]
    assert [item["flip"] for item in command["items"]] == [
        "passed_failed",
        "failed_passed",
        "passed_tampered",
    ]
    assert "pass@2" in run_command("run", "flips", run.pk)
    with pytest.raises(CommandFailedError, match="expected one of flips, all"):
        run_command("run", "flips", run.pk, "--show", "none")


def test_verdicts_do_not_depend_on_batches_and_later_ones_replace_earlier() -> None:
    stored = []
    for size in (1, 100):
        folder_of("9107")
        run, claim = launched(runs.create(recipe="regrade", overrides={"regrade.runs": ["9107"]}))
        stream = some_changes()
        change(stream, "9107", ref(0, "t4", 0, phase="train"), "passed", "passed")
        for start in range(0, len(stream.lines), size):
            post(claim, stream, start, start + size)
        stored.append(snapshot(run)["Regrade"])
    assert stored[0] == stored[1]
    assert Regrade.objects.get(run=run, task_key="t4").verdict == "passed"


def test_verdicts_that_infrastructure_lost_are_retried(client: Client) -> None:
    stream = some_changes()
    stream.add("run_finished", state="succeeded", summary={"regraded": 4, "lost": 1})
    run = regrading("9107", stream)
    assert "Retry missing verdicts" in client.get(f"/runs/{run.pk}/").content.decode()
    runs.resume(run=run)
    run.refresh_from_db()
    assert run.state == "queued"
    Regrade.objects.filter(run=run, verdict="infra_error").update(verdict="failed")
    Run.objects.filter(pk=run.pk).update(state="succeeded")
    assert "Retry missing verdicts" not in client.get(f"/runs/{run.pk}/").content.decode()


def test_best_of_k_uses_scores_of_verifiers_and_falls_back_to_pass_at_k(client: Client) -> None:
    _, tasks = make_dataset()
    source = evaluated(tasks[:1], FIRST)
    flipped = [("passed", "passed"), ("passed", "failed"), ("failed", "failed"), ("failed", "failed")]
    run = regrading(str(source.pk), changes(str(source.pk), tasks[0].key, flipped))
    address = f"/api/v1/runs/{run.pk}/regrading"
    (part,) = client.get(address).json()["parts"]
    assert part["rule"] == "oracle"
    rates = [(pair["k"], pair["before"]["rate"], pair["after"]["rate"]) for pair in part["selection"]]
    assert rates == [(1, 0.5, 0.25), (2, pytest.approx(5 / 6), 0.5), (4, 1.0, 1.0)]
    assert "pass@4" in panel_of(client, run)
    scored(source, tasks[0], {0: 0.1, 1: 0.9, 2: 0.3})
    (part,) = client.get(address).json()["parts"]
    assert (part["rule"], part["note"].partition(",")[0]) == ("oracle", "1 of 4 rollouts have no p_yes")
    scored(source, tasks[0], {0: 0.1, 1: 0.9, 2: 0.3, 3: 0.2}, epoch=1)
    (part,) = client.get(address).json()["parts"]
    assert (part["rule"], part["note"]) == ("ef", "")
    last = part["selection"][-1]
    assert (last["k"], last["before"]["rate"], last["after"]["rate"]) == (4, 1.0, 0.0), "1 is selected"
    assert "Best@4" in panel_of(client, run)


def test_trajectory_shows_its_later_verdicts_until_it_is_made_again(client: Client) -> None:
    _, tasks = make_dataset()
    source = evaluated(tasks[:1], FIRST)
    stream = changes(str(source.pk), tasks[0].key, [("passed", "failed")])
    key = ref(0, tasks[0].key, 1, phase="eval:heldout")
    change(stream, str(source.pk), key, "passed", "failed", failed_tests=[HOSTILE], num_failed_tests=30)
    run = regrading(str(source.pk), stream)
    rollout = Trajectory.objects.get(run=source, task_key=tasks[0].key, index=1)
    address = f"/runs/{source.pk}/eval:heldout/0/{tasks[0].key}/1/"
    assert f'href="{address}' in panel_of(client, run)
    page = inner_html(client.get(address).content.decode(), "later-verdicts")
    assert HOSTILE not in page
    for text in ("passed", "failed", "30 failed tests", f"run {run.pk}"):
        assert text in " ".join(page.split())
    (later,) = client.get(f"/api/v1/trajectories/{rollout.pk}").json()["later_verdicts"]
    assert (later["run_id"], later["flip"], later["old_verdict"]) == (run.pk, "passed_failed", "passed")
    for flip, count in (("any", 2), ("passed_failed", 2), ("failed_passed", 0)):
        assert client.get("/api/v1/trajectories", {"flip": flip}).json()["total"] == count
        assert client.get("/trajectories/", {"flip": flip}).context["total"] == count
    assert len(printed("search", "", "--flip", "any", "--json")["items"]) == 2
    Trajectory.objects.filter(pk=rollout.pk).update(epoch=2)
    assert 'id="later-verdicts"' not in client.get(address).content.decode()
    assert "1 verdict excluded" in panel_of(client, run)


def test_regradings_are_launched_from_the_run_page_and_by_command(client: Client) -> None:
    dataset, tasks = make_dataset()
    source = evaluated(tasks[:1], FIRST)
    page = client.get(f"/runs/{source.pk}/").content.decode()
    assert f"recipe=regrade&amp;regrade.runs={source.pk}" in page
    form = client.get("/runs/new/", {"recipe": "regrade", "regrade.runs": str(source.pk)})
    assert "dataset with the new tests" in form.content.decode()
    with pytest.raises(CommandFailedError, match=f"there is no run '{source.pk}' with trajectories"):
        run_command("run", "regrade", source.pk)
    assert not Run.objects.filter(kind="regrade").exists(), "a refused run leaves no draft"
    folder_of(str(source.pk))
    with pytest.raises(ConfigError, match=r"regrade\.dataset"):
        runs.start(
            run=runs.create(recipe="regrade", overrides={"regrade.runs": ["1"], "regrade.dataset": "no"})
        )
    command = ("run", "regrade", source.pk, "--dataset", dataset.name, "--phase", "eval:heldout", "--json")
    record = printed(*command)
    run = Run.objects.get(pk=record["id"])
    assert run.dataset == dataset
    assert run.config["regrade"]["phases"] == ["eval:heldout"]
    assert run.state == "queued"


def test_panel_takes_as_many_queries_for_many_rollouts_as_for_few() -> None:
    _, tasks = make_dataset()
    source = evaluated(tasks, FIRST)
    counts = []
    for members in (tasks[:1], tasks):
        stream = Stream()
        stream.started(total=0)
        for task in members:
            for index in range(4):
                key = ref(0, task.key, index, phase="eval:heldout")
                change(stream, str(source.pk), key, "passed", "failed")
        run = regrading(str(source.pk), stream)
        with CaptureQueriesContext(connection) as queries:
            build_regrading(run, {})
        counts.append(len(queries))
    assert counts[0] == counts[1]
