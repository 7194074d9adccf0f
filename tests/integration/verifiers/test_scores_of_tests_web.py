"""Scores of test-running verifiers: from events to the run's page, the API, reports and exports."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from engine.config.learning.fine_tuning import TrajectoryQuery
from engine.errors import ConfigError
from engine.verifiers.selection.tables import read_table
from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.evaluation_builders import FIRST, evaluated, rollout, scored
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.html_regions import inner_html
from tests.builders.web.page_builders import make_dataset
from tests.builders.web.web_builders import launched, make_user, post, snapshot, streamed
from tests.integration.verifiers.test_scores_web import HOSTILE, folder_of, reader
from webapp.core.permissions import Role
from webapp.datasets.selectors import datasets as dataset_reads
from webapp.datasets.selectors.difficulty import measuring_runs
from webapp.models import ExaminedTest, Run, Score, Task
from webapp.rollouts.selectors import learning
from webapp.runs.selectors import runs as run_reads
from webapp.runs.services import runs

pytestmark = pytest.mark.django_db(transaction=True)
Passes = tuple[int | None, int | None]


def by_tests(source: str, stream: Stream) -> Run:
    """Create a run that verifies another one by tests, and post its events."""
    folder_of(source)
    overrides = {"verifier.runs": [source]}
    run, claim = launched(runs.create(recipe="verify-by-tests", overrides=overrides))
    post(claim, stream)
    run.refresh_from_db()
    return run


def scored_by_tests(run: Run, task: Task, passes: dict[int, Passes]) -> Run:
    """Create a run that scored the rollouts of a task's evaluation by tests."""
    stream = Stream()
    stream.started(total=0)
    for index, (regression, reproduction) in passes.items():
        score = {
            "regression_passes": regression, "regression_tests": 5, "regression_status": "ran",
            "reproduction_passes": reproduction, "reproduction_tests": 2,
            "error": "the repository's tests do not run" if regression is None else "",
        }  # fmt: skip
        key = ref(0, task.key, index, phase="eval:heldout")
        stream.add("trajectory_scored", source=str(run.pk), ref=key, score=score)
    return by_tests(str(run.pk), stream)


def examined(stream: Stream, index: int, **fields: Any) -> None:
    key = {"iteration": 0, "phase": "train", "task_id": "t1", "index": index}
    stream.add("test_examined", source="9009", ref=key, test={"digest": f"{index:016x}", **fields})


def patch(stream: Stream, index: int, **fields: Any) -> None:
    key = {"iteration": 0, "phase": "train", "task_id": "t1", "index": index}
    stream.add("trajectory_scored", source="9007", ref=key, score={"resolved": index == 0, **fields})


def some_scores() -> Stream:
    stream = Stream()
    stream.started(total=0)
    examined(stream, 0, tests=2, good=1, good_passed=1, bad=2, bad_passed=0)
    examined(stream, 1, tests=1, good=1, good_passed=0, bad=2, bad_passed=1)
    examined(stream, 2, rejection="did_not_run", detail=HOSTILE)
    stream.add("alert", severity="warning", code="toxic_tests", message="1 of 2 tests", task_ids=["t1"])
    ran = {"regression_tests": 5, "regression_status": "ran", "reproduction_tests": 3}
    patch(stream, 0, regression_passes=5, reproduction_passes=2, **ran)
    timed_out = {**ran, "regression_status": "timed_out", "detail": "regression tests: timed out after 300 s"}
    patch(stream, 1, regression_passes=3, reproduction_passes=0, **timed_out)
    patch(stream, 2, error=HOSTILE)
    return stream


def printed(*command: Any) -> Any:
    return json.loads(run_command(*command))


def test_passes_and_written_tests_are_on_the_page_and_in_the_api() -> None:
    run = by_tests("9007", some_scores())
    client = reader()
    whole = client.get(f"/runs/{run.pk}/").content.decode()
    assert "Toxic tests:" in whole
    page = inner_html(whole, "run-panel")
    assert page.count('data-key="score-') == page.count('data-key="test-') == 3
    assert HOSTILE not in page
    assert page.count("&lt;script&gt;alert(1)") >= 2
    for text in ("5 of 5", "3 of 5", "2 of 3", "timed out after 300 s", "toxic", "did not run"):
        assert text in page
    missing = client.get(f"/runs/{run.pk}/?tab=scores&scores=missing").content.decode()
    assert inner_html(missing, "run-panel").count('data-key="score-') == 1
    scores = client.get(f"/api/v1/runs/{run.pk}/scores").json()
    assert [(item["regression_passes"], item["reproduction_passes"]) for item in scores["items"]] == [
        (5, 2), (3, 0), (None, None),
    ]  # fmt: skip
    tests = client.get(f"/api/v1/runs/{run.pk}/examined-tests").json()
    assert [(item["index"], item["rejection"], item["is_toxic"]) for item in tests["items"]] == [
        (0, "", False), (1, "", True), (2, "did_not_run", False),
    ]  # fmt: skip
    assert [item["is_misleading"] for item in tests["items"]] == [False, True, False]
    assert "1 misleading" in " ".join(page.split())
    ExaminedTest.objects.filter(run=run, index=1).update(bad_passed=0)
    page = client.get(f"/runs/{run.pk}/?tab=scores").content.decode()
    assert "0 misleading" in " ".join(page.split())


def test_scores_do_not_depend_on_batches_and_later_ones_replace_earlier() -> None:
    stored = []
    for size in (1, 2, 100):
        folder_of("9007")
        run, claim = launched(runs.create(recipe="verify-by-tests", overrides={"verifier.runs": ["9007"]}))
        stream = some_scores()
        examined(stream, 2, tests=1)
        patch(stream, 2, regression_passes=4)
        for start in range(0, len(stream.lines), size):
            post(claim, stream, start, start + size)
        stored.append(snapshot(run))
    assert ExaminedTest.objects.filter(run=run, index=2).get().rejection == ""
    assert Score.objects.filter(run=run).count() == 3
    assert Score.objects.get(run=run, index=2).regression_passes == 4
    for rows in ("Score", "ExaminedTest"):
        assert stored[0][rows] == stored[1][rows] == stored[2][rows]


def test_reports_select_by_tests_and_by_judge_with_tests() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks[:1], FIRST)
    judge = scored(run, tasks[0], {0: 0.9, 1: 0.3, 2: 0.8, 3: 0.1})
    # 0 and 1 are resolved; tests select 1, the judge 0, tests within the judge's better half 2
    tests = scored_by_tests(run, tasks[0], {0: (3, 0), 1: (5, 2), 2: (5, 0), 3: (4, 2)})
    client, address = reader(), f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/0/report"
    report = client.get(address).json()
    best = {curve["rule"]: curve["points"][-1]["rate"] for curve in report["curves"]}
    assert (report["verifier"], report["tests"]) == (judge.pk, tests.pk)
    assert {rule: best[rule] for rule in ("ef", "eb", "hybrid")} == {"ef": 1.0, "eb": 1.0, "hybrid": 0.0}
    assert set(best) == {"ef", "eb", "hybrid", "shortest", "majority", "oracle"}
    page = client.get(f"/evaluations/{run.pk}/eval:heldout/0/").content.decode()
    assert f'<option value="{tests.pk}" selected>' in " ".join(page.split())
    assert "hybrid" in page
    worse = scored_by_tests(run, tasks[0], {0: (0, 0), 1: (0, 0), 2: (5, 2), 3: (0, 0)})
    report = client.get(address, {"tests": worse.pk}).json()
    assert {curve["rule"]: curve["points"][-1]["rate"] for curve in report["curves"]}["eb"] == 0.0
    assert printed("evaluation", "report", run.pk, "--tests", tests.pk)["tests"] == tests.pk


def test_regression_tests_alone_select_in_reports_and_submissions() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks[:1], FIRST)
    judge = scored(run, tasks[0], {0: 0.9, 1: 0.3, 2: 0.8, 3: 0.1})
    tests = scored_by_tests(run, tasks[0], {0: (3, None), 1: (4, None), 2: (5, None), 3: (4, None)})
    client, point = reader(), f"evaluations/{run.pk}/eval:heldout/0"
    address = f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/0"
    report = client.get(f"{address}/report").json()
    assert (report["curves_error"], report["regression_only"]) == ("", True)
    best = {curve["rule"]: curve["points"][-1]["rate"] for curve in report["curves"]}
    assert (best["eb"], best["hybrid"]) == (0.0, 0.0), "rollout 2 passes most, and is not resolved"
    assert "use regression tests only" in client.get(f"/{point}/").content.decode()
    operator = make_user("o", Role.OPERATOR)
    client.force_login(operator)
    for rule in ("eb", "hybrid"):
        params = {"rule": rule, "tests": tests.pk, "verifier": judge.pk}
        content = b"".join(streamed(operator, f"{address}/submission", params))
        submitted = zipfile.ZipFile(io.BytesIO(content))
        (name,) = (name for name in submitted.namelist() if name.endswith("all_preds.jsonl"))
        assert json.loads(submitted.read(name).splitlines()[0])["model_patch"] == "b", "of rollout 2"
        page = client.get(f"/{point}/submission/", {**params, "check": "on"})
        assert page.context["checked"]
        assert page.context["error"] == ""


def test_judge_training_accepts_only_ended_runs() -> None:
    beyond = {"judgements.on_policy": ["9" * 20], "trainer.start": "fresh:tiny"}
    with pytest.raises(ConfigError, match="there is no run '9999"):
        runs.start(run=runs.create(recipe="train-judge", overrides=beyond))
    source, claim = launched()
    folder_of(str(source.pk))
    settings = {"judgements.on_policy": [str(source.pk)], "trainer.start": "fresh:tiny"}
    learner = runs.create(recipe="train-judge", overrides=settings)
    with pytest.raises(ConfigError, match=f"run {source.pk} has not ended"):
        runs.start(run=learner)
    stream = Stream(epoch=claim.epoch)
    stream.started()
    stream.add("run_finished", state="succeeded")
    post(claim, stream)
    Run.objects.filter(pk=source.pk).update(state="succeeded")
    runs.start(run=learner)


def test_exports_include_the_test_passes_for_selection(tmp_path: Path) -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks[:1], FIRST)
    judge = scored(run, tasks[0], {0: 0.9, 1: 0.3, 2: 0.8, 3: 0.1})
    tests = scored_by_tests(run, tasks[0], {0: (3, 0), 1: (None, None), 2: (5, 0)})
    path = tmp_path / "rollouts.jsonl"
    printed("run", "export", run.pk, "--output", path, "--tests", tests.pk, "--verifier", judge.pk)
    table = [(row.p_yes, row.regression_passes, row.reproduction_passes) for row in read_table(path)]
    assert table == [(0.9, 3, 0), (0.3, None, None), (0.8, 5, 0), (0.1, None, None)]
    for wrong in (judge.pk, 999):
        with pytest.raises(
            CommandFailedError, match=rf"run {wrong} has no passes of tests.*have: {tests.pk}"
        ):
            printed("run", "export", run.pk, "--output", path, "--tests", wrong)
    with pytest.raises(CommandFailedError, match=rf"run {tests.pk} has no scores.*have: {judge.pk}"):
        printed("run", "export", run.pk, "--output", path, "--verifier", tests.pk)


def test_rollouts_of_testing_agents_do_not_count_as_solutions(tmp_path: Path) -> None:
    dataset, tasks = make_dataset()
    created = {}
    for name in ("collect", "write-tests"):
        config = {
            "dataset.name": dataset.name, "dataset.split": "train", "policy.checkpoint": "builtin:quickstart",
            "agent.max_context": 2048, "agent.max_response": 512,
        }  # fmt: skip
        run, claim = launched(runs.create(recipe=name, overrides=config))
        stream = Stream(epoch=claim.epoch)
        stream.started()
        rollout(stream, ref(0, tasks[0].key, 0), 1, passed=True, patch="a")
        post(claim, stream)
        created[name] = run
    assert measuring_runs(dataset.pk) == [created["collect"].pk]
    assert run_reads.runs_to_verify() == [created["collect"].pk]
    assert run_reads.runs_with_rollouts(dataset.name) == [created["collect"].pk]
    assert [entry.run_id for entry in dataset_reads.runs_on_task(tasks[0])] == [created["collect"].pk]
    assert run_reads.runs_with_written_tests() == [created["write-tests"].pk]
    chosen = learning.choose(TrajectoryQuery(splits=()), seed=0)
    assert [run for run, _ in chosen.runs] == [created["collect"].pk]
    named = learning.choose(TrajectoryQuery(splits=(), runs=(created["write-tests"].pk,)), seed=0)
    assert [run for run, _ in named.runs] == [created["write-tests"].pk]
    client = reader(Role.OPERATOR)
    writers = Run.objects.filter(pk=created["write-tests"].pk)
    for solved in (0, 1):
        writers.update(collection={"solved": solved, "graded": 1})
        page = client.get(f"/runs/{created['write-tests'].pk}/").content.decode()
        assert ("Verify with these tests" in page) == bool(solved)
        assert "predictions.jsonl" not in page
    assert "verifier.tests=" in page
    for name, run in created.items():
        expected = 404 if run.writes_tests else 200
        for path in (f"/runs/{run.pk}/predictions.jsonl", f"/api/v1/runs/{run.pk}/predictions"):
            assert client.get(path).status_code == expected, (name, path)
    with pytest.raises(CommandFailedError, match="no such finished rollouts"):
        printed(
            "evaluation", "predictions", created["write-tests"].pk, "--output", tmp_path / "predictions.jsonl"
        )
    page = client.get(f"/runs/{created['collect'].pk}/").content.decode()
    assert "Verify by tests" in page
    assert "Train a judge" in page
