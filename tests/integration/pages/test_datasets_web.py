"""Mirrored dataset folders, imported trajectories, pauses, and the first administrator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from engine.config.learning.fine_tuning import TrajectoryQuery
from engine.datasets import trajectories_atif, trajectories_conversations
from engine.datasets.imported_trajectories import print_ndjson
from engine.errors import DatasetError
from engine.types import RunState
from tests.builders.commands import run_command
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.web_builders import launched, make_run, make_user, post, signed_in
from webapp.accounts.services import accounts
from webapp.accounts.services.accounts import AccountError
from webapp.core.permissions import Role
from webapp.datasets.services import datasets
from webapp.evaluations.selectors import predictions
from webapp.ingestion.services import ingest, trajectories
from webapp.models import Dataset, Group, Task, TaskAnswer, Trajectory
from webapp.rollouts.selectors import learning
from webapp.runs.services import runs, states

pytestmark = pytest.mark.django_db


@pytest.fixture
def home(settings: Any, tmp_path: Path) -> Path:
    settings.TRAINYARD_HOME = tmp_path
    return tmp_path


def write_dataset(home: Path, name: str, keys: list[str]) -> None:
    folder = home / "datasets" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset.json").write_text(json.dumps({"format": 1, "provenance": {"sources": ["x"]}}))
    tasks = [
        {"id": key, "instance_id": f"i-{key}", "repo": "r", "base_commit": "c", "image": "local:x",
         "problem_statement": "nul \0 and \u2028", "split": "train" if key < "k3" else "heldout"}
        for key in keys
    ]  # fmt: skip
    answers = [{"id": key, "gold_patch": f"gold {key}", "fail_to_pass": ["t"]} for key in keys]
    for file, rows in (("tasks.jsonl", tasks), ("answers.jsonl", answers)):
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_folder_is_mirrored_and_removed_tasks_become_inactive(home: Path) -> None:
    write_dataset(home, "d", ["k1", "k2", "k3"])
    dataset = datasets.sync(name="d")
    assert (dataset.num_tasks, dataset.splits) == (3, {"train": 2, "heldout": 1})
    assert TaskAnswer.objects.get(task__key="k2").gold_patch == "gold k2"
    first = Task.objects.get(key="k1")
    assert first.problem_statement == "nul \ufffd and \u2028"
    write_dataset(home, "d", ["k1", "k4"])
    datasets.sync(name="d")
    assert dict(Task.objects.values_list("key", "active")) == {
        "k1": True,
        "k2": False,
        "k3": False,
        "k4": True,
    }
    assert Task.objects.get(key="k1").pk == first.pk


def test_trajectories_are_linked_to_the_tasks_of_a_later_dataset(home: Path) -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "k1", 0))
    post(claim, stream)
    assert Trajectory.objects.get(run=run).task is None
    write_dataset(home, "quickstart", ["k1"])
    datasets.sync(name="quickstart")
    task = Task.objects.get(key="k1")
    assert Trajectory.objects.get(run=run).task == task
    assert Group.objects.get(run=run).task == task


@pytest.mark.parametrize("header", ['{"format": 1, "provenance": ["x"]}', "[1]", '{"provenance": 7}'])
def test_malformed_dataset_header_has_no_provenance(home: Path, header: str) -> None:
    write_dataset(home, "d", ["k1"])
    (home / "datasets" / "d" / "dataset.json").write_text(header)
    assert datasets.sync(name="d").provenance == {}


STAGES = [
    {"stage": "commits", "reached": 8, "lost": {}},
    {"stage": "tests differ", "reached": 2, "written": 1, "lost": {"no_difference": 5, "collection": 1}},
]
EXAMPLES = {"collection": [{"origin": "r", "item": "a" * 40, "detail": "<script>alert(1)</script>"}]}


def funnel_page(**provenance: Any) -> str:
    dataset = Dataset.objects.create(name="made", provenance=provenance)
    return signed_in(Role.VIEWER).get(f"/datasets/{dataset.name}/").content.decode()


def test_page_shows_the_funnel_of_commits_with_examples(home: Path) -> None:
    licences = {"https://h.example/r": "MIT OR <b>ISC</b>"}
    page = funnel_page(funnel=STAGES, examples=EXAMPLES, tasks=2, seed=3, licences=licences)
    assert "r <strong>MIT OR &lt;b&gt;ISC&lt;/b&gt;</strong>" in page
    assert "From commits to tasks" in page
    assert '<span class="loss-number">5</span> tests already pass before the change' in page
    assert "25.0 %" in page
    assert page.count("1 by tests of a model") == 1
    assert f"<code>{'a' * 12}</code>" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert(1)" not in page


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_the_page_of_a_task_shows_how_its_statement_was_made(role: Role) -> None:
    dataset = Dataset.objects.create(name="made")
    task = Task.objects.create(dataset=dataset, key="k1", instance_id="i", split="train")
    judge = {"model": "j", "leaks": False, "leaks_reason": "<b>fine</b>" + "x" * 5000}
    rejected = [{"result": "form", "detail": "too short"}]
    record = {"method": "written", "model": "m", "judge": judge, "rejected": rejected}
    TaskAnswer.objects.create(task=task, metadata={"statement": record, "packages": ["pinned"]})
    page = signed_in(role).get("/datasets/made/tasks/k1/").content.decode()
    assert ("statement · rejected 1 · result" in page) == (role is Role.OPERATOR)
    assert ("&lt;b&gt;fine" in page) == (role is Role.OPERATOR)
    assert "pinned" not in page
    assert "x" * 2000 not in page


def test_page_shows_the_funnel_of_a_hardening_with_unchanged_tasks(home: Path) -> None:
    stages = [
        {"stage": "tasks", "reached": 4, "lost": {}},
        {"stage": "weak", "reached": 1, "lost": {"strong": 3}},
    ]
    examples = {"strong": [{"origin": "", "item": "pkg__mod-" + "1" * 20, "detail": "<b>"}]}
    page = funnel_page(
        funnel=stages, examples=examples, tasks=1, hardened_from="soft", original={"secret": "x"}
    )
    assert "Hardening of soft" in page
    assert '<span class="loss-number">3</span> tests reject every wrong patch' in page
    assert f"<code>pkg__mod-{'1' * 20}</code>" in page
    assert "secret" not in page


@pytest.mark.parametrize(
    "provenance",
    [
        {"funnel": 3, "examples": {}},
        {"funnel": [3], "examples": {}},
        {"funnel": [{"stage": "a", "reached": "x", "lost": {}}], "tasks": 1, "examples": {}},
        {"funnel": [{"stage": "a", "reached": 1, "lost": {"b": None}}], "tasks": 1, "examples": {}},
        {"funnel": STAGES, "tasks": 2, "examples": {"collection": [3]}},
        {"funnel": [], "tasks": 0, "examples": {}, "licences": 3},
    ],
)
def test_page_survives_malformed_funnels(home: Path, provenance: dict[str, Any]) -> None:
    assert "From commits to tasks" not in funnel_page(**provenance)


@pytest.mark.parametrize("broken", ["dataset.json", "tasks.jsonl", "answers.jsonl"])
def test_a_broken_folder_changes_nothing(home: Path, broken: str) -> None:
    write_dataset(home, "d", ["k1"])
    datasets.sync(name="d")
    (home / "datasets" / "d" / broken).write_text("{\n")
    with pytest.raises(DatasetError, match=broken):
        datasets.sync(name="d")
    (home / "datasets" / "d" / broken).unlink()
    with pytest.raises(DatasetError, match="cannot read"):
        datasets.sync(name="d")
    assert Task.objects.filter(active=True).count() == 1


def test_finished_curation_requests_a_sync_of_its_dataset(
    home: Path, django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.create(recipe="quickstart-dataset", overrides={"curation.output": "mine"})
    run, claim = launched(run)
    stream = Stream()
    stream.started()
    stream.add("run_finished", state="succeeded", summary={"dataset": "mine"})
    sent: list[tuple[Any, ...]] = []
    monkeypatch.setattr("webapp.core.dispatch.send", lambda *arguments: sent.append(arguments))
    with django_capture_on_commit_callbacks(execute=True):
        post(claim, stream)
    assert ("trainyard.sync_dataset", "mine", run.pk) in sent


def test_imported_trajectories_form_a_succeeded_run() -> None:
    stream = Stream()
    stream.trajectory(ref(0, "k1", 0))
    stream.trajectory(ref(0, "k1", 1), reward=0.0, termination="rollout_timeout")
    task = {"task": {"id": "k1", "instance_id": "i"}, "answer": {"gold_patch": "g"}, "split": "imported"}
    lines = [json.dumps(task).encode(), *stream.lines]
    run = trajectories.import_lines(file_name="some file.jsonl", lines=lines)
    assert (run.state, run.kind, run.name) == ("succeeded", "rollout", "some file.jsonl")
    assert Task.objects.get(dataset__name="some-file.jsonl").instance_id == "i"
    assert set(Trajectory.objects.filter(run=run).values_list("task__key", "reward")) == {
        ("k1", 1.0),
        ("k1", 0.0),
    }
    page = signed_in(Role.VIEWER).get(f"/runs/{run.pk}/").content.decode()
    assert "submitted\u202f1 · rollout time limit\u202f1" in page
    with pytest.raises(ingest.MalformedError):
        trajectories.import_lines(file_name="other.jsonl", lines=[*lines, b"{}"])


CASES = Path(__file__).parents[2] / "unit" / "datasets" / "cases"
FILES = {
    **{
        CASES / "conversations" / f"{name}.jsonl": trajectories_conversations.read_trajectories
        for name in ("nul_in_observation", "resolved_text", "one_call_with_broken_json")
    },
    CASES / "trajectories" / "atif.json": trajectories_atif.read_trajectories,
    CASES / "trajectories" / "output.with_completions.jsonl.gz": trajectories_conversations.read_trajectories,
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.name))
def test_published_files_are_imported_and_rollouts_without_verdict_not_used(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = list(FILES[path](path, lambda *_: None))
    print_ndjson(loaded, time=1.0)
    lines = capsys.readouterr().out.encode().splitlines()
    run = trajectories.import_lines(file_name=path.name, lines=lines)
    stored = {row.task_key: row for row in Trajectory.objects.filter(run=run)}
    assert {key: (row.verdict, row.reward, row.cost, row.error) for key, row in stored.items()} == {
        entry.row.task.id: (entry.verdict or "", entry.reward, entry.cost, entry.error) for entry in loaded
    }
    query = TrajectoryQuery(runs=(run.pk,), verdicts=(), distinct_patches=False)
    known = {entry.row.task.id for entry in loaded if entry.verdict is not None}
    assert set(learning.choose(query, seed=0).ids) == {stored[key].pk for key in known}
    choice = predictions.choose(run)
    assert choice is not None
    assert {entry.model_patch for entry in predictions.predictions(run, choice)} == {
        entry.patch for entry in loaded if entry.patch is not None and entry.verdict is not None
    }


def test_only_running_runs_can_be_paused() -> None:
    run = make_run()
    with pytest.raises(states.IllegalTransitionError):
        runs.pause(run=run)
    run, claim = launched()
    stream = Stream()
    stream.started()
    post(claim, stream)
    runs.pause(run=run)
    assert (run.state, run.desired) == ("running", "pause")
    second = Stream(first_seq=2)
    second.add("run_paused")
    post(claim, second)
    runs.resume(run=run)
    assert (run.state, run.desired) == ("paused", "run")
    states.move(run_id=run.pk, to=RunState.SUCCEEDED)
    for action in (runs.pause, runs.resume, runs.stop, runs.start):
        with pytest.raises(states.IllegalTransitionError):
            action(run=run)


def test_first_admin_gets_a_password_once_and_the_last_one_is_kept() -> None:
    out = run_command("account", "ensure-admin")
    assert "password" in out
    repeated = run_command("account", "ensure-admin")
    assert repeated == ""
    admin = User.objects.get(username="admin")
    with pytest.raises(AccountError, match="last admin"):
        accounts.set_role(user=admin, role=Role.VIEWER)
    with pytest.raises(AccountError, match="last admin"):
        accounts.set_active(user=admin, active=False)
    make_user("ada", Role.ADMIN)
    accounts.set_role(user=admin, role=Role.VIEWER)
    assert not admin.is_superuser
