"""Submissions of stored evaluations: page, archive, API and command."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from errno import ENOSPC
from html import unescape
from pathlib import Path

import pytest
import yaml
from django.contrib.auth.models import User
from django.test import Client

from engine.evaluation.submission_checks import check_submission
from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.evaluation_builders import FIRST, end_evaluation, evaluate, evaluated, scored
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.page_builders import make_dataset
from tests.builders.web.web_builders import launched, make_user, post, streamed
from webapp.core.permissions import Role
from webapp.models import AuditEntry, Run

pytestmark = pytest.mark.django_db(transaction=True)
DESCRIBED = {
    "name": "Toy agent", "authors": "A. Author, B. Author", "organizations": "Toys", "models": "toy-1",
    "site": "https://example.org", "report": "https://example.org/report", "confirmed": "on",
}  # fmt: skip


def client(role: Role) -> Client:
    browser = Client()
    browser.force_login(make_user(role.value, role))
    return browser


def downloaded(role: Role, address: str, given: Mapping[str, str]) -> tuple[str, dict[str, bytes]]:
    user = User.objects.filter(username=role.value).first() or make_user(role.value, role)
    parts = streamed(user, address, given)
    assert len(parts) > 5
    return unpacked(b"".join(parts))


def unpacked(content: bytes) -> tuple[str, dict[str, bytes]]:
    archive = zipfile.ZipFile(io.BytesIO(content))
    files = {name: archive.read(name) for name in archive.namelist()}
    (folder,) = {name.partition("/")[0] for name in files}
    return folder, {name.partition("/")[2]: content for name, content in files.items()}


def test_archive_has_the_findings_that_the_page_shows() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks, FIRST)
    reader, address = client(Role.OPERATOR), f"/evaluations/{run.pk}/eval:heldout/0/submission/"
    assert "Not checked yet" in reader.get(address).content.decode()
    blank = unescape(reader.get(address, {"check": "on"}).content.decode())
    assert "info.report is empty" in blank
    assert "unconfirmed statements in its checklist" in blank
    assert (
        f"/evaluations/{run.pk}/eval:heldout/0/submission/"
        in reader.get(f"/evaluations/{run.pk}/eval:heldout/0/").content.decode()
    )
    page = reader.get(address, {**DESCRIBED, "check": "on"})
    assert "test_output.txt" in page.content.decode(), "these rollouts have no log"
    folder, files = downloaded(Role.OPERATOR, page.context["zip_url"], DESCRIBED)
    entry = AuditEntry.objects.get(action="submission.export", run=run)
    assert (entry.actor and entry.actor.username, entry.target) == ("operator", "eval:heldout 0")
    assert folder.endswith("_Toy-agent")
    assert list(page.context["findings"]) == check_submission(folder, files.items())
    predictions = [json.loads(line) for line in files["all_preds.jsonl"].splitlines()]
    assert [row["model_patch"] for row in predictions] == ["a", "a", "a", "a"], "attempt 0 of each task"
    assert yaml.safe_load(files["metadata.yaml"])["info"]["authors"] == ["A. Author", "B. Author"]
    trace = json.loads(files[f"trajs/{tasks[0].instance_id}.json"])
    assert trace["steps"][0]["tool"] == "file_editor"
    assert json.loads(files["results/resolved_by_repo.json"]) == {
        "mahmoud/boltons": {"resolved": 3, "total": 4}
    }


def test_lost_tasks_are_submitted_and_an_open_evaluation_is_a_finding() -> None:
    dataset, tasks = make_dataset()
    run, claim = launched()
    Run.objects.filter(pk=run.pk).update(dataset=dataset)
    stream = Stream(epoch=claim.epoch)
    stream.started()
    evaluate(stream, tasks[:2], (((None,), "a"), ((True,), "a")))
    cancelled = ref(0, tasks[2].key, 0, phase="eval:heldout")
    stream.add("trajectory_started", ref=cancelled, sandbox_id="s-1")
    post(claim, stream)
    reader, address = client(Role.OPERATOR), f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/0/submission"
    findings = reader.get(f"{address}/findings").json()["findings"]
    assert "the evaluation has not ended; tasks left out: 1" in findings
    end_evaluation(stream)
    post(claim, stream)
    findings = reader.get(f"{address}/findings").json()["findings"]
    assert not any("not ended" in finding for finding in findings)
    assert "instances without a reasoning trace in trajs/: 3, such as boltons__iterutils-0" in findings
    assert not any("without a prediction" in finding for finding in findings)
    _, files = downloaded(Role.OPERATOR, address, {})
    assert b"Resolved 1 of 4 instances (25.00%)" in files["README.md"]
    assert json.loads(files["results/resolved_by_repo.json"]) == {
        "mahmoud/boltons": {"resolved": 1, "total": 4}
    }
    predictions = [json.loads(line) for line in files["all_preds.jsonl"].splitlines()]
    assert {row["instance_id"]: row["model_patch"] for row in predictions} == {
        task.instance_id: "a" if task == tasks[1] else "" for task in tasks
    }


def test_rules_select_the_submitted_attempt_and_the_oracle_is_refused() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks[:1], FIRST)
    verifier = scored(run, tasks[0], {0: 0.1, 1: 0.2, 2: 0.9, 3: 0.3})
    reader = client(Role.OPERATOR)
    address = f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/0/submission"
    for chosen in ({"verifier": str(verifier.pk)}, {}):
        params = {**DESCRIBED, "confirmed": "true", "rule": "ef", **chosen}
        _, files = downloaded(Role.OPERATOR, address, params)
        assert json.loads(files["all_preds.jsonl"].splitlines()[0])["model_patch"] == "b"
    assert yaml.safe_load(files["metadata.yaml"])["tags"]["system"]["attempts"] == "2+"
    wrong: tuple[tuple[dict[str, str], str], ...] = (
        ({"rule": "oracle"}, "reads the evaluation's own result"),
        ({"rule": "ef", "verifier": "999"}, "run 999 has no scores"),
        ({"rule": "eb"}, "4 of 4 rollouts have no"),
        ({"rule": "eb", "tests": str(verifier.pk)}, "has no passes of tests"),
        ({"rule": "best"}, "there is no rule 'best'"),
        ({"index": "-1"}, "expected a whole number"),
        ({"index": "99"}, "no task has attempt 99; their attempts are 0, 1, 2, 3"),
    )
    for choice, message in wrong:
        refused = reader.get(address, choice)
        assert refused.status_code == 422
        assert message in refused.json()["detail"]
        page = reader.get(f"/evaluations/{run.pk}/eval:heldout/0/submission/", {**choice, "check": "on"})
        assert message in unescape(page.content.decode())
        zipped = reader.get(f"/evaluations/{run.pk}/eval:heldout/0/submission.zip", choice)
        assert zipped.status_code == 422
        assert message in unescape(zipped.content.decode())
    checked = reader.get(f"{address}/findings", {**DESCRIBED, "confirmed": "true"}).json()
    assert checked["folder"].endswith("_Toy-agent")


def test_a_submission_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks, FIRST)
    monkeypatch.setattr(Path, "write_bytes", full_after(3))
    with pytest.raises(CommandFailedError, match="cannot write .*: No space left on device"):
        run_command("evaluation", "submission", str(run.pk), "--output", str(tmp_path))
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    run_command("evaluation", "submission", str(run.pk), "--output", str(tmp_path))
    (folder,) = tmp_path.iterdir()
    assert len(list((folder / "trajs").iterdir())) == 4


def full_after(number: int) -> Callable[[Path, bytes], int]:
    """Return a function that writes files until the disk is full."""
    write, remaining = Path.write_bytes, iter(range(number))

    def limited(path: Path, content: bytes) -> int:
        if next(remaining, None) is None:
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        return write(path, content)

    return limited
