"""Scanners with rubrics: entered, asked by workers about some rollouts, answers stored strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from engine.errors import ConfigError
from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.page_builders import Yard, make_yard
from tests.builders.web.web_builders import signed_in
from tests.fakes.openai_server import OpenAIServer, Reply, openai_server
from webapp.core.permissions import Role
from webapp.endpoints.services import endpoints
from webapp.models import AuditEntry, EnteredScanner, Judgement, Scan, Trajectory
from webapp.rollouts.selectors import scans as reads
from webapp.rollouts.services import judgements, scanners, scans
from workers import app as tasks
from workers import judging

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>"
RUBRIC = f"Did the agent compare lines? {HOSTILE}"
YES, NO = Reply(content="ANSWER: YES\nSTEPS: 0"), Reply(content="ANSWER: NO\nSTEPS: none")
KEY = "correct-horse-battery-staple"


@pytest.fixture
def yard() -> Yard:
    return make_yard(iterations=1, group_size=2)


def rubric(server: OpenAIServer | None = None, **changes: Any) -> EnteredScanner:
    """Enter a scanner with a rubric that asks a server."""
    address = server.url if server else "http://127.0.0.1:1/v1"
    endpoints.save(name="judge", address=address, models="m,n*", key=KEY)
    values = {"name": "compares", "rubric": RUBRIC, "endpoint": "judge", "model": "m", **changes}
    return scanners.save(**values)


def newest(yard: Yard) -> list[int]:
    """Return the rollouts that can be judged, the newest first."""
    return list(Scan.objects.filter(run=yard.run).order_by("-pk").values_list("pk", flat=True))


def test_workers_ask_about_the_newest_rollouts(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(_body: Any, number: int) -> Reply:
        return NO if number == 2 else YES

    monkeypatch.setattr(judgements, "BATCH", 2)
    ids = newest(yard)
    assert len(ids) > 3
    with openai_server(script) as server:
        started = judgements.start(scanner=rubric(server), run=yard.run, most=3)
        assert judging.judge_pending()
        assert reads.get_judgement(started.pk).asked == 2  # type: ignore[union-attr]
        assert judging.judge_pending()
        assert not judging.judge_pending()
        started.refresh_from_db()
        assert (started.asked, started.answered, started.found, started.unanswered) == (3, 3, 2, 0)
        assert (started.prompt_tokens, started.generated_tokens, started.problem) == (300, 60, "")
        assert started.finished_at is not None
        judged = Trajectory.objects.filter(reads.has_hit("compares")).order_by("-pk")
        assert list(judged.values_list("pk", flat=True)) == ids[:2]
        assert Scan.objects.get(pk=ids[2]).versions["compares"] == 1
        assert Scan.objects.get(pk=ids[0]).hits["compares"] == {"count": 1, "first": [[0, ""]]}
        assert all(headers["authorization"] == f"Bearer {KEY}" for headers in server.headers)
        assert all(body["max_tokens"] == judging.MOST_TOKENS for body in server.requests)
        assert RUBRIC in server.requests[0]["messages"][1]["content"]
        asked = len(server.requests)
        judgements.start(scanner=EnteredScanner.objects.get(), run=yard.run, most=3)
        while judging.judge_pending():
            pass
        assert len(server.requests) == asked + 3, "judged rollouts are not asked about again"
    scans.scan(trajectory_ids=ids)
    assert Scan.objects.get(pk=ids[0]).hits["compares"]["count"] == 1, "other scanners keep the hits"
    share = reads.shares([yard.run.pk])[yard.run.pk]["compares"]
    assert (share.scanned, share.found) == (6, 5)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (Reply(content=f"ANSWER: YES\nSTEPS: 99 {HOSTILE}"), "not of the asked form"),
        (Reply(content="ANSWER: YES\nSTEPS: 99999"), "not of the asked form"),
        (Reply(raw=b"{"), "invalid answer"),
        (Reply(status=400, error={"message": HOSTILE}), "answered 400"),
    ],
)
def test_other_answers_are_counted_as_none(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, reply: Reply, problem: str
) -> None:
    monkeypatch.setattr(judging, "MAX_RETRIES", 0)
    with openai_server([reply]) as server:
        judgements.start(scanner=rubric(server), run=yard.run, most=2)
        while judging.judge_pending():
            pass
    done = Judgement.objects.get()
    assert (done.asked, done.answered, done.unanswered) == (2, 0, 2)
    assert problem in done.problem
    assert not Scan.objects.filter(versions__has_key="compares").exists()
    page = signed_in(Role.OPERATOR).get("/scanners/").content.decode()
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize("is_second_answered", [False, True])
def test_a_batch_without_an_answer_ends_the_scan(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, is_second_answered: bool
) -> None:
    monkeypatch.setattr(judging, "MAX_RETRIES", 0)
    monkeypatch.setattr(judgements, "BATCH", 2)
    refusal = Reply(status=400, error={"message": "too long"})
    with openai_server([refusal, YES] if is_second_answered else [refusal]) as server:
        judgements.start(scanner=rubric(server), run=yard.run, most=100)
        judging.judge_pending()
    done = Judgement.objects.get()
    assert (done.asked, done.answered) == (2, int(is_second_answered))
    assert (done.finished_at is None) == is_second_answered
    assert "answered 400" in done.problem


def test_rollouts_that_cannot_be_read_do_not_hold_up_the_others(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, view = newest(yard), scans.view

    def fail(row: Trajectory) -> Any:
        if row.pk in ids[:2]:
            raise RecursionError
        return view(row)

    monkeypatch.setattr(judgements, "BATCH", 2)
    monkeypatch.setattr(scans, "view", fail)
    judgements.start(scanner=rubric(), run=yard.run, most=3)
    batch = judgements.next_batch()
    assert batch is not None
    assert [row.pk for row in batch.rows] == ids[2:3]
    assert (Judgement.objects.get().asked, len(batch.questions)) == (3, 1)
    assert "cannot be read" in Judgement.objects.get().problem


def test_a_stopped_scan_keeps_its_reason_and_asks_no_more(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judgements, "BATCH", 1)
    started = judgements.start(scanner=rubric(), run=yard.run, most=5)
    batch = judgements.next_batch()
    assert batch is not None
    judgements.stop(judgement=started)
    reply = judgements.Reply(text="what?", problem="", prompt_tokens=1, generated_tokens=1)
    judgements.record(batch, [reply])
    assert judgements._claim(started) == []
    assert (Judgement.objects.get().problem, Judgement.objects.get().asked) == ("stopped", 1)


def test_a_scan_keeps_hits_of_a_rubric_that_was_entered_meanwhile(yard: Yard) -> None:
    in_use = scans._InUse.load()
    judgements.start(scanner=rubric(), run=yard.run, most=1)
    batch = judgements.next_batch()
    assert batch is not None
    reply = judgements.Reply(text="ANSWER: YES\nSTEPS: 0", problem="", prompt_tokens=5, generated_tokens=1)
    judgements.record(batch, [reply])
    assert scans._scan_one(batch.rows[0].pk, in_use) is not None
    scan = Scan.objects.get(pk=batch.rows[0].pk)
    assert ("compares" in scan.found, "edited_tests" in scan.versions) == (True, True)


def test_failures_of_an_endpoint_are_retried(yard: Yard) -> None:
    replies = [Reply(status=503, error={"message": "busy"}, headers={"retry-after-ms": "1"}), YES]
    with openai_server(replies) as server:
        judgements.start(scanner=rubric(server), run=yard.run, most=1)
        judging.judge_pending()
    assert (Judgement.objects.get().answered, len(server.requests)) == (1, 2)


def test_a_refused_key_ends_the_scan(yard: Yard) -> None:
    with openai_server([Reply(status=401, error={"message": f"wrong key {KEY}"})]) as server:
        judgements.start(scanner=rubric(server), run=yard.run, most=100)
        judging.judge_pending()
    done = Judgement.objects.get()
    assert done.finished_at is not None
    assert "refuses the key (401)" in done.problem
    assert KEY not in done.problem


def test_a_killed_worker_repeats_no_cost(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    class KilledError(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> Any:
        raise KilledError

    monkeypatch.setattr(judgements, "BATCH", 2)
    judgements.start(scanner=rubric(), run=yard.run, most=100)
    monkeypatch.setattr("workers.judging.engine_json", killed)
    with pytest.raises(KilledError):
        judging.judge_pending()
    first = Judgement.objects.get()
    assert (first.asked, first.answered, first.finished_at) == (2, 0, None)
    second = judgements.next_batch()
    assert second is not None
    assert [row.pk for row in second.rows] == newest(yard)[2:4]


def test_a_scan_ends_with_its_scanner_or_endpoint(yard: Yard) -> None:
    scanner = rubric()
    judgements.start(scanner=scanner, run=yard.run, most=5)
    rubric(rubric="Another question")
    assert judgements.next_batch() is None
    assert "removed or changed" in Judgement.objects.get().problem
    scanner.refresh_from_db()
    judgements.start(scanner=scanner, run=yard.run, most=5)
    endpoints.save(name="judge", address="http://127.0.0.1:1/v1", models="other", key=KEY)
    assert judgements.next_batch() is None
    assert "'m' is no model" in Judgement.objects.latest("pk").problem


def test_a_later_attempt_gets_no_hits_of_the_earlier_one(yard: Yard) -> None:
    judgements.start(scanner=rubric(), run=yard.run, most=1)
    batch = judgements.next_batch()
    assert batch is not None
    Trajectory.objects.filter(pk=batch.rows[0].pk).update(epoch=7)
    reply = judgements.Reply(text="ANSWER: YES\nSTEPS: 0", problem="", prompt_tokens=5, generated_tokens=1)
    judgements.record(batch, [reply])
    assert not Scan.objects.filter(versions__has_key="compares").exists()
    assert (Judgement.objects.get().answered, Judgement.objects.get().prompt_tokens) == (0, 5)


def test_a_task_asks_until_the_scan_ends(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(tasks, "send", lambda *arguments: sent.append(arguments))
    with openai_server([NO]) as server:
        judgements.start(scanner=rubric(server), run=yard.run, most=2)
        tasks.scan()
        assert server.requests == []
        sent.clear()
        tasks.judge()
        assert (sent, len(server.requests)) == ([("trainyard.judge",)], 2)
        while sent:
            sent.clear()
            tasks.judge()
    assert Judgement.objects.get().finished_at is not None
    assert Judgement.objects.get().found == 0


def test_rubrics_are_entered_and_asked_by_page_api_and_command(yard: Yard) -> None:
    endpoints.save(name="judge", address="http://127.0.0.1:1/v1", models="m", key=KEY)
    ada, eve = signed_in(Role.OPERATOR, "ada"), signed_in(Role.OPERATOR, "eve")
    form = {"name": "compares", "rubric": RUBRIC, "endpoint": "judge", "model": "m", "words": "Careful"}
    assert ada.post("/scanners/save/", form).status_code == 302
    page = ada.get("/scanners/?edit=compares").content.decode()
    assert HOSTILE not in page
    assert "Did the agent compare lines?" in page
    viewed = signed_in(Role.VIEWER).get("/scanners/").content.decode()
    assert "scanners/judge/" not in viewed
    asked = ada.post("/scanners/judge/", {"name": "compares", "run": str(yard.run.pk), "most": "3"})
    assert asked.status_code == 302
    [record] = ada.get("/api/v1/judgements").json()
    assert record == json.loads(run_command("scanner", "judgements", "--json"))[0]
    assert (record["scanner"], record["most"], record["finished"]) == ("compares", 3, False)
    again = eve.post("/api/v1/scanners/compares/judge", {"run": yard.run.pk}, "application/json")
    assert (again.status_code, "is being scanned" in again.content.decode()) == (422, True)
    assert eve.post(f"/api/v1/judgements/{record['id']}/stop").status_code == 403
    assert eve.post(f"/scanners/judgements/{record['id']}/stop/").status_code == 403
    assert ada.post(f"/scanners/judgements/{record['id']}/stop/").status_code == 302
    assert Judgement.objects.get().problem == "stopped"
    command = json.loads(run_command("scanner", "judge", "compares", yard.run.pk, "--most", 2, "--json"))
    assert "stopped" in run_command("scanner", "stop-judgement", command["id"])
    listed = run_command("scanner", "list")
    assert "Did the agent compare lines?" in listed
    run_command("scanner", "add", "compares", "--rubric", "Other?", "--endpoint", "judge", "--model", "m")
    assert EnteredScanner.objects.get().version == 2
    actions = set(AuditEntry.objects.filter(action__startswith="scanner.").values_list("action", flat=True))
    assert actions == {"scanner.save", "scanner.ask", "scanner.stop"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rubric": ""}, "place: expected"),
        ({"pattern": "x"}, "not both"),
        ({"rubric": "x" * 4_001}, "rubric: expected at most 4000"),
        ({"endpoint": "other"}, "there is no endpoint 'other'"),
        ({"model": "z"}, "'z' is no model"),
    ],
)
def test_rubrics_that_cannot_be_used_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        rubric(**changes)


def test_scans_that_cannot_be_made_are_refused(yard: Yard) -> None:
    client: Client = signed_in(Role.OPERATOR)
    rubric()
    scanners.save(name="mine", pattern="x", place="thoughts")
    for name, most, problem in (("mine", "5", "has no rubric"), ("compares", "9999", "1 to 1000 rollouts")):
        form = {"name": name, "run": str(yard.run.pk), "most": most}
        assert problem in client.post("/scanners/judge/", form, follow=True).content.decode()
    assert client.post("/scanners/judge/", {"name": "other", "run": "1"}).status_code == 404
    assert client.post("/scanners/judge/", {"name": "compares", "run": "999999"}).status_code == 404
    with pytest.raises(CommandFailedError, match="there is no entered scanner 'other'"):
        run_command("scanner", "judge", "other", yard.run.pk)
    assert not Judgement.objects.exists()
