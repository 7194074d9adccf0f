"""Scores of verifiers: from the engine's spool to the database, the run's page and the API."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from engine.errors import ConfigError
from engine.events.delivery.spool import SPOOL_NAME, read_lines
from engine.orchestrator import execute
from tests.builders.verifier_builders import TASKS, Source, by_model, roll_out, verifying
from tests.builders.web.evaluation_builders import rollout
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.html_regions import inner_html
from tests.builders.web.page_builders import make_dataset
from tests.builders.web.web_builders import hand_over, launched, make_user, post, relaunched
from webapp.core.permissions import Role
from webapp.evaluations.contexts.scores import build_scores
from webapp.ingestion.services import ingest
from webapp.live.fragments import RUN_REGIONS, Subscription
from webapp.live.fragments import snapshot as snapshot_of
from webapp.models import Dataset, Run, Score, Task
from webapp.rollouts.selectors.attempts import Point, verifiers
from webapp.runs.contexts.header import build_header
from webapp.runs.services import runs
from webapp.runs.services.attempts import Claim, claim_launch

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>"
JUDGE = {"policy.checkpoint": "fresh:tiny", "verifier.max_context": 2048}


def folder_of(run: str) -> None:
    (Path(settings.TRAINYARD_HOME) / "runs" / run).mkdir(parents=True, exist_ok=True)


def draft(**overrides: Any) -> Run:
    return runs.create(recipe="verify", overrides={**JUDGE, **overrides})


def verifier(source: str = "7007") -> tuple[Run, Claim]:
    folder_of(source)
    return launched(draft(**{"verifier.runs": [source]}))


def judging(source: str = "7007") -> tuple[Run, Claim, Stream]:
    """Launch a verifier; return it with the stream of its first attempt, which has started."""
    run, claim = verifier(source)
    stream = Stream(epoch=claim.epoch)
    stream.started(total=0)
    return run, claim, stream


def score(
    stream: Stream,
    index: int,
    p_yes: float | None,
    *,
    task: str = "t1",
    source: str = "7007",
    phase: str = "train",
    iteration: int = 0,
    **fields: Any,
) -> None:
    ref = {"iteration": iteration, "phase": phase, "task_id": task, "index": index}
    given = {"p_yes": p_yes, "resolved": index % 2 == 0, **fields}
    stream.add("trajectory_scored", source=source, ref=ref, score=given)


def reader(role: Role = Role.VIEWER) -> Client:
    client = Client()
    client.force_login(make_user(f"reader-{role.value}", role))
    return client


def test_later_scores_replace_earlier_ones_of_the_same_rollout() -> None:
    run, claim, stream = judging()
    score(stream, 0, None, error="no answer", attempts=3)
    score(stream, 1, 0.25, yes_logprob=-2.0, no_logprob=-0.9)
    post(claim, stream)
    newer = relaunched(run, claim)
    second = Stream(epoch=2, first_seq=stream.next_seq)
    second.started(total=0)
    score(second, 0, 0.75)
    post(newer, second)
    rows = Score.objects.filter(run=run).order_by("index").values_list("index", "p_yes", "error", "attempts")
    assert list(rows) == [(0, 0.75, "", 1), (1, 0.25, "", 1)]


def test_scores_in_the_engines_spool_are_shown_on_the_page(tmp_path: Path) -> None:
    source = Source(tmp_path)
    with source.attempt() as sink:
        for task in TASKS:
            for index in range(3):
                roll_out(sink, task, index, passed=index == 0)
    config = by_model()
    with verifying(tmp_path, config) as context:
        assert execute(config, context) == 0
    run, claim = verifier()
    lines = [line.data for line in read_lines(tmp_path / "runs" / "v" / SPOOL_NAME)]
    ingest.ingest(run_id=claim.run_id, token=claim.token, body=b"\n".join(lines) + b"\n")
    run.refresh_from_db()
    assert (run.state, run.summary["scored"]) == ("succeeded", 6)
    assert Score.objects.filter(run=run, p_yes__isnull=False).count() == 6
    page = inner_html(reader().get(f"/runs/{run.pk}/").content.decode(), "run-panel")
    assert page.count('data-key="score-') == 6
    assert f"{run.summary['auc']:.3f}" in page
    assert f"{run.summary['ece']:.3f}" in page


def test_a_missing_score_is_shown_with_its_reason_and_never_as_a_number() -> None:
    run, claim, stream = judging()
    score(stream, 0, None, error=HOSTILE, attempts=3, task=HOSTILE)
    score(stream, 1, 0.0)
    post(claim, stream)
    client = reader()
    page = inner_html(client.get(f"/runs/{run.pk}/?tab=scores").content.decode(), "run-panel")
    assert HOSTILE not in page
    assert "&lt;script&gt;alert(1)" in page
    assert page.count("0.0000") == 1
    missing = inner_html(
        client.get(f"/runs/{run.pk}/?tab=scores&scores=missing").content.decode(), "run-panel"
    )
    assert missing.count('data-key="score-') == 1
    scores = client.get(f"/api/v1/runs/{run.pk}/scores").json()
    assert [(item["index"], item["p_yes"]) for item in scores["items"]] == [(1, 0.0), (0, None)]
    scores = client.get(f"/api/v1/runs/{run.pk}/scores?missing=true").json()
    assert (scores["total"], scores["items"][0]["error"]) == (1, HOSTILE)


def test_missing_scores_of_a_succeeded_run_are_retried_on_demand() -> None:
    run, claim, stream = judging()
    score(stream, 0, None, error="no answer")
    score(stream, 1, 0.5)
    stream.add("run_finished", state="succeeded", summary={"without_score": 1})
    post(claim, stream)
    assert ">Retry missing scores<" not in reader().get(f"/runs/{run.pk}/").content.decode()
    client = reader(Role.OPERATOR)
    hand_over("reader-operator")
    assert ">Retry missing scores<" in client.get(f"/runs/{run.pk}/").content.decode()
    assert client.post(f"/api/v1/runs/{run.pk}/resume").json()["state"] == "queued"
    newer = claim_launch(run_id=run.pk)
    assert newer is not None
    assert newer.epoch == claim.epoch + 1
    second = Stream(epoch=newer.epoch, first_seq=stream.next_seq)
    second.started(total=0)
    score(second, 0, 0.75)
    second.add("run_finished", state="succeeded", summary={"without_score": 0})
    post(newer, second)
    assert ">Retry missing scores<" not in client.get(f"/runs/{run.pk}/").content.decode()
    assert client.post(f"/api/v1/runs/{run.pk}/resume").status_code == 409
    run.refresh_from_db()
    assert run.state == "succeeded"


def test_calibration_is_shown_by_length_and_repository() -> None:
    dataset = Dataset.objects.create(name="mixed")
    for number, repo in enumerate(["left", "right"]):
        Task.objects.create(dataset=dataset, key=f"t{number}", instance_id=f"i{number}", repo=repo)
    run, claim, stream = judging()
    for index in range(4):
        score(stream, index, 0.9 - index / 10, task="t0", prompt_tokens=1000)
        score(stream, index, 0.1 + index / 10, task="t1", prompt_tokens=9000)
    post(claim, stream)
    panel = build_scores(run, {})
    assert [(breakdown.title, [part.name for part in breakdown.parts]) for breakdown in panel.breakdowns] == [
        ("Prompt tokens", ["below 2,000", "8,000 and more"]),
        ("Repository", ["left", "right"]),
    ]
    left, right = (part.calibration for part in panel.breakdowns[1].parts)
    assert (left.auc, right.auc) == (0.75, 0.25)
    assert (left.count, left.num_positive) == (4, 2)
    assert panel.calibration.count == 8
    page = inner_html(reader().get(f"/runs/{run.pk}/").content.decode(), "run-panel")
    assert "8,000 and more" in page
    assert "AUC within tasks" in page


def test_calibration_is_shown_over_the_iterations_of_training() -> None:
    run, claim, stream = judging()
    for iteration, p_yes in ((0, 0.9), (0, 0.2), (11, 0.1), (11, 0.8), (12, 0.5)):
        score(stream, round(p_yes * 10), p_yes, iteration=iteration, resolved=p_yes in (0.9, 0.1))
    post(claim, stream)
    (split,) = build_scores(run, {}).breakdowns
    assert (split.title, [part.name for part in split.parts]) == ("Iteration", ["0–1", "10–11", "12–13"])
    assert [part.calibration.auc for part in split.parts] == [1.0, 0.0, None]


def test_calibration_is_split_by_run_phase_and_iteration() -> None:
    run, claim, stream = judging()
    for source, phase, iteration in (
        ("7007", "train", 0),
        ("7007", "train", 1),
        ("7007", "eval:heldout", 1),
        ("7008", "train", 0),
    ):
        for index, p_yes in enumerate((0.8, 0.3)):
            resolved = (index == 0) is (phase == "train")
            score(stream, index, p_yes, source=source, phase=phase, iteration=iteration, resolved=resolved)
    post(claim, stream)
    rollouts, iterations = build_scores(run, {}).breakdowns
    assert [(part.name, part.calibration.auc) for part in rollouts.parts] == [
        ("run 7007, eval:heldout", 0.0), ("run 7007, train", 1.0), ("run 7008, train", 1.0),
    ]  # fmt: skip
    assert (iterations.title, [part.name for part in iterations.parts]) == (
        "Iteration of run 7007, train", ["0", "1"],
    )  # fmt: skip


def test_scores_of_removed_rollouts_are_left_out_everywhere() -> None:
    _, tasks = make_dataset()
    source, claim = launched()
    stream = Stream(epoch=claim.epoch)
    stream.started()
    keys = [ref(iteration, tasks[0].key, index) for iteration in (0, 1) for index in range(2)]
    for key in keys:
        rollout(stream, key, 1, key["index"] == 0, "a")
    post(claim, stream)
    run, judge_claim, judged = judging(str(source.pk))
    for key in keys:
        value = {"p_yes": 0.9 - key["index"] / 10, "resolved": key["index"] == 0}
        judged.add("trajectory_scored", source=str(source.pk), source_epoch=claim.epoch, ref=key, score=value)
    post(judge_claim, judged)
    panel = build_scores(run, {})
    assert (panel.calibration.count, panel.page.total, panel.num_stale) == (4, 4, 0)
    newer = relaunched(source, claim)
    second = Stream(epoch=newer.epoch, first_seq=stream.next_seq)
    second.started(resumed_from=1)
    post(newer, second)
    panel = build_scores(run, {})
    assert (panel.calibration.count, panel.page.total, panel.num_stale) == (2, 2, 2)
    rollout(second, keys[2], 1, True, "b")
    post(newer, second, 1)
    panel = build_scores(run, {})
    assert (panel.calibration.count, panel.num_stale) == (2, 2), "made again is not what was scored"
    source.refresh_from_db()
    point = Point(run=source, phase="train", iteration=1)
    assert [entry.num_scored for entry in verifiers(point)] == []
    page = inner_html(reader().get(f"/runs/{run.pk}/").content.decode(), "run-panel")
    assert "2 scores excluded: a later attempt of the run removed or repeated the rollouts" in page
    newest = relaunched(source, newer)
    third = Stream(epoch=newest.epoch, first_seq=second.next_seq)
    third.started()
    post(newest, third)
    panel = build_scores(run, {})
    assert (panel.calibration.count, panel.page.total, panel.num_stale) == (0, 0, 4)


def test_shown_scores_are_not_refreshed_until_the_run_ends() -> None:
    run, claim, stream = judging()
    score(stream, 0, 0.5)
    post(claim, stream)
    page = inner_html(reader().get(f"/runs/{run.pk}/").content.decode(), "run-panel")
    assert "Update now" in page
    subscription = Subscription("run", run.pk, (), (("tab", "scores"),), Role.VIEWER)
    with CaptureQueriesContext(connection) as update:
        assert set(snapshot_of(subscription).html) == {*RUN_REGIONS} - {"run-panel"}
    assert not [query["sql"] for query in update.captured_queries if "p_yes" in query["sql"]]
    stream.add("run_finished", state="succeeded")
    post(claim, stream, 2)
    ended = snapshot_of(subscription).html["run-panel"]
    assert ended.count('data-key="score-') == 1
    assert "Update now" not in ended


@pytest.mark.parametrize("follow", [False, True])
def test_page_names_runs_that_had_not_ended_when_they_were_read(*, follow: bool) -> None:
    source, claim = launched()
    stream = Stream()
    stream.started()
    post(claim, stream)
    folder_of(str(source.pk))
    run, _ = launched(draft(**{"verifier.runs": [str(source.pk)], "verifier.follow": follow}))
    notice = f"Run {source.pk} had not ended when its rollouts were read"
    assert (notice in reader().get(f"/runs/{run.pk}/").content.decode()) is not follow
    stream.add("run_finished", state="succeeded")
    post(claim, stream, 1)
    assert build_scores(run, {}).unfinished == (() if follow else (source.pk,))
    later, _ = launched(draft(**{"verifier.runs": [str(source.pk)], "verifier.follow": follow}))
    assert build_scores(later, {}).unfinished == ()


def test_trajectories_in_the_database_are_linked() -> None:
    collected, _ = launched()
    run, claim, stream = judging(str(collected.pk))
    for source in (str(collected.pk), "elsewhere", "9" * 30):
        score(stream, 0, 0.5, source=source)
    post(claim, stream)
    page = inner_html(reader().get(f"/runs/{run.pk}/").content.decode(), "run-panel")
    assert page.count("/train/0/t1/0/") == 1
    assert f"/runs/{collected.pk}/train/0/t1/0/" in page


@pytest.mark.parametrize(
    ("recipe", "setting", "named"),
    [
        ("verify", "verifier.runs", []),
        ("verify", "verifier.runs", ["900404"]),
        ("verify-by-tests", "verifier.tests", ["900404"]),
    ],
)
def test_a_verifier_without_its_runs_is_not_queued(recipe: str, setting: str, named: list[str]) -> None:
    folder_of("7007")
    judge = JUDGE if recipe == "verify" else {}
    run = runs.create(recipe=recipe, overrides={**judge, "verifier.runs": ["7007"], setting: named})
    with pytest.raises(ConfigError) as refused:
        runs.start(run=run)
    assert [problem.setting for problem in refused.value.problems] == [setting]


def test_the_page_needs_the_same_queries_for_any_number_of_scores(
    django_assert_max_num_queries: Any,
) -> None:
    counts, client = [], reader()
    for number in (10, 40):
        run, claim, stream = judging()
        for index in range(number):
            score(stream, index, index / 50, task=f"t{index}")
        post(claim, stream)
        client.get(f"/runs/{run.pk}/")
        with django_assert_max_num_queries(100) as captured:
            client.get(f"/runs/{run.pk}/")
        counts.append(len(captured))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("state", "follows"), [("running", True), ("paused", True), ("succeeded", False)])
def test_verify_link_follows_only_active_runs(state: str, follows: bool) -> None:
    run, claim = launched(runs.create(recipe="frozenlake", overrides={}))
    stream = Stream()
    stream.started(total=1)
    post(claim, stream)
    Run.objects.filter(pk=run.pk).update(state=state)
    header = build_header(Run.objects.get(pk=run.pk), [])
    header = replace(header, has_rollouts=True, counts=replace(header.counts, total=1))
    (address,) = [url for label, url in header.verify_urls if label == "Verify"]
    assert ("verifier.follow=true" in address) is follows
