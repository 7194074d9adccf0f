"""Results of gradings on pages and in the API: complete logs, signs of tampering, predictions."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from engine.grading.official.prediction_files import read_predictions
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.web_builders import launched, make_run, make_user, post
from webapp.core.contexts.frame import trajectory_url
from webapp.core.permissions import Role
from webapp.ingestion.services.ingest import MalformedError
from webapp.live.fragments import GoneError, SharedReads, Subscription, snapshot
from webapp.models import AuditEntry, Dataset, Run, Task, TestLog, Trajectory, TrajectoryOpening
from webapp.rollouts.selectors import trajectories as reads
from webapp.rollouts.services import passages, removal
from webapp.runs.kinds import TABS
from webapp.runs.services import runs

pytestmark = pytest.mark.django_db
LOG = "".join(f"line {number} <script>alert(1)</script> é\n" for number in range(5_000))
FINDINGS = [
    {"kind": "git_history", "detail": "git log --all <b>", "step": 1},
    {"kind": "tests_edited", "detail": "tests/test_a.py", "step": None},
]


def packed(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode())).decode()


def finish(stream: Stream, key: dict[str, Any], **fields: Any) -> None:
    stream.add("trajectory_started", ref=key, sandbox_id="s")
    stream.step(key, 0)
    stream.step(key, 1)
    defaults = {
        "termination": "submitted",
        "verdict": "passed",
        "reward": 1.0,
        "num_steps": 2,
        "patch": "diff\n",
    }
    stream.add("trajectory_finished", ref=key, **(defaults | fields))


@pytest.fixture
def run() -> Run:
    """Run with an evaluation of five tasks after a training iteration."""
    evaluation_run, claim = launched(make_run())
    assert evaluation_run.dataset is not None
    for number, key in enumerate("abcdef"):
        Task.objects.create(
            dataset=evaluation_run.dataset, key=key, instance_id=f"i-{key}", split="heldout", position=number
        )
    stream = Stream()
    stream.started()
    finish(stream, ref(0, "a", 0), patch="trained\n")
    ends: list[dict[str, Any]] = [
        {"findings": FINDINGS, "test_log": LOG[:100], "whole_test_log": packed(LOG)},
        {"verdict": "failed", "reward": 0.0, "findings": FINDINGS[:1], "test_log": "short"},
        {"verdict": "test_timeout", "reward": 0.0},
        {"verdict": "infra_error", "reward": None},
        {"patch": "", "verdict": "failed", "reward": 0.0},
    ]
    for key, fields in zip("abcde", ends, strict=True):
        finish(stream, ref(1, key, 0, phase="eval:heldout"), **fields)
    post(claim, stream)
    return evaluation_run


@pytest.fixture
def viewer(client: Client) -> Client:
    user: User = make_user("vera", Role.VIEWER)
    client.force_login(user)
    return client


@pytest.fixture
def operator() -> Client:
    browser = Client()
    browser.force_login(make_user("oda", Role.OPERATOR))
    return browser


def evaluated_trajectory(run: Run, key: str) -> Trajectory:
    return Trajectory.objects.get(run=run, task_key=key, phase="eval:heldout")


def test_complete_log_is_stored_compressed_and_loaded_on_demand(run: Run, operator: Client) -> None:
    trajectory = evaluated_trajectory(run, "a")
    stored = TestLog.objects.get(trajectory=trajectory)
    assert (stored.text, stored.chars) == (LOG, len(LOG))
    assert len(bytes(stored.data)) < len(LOG) / 4
    page = operator.get(trajectory_url(run.pk, "eval:heldout", 1, "a", 0)).content.decode()
    assert "line 4999" not in page
    assert f"/trajectories/{trajectory.pk}/test-log/" in page
    whole = operator.get(f"/trajectories/{trajectory.pk}/test-log/")
    assert (whole.content.decode(), whole["Content-Type"]) == (LOG, "text/plain; charset=utf-8")
    short = operator.get(f"/trajectories/{evaluated_trajectory(run, 'b').pk}/test-log/")
    assert short.content == b"short"
    assert operator.get("/trajectories/999999/test-log/").status_code == 404


@pytest.mark.parametrize("text", ["no base64!", base64.b64encode(b"no zlib").decode(), packed(LOG)[:400]])
def test_a_damaged_log_is_refused(text: str) -> None:
    _, claim = launched(make_run())
    stream = Stream()
    finish(stream, ref(0, "a", 0), whole_test_log=text)
    with pytest.raises(MalformedError):
        post(claim, stream)


def test_signs_of_tampering_are_shown_escaped_counted_and_searchable(run: Run, viewer: Client) -> None:
    assert reads.finding_counts(run.pk) == [("git_history", 2), ("tests_edited", 1)]
    page = viewer.get(trajectory_url(run.pk, "eval:heldout", 1, "a", 0)).content.decode()
    assert "Signs of tampering" in page
    assert "git log --all &lt;b&gt;" in page
    assert 'href="#step-1">step 1' in page
    tab = viewer.get(f"/runs/{run.pk}/?tab=trajectories").content.decode()
    assert f"?run={run.pk}&amp;finding=git_history" in tab
    for kind, keys in (
        ("git_history", {"a", "b"}),
        ("tests_edited", {"a"}),
        ("any", {"a", "b"}),
        ("network", set()),
    ):
        context = viewer.get(f"/trajectories/?run={run.pk}&finding={kind}").context
        assert {row.trajectory.task_key for row in context["rows"]} == keys
    clean = viewer.get(trajectory_url(run.pk, "eval:heldout", 1, "c", 0)).content.decode()
    assert "Signs of tampering" not in clean


def test_predictions_and_report_match_the_harness_format(run: Run, viewer: Client, tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    path.write_bytes(viewer.get(f"/runs/{run.pk}/predictions.jsonl").content)
    entries = read_predictions(path).predictions
    assert [(p.instance_id, p.model_patch) for p in entries] == [
        ("i-a", "diff\n"), ("i-b", "diff\n"), ("i-c", "diff\n"), ("i-d", "diff\n"), ("i-e", ""),
    ]  # fmt: skip
    assert {p.model_name_or_path for p in entries} == {f"trainyard-run-{run.pk}"}
    report = viewer.get(f"/runs/{run.pk}/harness-report.json").json()
    assert report["schema_version"] == 2
    categories = ("resolved", "unresolved", "empty_patch", "incomplete")
    assert {name: report[f"{name}_ids"] for name in categories} == {
        "resolved": ["i-a"], "unresolved": ["i-b"], "empty_patch": ["i-e"], "incomplete": ["i-f"],
    }  # fmt: skip
    assert report["error_ids"] == ["i-c", "i-d"]
    assert report["failure_reasons"] == {"i-c": "test_timeout", "i-d": "infra_error"}
    assert (report["total_instances"], report["submitted_instances"], report["completed_instances"]) == (
        6,
        5,
        2,
    )
    train = viewer.get(f"/runs/{run.pk}/predictions.jsonl", {"phase": "train"}).content
    assert json.loads(train)["model_patch"] == "trained\n"
    assert viewer.get(f"/runs/{run.pk}/predictions.jsonl", {"index": "7"}).status_code == 404


def test_api_returns_the_grading_data_of_the_pages(run: Run, viewer: Client, operator: Client) -> None:
    trajectory = evaluated_trajectory(run, "a")
    detail = viewer.get(f"/api/v1/trajectories/{trajectory.pk}").json()
    assert detail["findings"] == FINDINGS
    assert operator.get(f"/api/v1/trajectories/{trajectory.pk}/test-log").content.decode() == LOG
    pages, api = f"/runs/{run.pk}", f"/api/v1/runs/{run.pk}"
    assert viewer.get(f"{api}/predictions").content == viewer.get(f"{pages}/predictions.jsonl").content
    assert viewer.get(f"{api}/harness-report").json() == viewer.get(f"{pages}/harness-report.json").json()
    assert viewer.get(f"{api}/predictions?phase=nothing").status_code == 404


def test_mutated_runs_are_shown_and_their_assertions_only_to_readers_of_answers(
    viewer: Client, operator: Client
) -> None:
    run, claim = launched(make_run())
    secret = "t.py:7 test_mean passed with: assert mean([1]) == 2"
    findings = [*FINDINGS[:1], {"kind": "counterfactual", "detail": secret, "step": None}]
    stream = Stream()
    stream.started()
    finish(
        stream, ref(0, "a", 0), verdict="tampered", reward=0.0, findings=findings, counterfactual="caught",
        extra_runs=2, extra_grading_seconds=1.5,
    )  # fmt: skip
    post(claim, stream)
    trajectory = Trajectory.objects.get(run=run)
    pages = [
        client.get(trajectory_url(run.pk, "train", 0, "a", 0)).content.decode()
        for client in (viewer, operator)
    ]
    assert all("2 mutated runs" in page and "git log --all" in page for page in pages)
    assert ["assert mean" in page for page in pages] == [False, True]
    api = [client.get(f"/api/v1/trajectories/{trajectory.pk}").json() for client in (viewer, operator)]
    assert [detail["findings"][1]["detail"] for detail in api] == ["", secret]
    for detail in api:
        shown = (detail["counterfactual"], detail["extra_runs"], detail["extra_grading_seconds"])
        assert shown == ("caught", 2, 1.5)


def test_removing_trajectories_removes_all_of_their_parts(run: Run) -> None:
    trajectory = evaluated_trajectory(run, "a")
    TrajectoryOpening.objects.update_or_create(trajectory=trajectory, defaults={"messages": []})
    removal.remove_from(run_id=run.pk, iteration=0)
    connection.check_constraints()
    assert not TestLog.objects.exists()
    assert not TrajectoryOpening.objects.exists()
    assert not Trajectory.objects.filter(run=run).exists()


def test_output_of_hidden_tests_is_shown_only_to_readers_of_answers(
    run: Run, viewer: Client, operator: Client
) -> None:
    trajectory = evaluated_trajectory(run, "a")
    page, api = trajectory_url(run.pk, "eval:heldout", 1, "a", 0), f"/api/v1/trajectories/{trajectory.pk}"
    subscription = Subscription("trajectory", run.pk, ("eval:heldout", "1", "a", "0"), (), Role.VIEWER)
    assert "line 1 " in operator.get(page).content.decode()
    assert operator.get(api).json()["test_log"] == LOG[:100]
    assert "line 1 " in snapshot(replace(subscription, role=Role.OPERATOR)).html["trajectory-patch"]
    assert "line 1 " not in viewer.get(page).content.decode()
    assert viewer.get(api).json()["test_log"] is None
    assert "line 1 " not in snapshot(subscription).html["trajectory-patch"]
    for address in (f"/trajectories/{trajectory.pk}/test-log/", f"{api}/test-log"):
        assert viewer.get(address).status_code == 403


@pytest.fixture
def oracle_run() -> Run:
    """Run of the oracle with one rollout, whose patch is the gold patch."""
    Dataset.objects.get_or_create(name="quickstart")
    run, claim = launched(runs.create(recipe="quickstart-oracle"))
    stream = Stream()
    stream.started()
    finish(stream, ref(0, "a", 0), patch="the gold\n")
    post(claim, stream)
    return run


@pytest.mark.parametrize(
    ("role", "oracle"), [(Role.VIEWER, True), (Role.OPERATOR, True), (Role.VIEWER, False)]
)
def test_oracle_rollouts_are_shown_only_to_readers_of_answers(
    role: Role, oracle: bool, oracle_run: Run, run: Run
) -> None:
    """Cover every access to a rollout: pages, API, live updates, search, downloads."""
    run, opens = (oracle_run, role is not Role.VIEWER) if oracle else (run, True)
    client = Client()
    client.force_login(make_user(f"a-{role}", role))
    trajectory = Trajectory.objects.get(run=run, phase="train")
    pages, api = f"/runs/{run.pk}", f"/api/v1/trajectories/{trajectory.pk}"
    addresses = [
        f"{pages}/train/0/a/", f"{pages}/train/0/a/0/", f"{pages}/predictions.jsonl?phase=train",
        f"/trajectories/compare/?left={trajectory.pk}&right={trajectory.pk}",
        f"/api/v1/trajectories/compare?left={trajectory.pk}&right={trajectory.pk}",
        *(
            f"/trajectories/{trajectory.pk}/steps/0/{part}/"
            for part in ("response", "thought", "action", "observation")
        ),
        f"/trajectories/{trajectory.pk}/steps/", f"/trajectories/{trajectory.pk}/found/?find=line",
        f"/trajectories/{trajectory.pk}/patch/", api, f"/api/v1{pages}/predictions?phase=train",
    ]  # fmt: skip
    for address in addresses:
        assert client.get(address).status_code == (200 if opens else 403), address
    exports = AuditEntry.objects.filter(action="answers.export", run=run, actor__username=f"a-{role}")
    assert len(exports) == (2 if oracle and opens else 0)
    assert client.get(f"{api}/tokens").status_code == (404 if opens else 403)  # none were recorded
    for page, target in (("group", ("train", "0", "a")), ("trajectory", ("train", "0", "a", "0"))):
        subscription = Subscription(page, run.pk, target, (), role)
        if opens:
            assert snapshot(subscription).html
        else:
            with pytest.raises(GoneError):
                snapshot(subscription)
    passages.index_pending()
    matching = [row.trajectory.pk for row in client.get("/trajectories/?q=line").context["rows"]]
    assert (trajectory.pk in matching) is opens
    shown = client.get(f"{pages}/?tab=trajectories").content.decode()
    assert ("predictions.jsonl" in shown) is opens
    shared = SharedReads()
    for earlier_role in Role:  # whichever role filled the shared reads
        snapshot(Subscription("run", run.pk, (), (("tab", "trajectories"),), earlier_role), shared)
    live = snapshot(Subscription("run", run.pk, (), (("tab", "trajectories"),), role), shared)
    assert ("predictions.jsonl" in live.html["run-panel"]) is opens


def test_parts_of_an_oracle_run_open_to_viewers_reveal_no_answer(oracle_run: Run, viewer: Client) -> None:
    pages = f"/runs/{oracle_run.pk}"
    for tab in TABS:
        assert "the gold\n" not in viewer.get(f"{pages}/?tab={tab}").content.decode()
    assert "the gold" not in viewer.get(f"/api/v1{pages}/trajectories").content.decode()
    assert viewer.get(f"{pages}/harness-report.json").status_code == 200
    assert "gold" in viewer.get(f"{pages}/train/0/a/").content.decode()  # the page explains the refusal
    refused = viewer.get(f"/api/v1/trajectories/{Trajectory.objects.get(run=oracle_run).pk}").json()
    assert refused == {"detail": "The oracle's rollouts are the gold patches: this needs the role operator."}
