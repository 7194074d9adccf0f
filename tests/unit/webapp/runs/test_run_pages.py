"""Actions on run pages: filter, sort, create, clone, start, pause, stop, acknowledge."""

from __future__ import annotations

import base64
import re
from datetime import timedelta

import pytest
from django.contrib.messages import get_messages
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.html import escape

from engine.events.token_block import encode
from engine.tokens import TokenRecord
from tests.builders.commands import run_command
from tests.builders.web.page_builders import Yard, make_yard
from tests.builders.web.web_builders import hand_over, launched, make_run, make_user
from webapp.core.contexts.frame import trajectory_url
from webapp.core.permissions import Role
from webapp.live.fragments import Subscription, snapshot
from webapp.models import Alert, AuditEntry, Dataset, Evaluation, Experiment, Run, TokenBlob
from webapp.overview.contexts import overview
from webapp.rollouts.contexts.advantage import equation
from webapp.runs.selectors import iterations
from webapp.runs.selectors.run_table import RunFilters, list_runs

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Client:
    client = Client()
    client.force_login(make_user("ada", Role.OPERATOR))
    return client


def test_run_is_created_from_the_form(operator: Client) -> None:
    Dataset.objects.create(name="quickstart")
    experiment = Experiment.objects.create(name="first")
    form = {
        "recipe": "quickstart",
        "name": "mine",
        "trainer.iterations": "5",
        "experiment": str(experiment.pk),
        "then": "draft",
    }
    response = operator.post("/runs/new/", form)
    run = Run.objects.get()
    assert response["Location"] == f"/runs/{run.pk}/"
    assert (run.name, run.state, run.total_iterations, run.experiment) == ("mine", "draft", 5, experiment)
    assert run.created_by is not None
    assert run.created_by.username == "ada"
    operator.post("/runs/new/", form | {"then": "start"})
    assert Run.objects.latest("id").state == "queued"


def test_invalid_setting_keeps_the_input_and_explains_the_error(operator: Client) -> None:
    form = {
        "recipe": "quickstart",
        "name": "kept <name>",
        "trainer.iterations": "none",
        "trainer.minibatches": "99",
    }
    response = operator.post("/runs/new/", form)
    assert response.status_code == 422
    text = response.content.decode()
    assert "No run was created" in text
    assert "trainer.iterations" in text
    assert "kept &lt;name&gt;" in text
    assert not Run.objects.exists()


def test_clone_differs_only_in_changed_settings(operator: Client) -> None:
    parent = make_run(**{"trainer.iterations": 7})
    operator.post(
        "/runs/new/",
        {"clone": str(parent.pk), "name": "again", "trainer.learning_rate": "0.001", "then": "draft"},
    )
    child = Run.objects.latest("id")
    assert child.parent == parent
    assert child.config["trainer"] == parent.config["trainer"] | {"learning_rate": 0.001}
    page = operator.get(f"/runs/{child.pk}/?tab=configuration").content.decode()
    assert "3 settings differ" in page


def test_controls_request_state_changes_and_are_audited(operator: Client) -> None:
    run, claim = launched()
    Run.objects.filter(pk=run.pk).update(state="running")
    hand_over("ada")
    operator.post(f"/runs/{run.pk}/pause/")
    run.refresh_from_db()
    assert run.desired == "pause"
    page = operator.get(f"/runs/{run.pk}/").content.decode()
    assert "pause requested" in page
    operator.post(f"/runs/{run.pk}/stop/")
    run.refresh_from_db()
    assert run.state == "stopping"
    assert {"run.pause", "run.stop"} <= set(AuditEntry.objects.values_list("action", flat=True))
    response = operator.post(f"/runs/{run.pk}/start/")
    assert "Nothing was changed" in str(next(iter(get_messages(response.wsgi_request))))


def test_controls_require_a_post_with_csrf_token(operator: Client) -> None:
    run = make_run()
    assert operator.get(f"/runs/{run.pk}/start/").status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(make_user("eve", Role.OPERATOR))
    assert strict.post(f"/runs/{run.pk}/start/").status_code == 403


def test_acknowledged_alert_disappears_from_the_overview(operator: Client) -> None:
    yard = make_yard(iterations=1, group_size=2)
    hand_over("ada")
    alert = yard.run.alerts.get()
    assert "entropy fell" in operator.get("/").content.decode()
    operator.post(f"/alerts/{alert.pk}/acknowledge/", {"next": "overview"})
    alert.refresh_from_db()
    assert alert.acknowledged_by is not None
    assert "entropy fell" not in operator.get("/").content.decode()


def test_alerts_of_one_code_are_grouped_and_acknowledged_together(operator: Client) -> None:
    yard = make_yard(iterations=1, group_size=2)
    hand_over("ada")
    code = yard.run.alerts.get().code
    for number in range(3):
        yard.stream.add("alert", severity="warning", code=code, message=f"again {number}", iteration=0)
    yard.post()
    page = operator.get(f"/runs/{yard.run.pk}/").content.decode()
    assert ("again 2" in page, "again 1" in page, "entropy fell" in page) == (True, False, False)
    assert "×4" in page
    newest = yard.run.alerts.get(message="again 2")
    yard.stream.add("alert", severity="warning", code=code, message="unseen", iteration=0)
    yard.post()
    operator.post(f"/alerts/{newest.pk}/acknowledge/")
    assert [alert.message for alert in yard.run.alerts.filter(acknowledged_at=None)] == ["unseen"]


def test_overview_groups_alerts_by_code_over_runs(operator: Client) -> None:
    now = timezone.now()
    for minutes, (run, code) in enumerate(
        [(make_run(), "kl_spike"), (make_run(), "entropy_collapse"), (make_run(), "entropy_collapse")]
    ):
        for number in range(2):
            Alert.objects.create(
                run=run, severity="warning", code=code, message=f"{code} {minutes} {number}",
                time=now + timedelta(minutes=minutes, seconds=number),
            )  # fmt: skip
    page = operator.get("/").content.decode()
    assert "4 alerts in 2 runs" in page
    assert page.index("4 alerts in 2 runs") < page.index("Kl spike")
    assert ("entropy_collapse 2 1" in page, "entropy_collapse 1 1" in page) == (True, True)
    assert "entropy_collapse 2 0" not in page
    kinds = operator.get("/api/v1/alerts").json()["kinds"]
    assert kinds == [
        {"code": "entropy_collapse", "num_alerts": 4, "num_runs": 2},
        {"code": "kl_spike", "num_alerts": 2, "num_runs": 1},
    ]
    assert run_command("alert", "list").startswith("entropy_collapse: 4 in 2 runs\nkl_spike: 2 in 1 run\n")


def test_frequent_alerts_hide_no_other_kind_from_the_overview(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MOST_ALERTS", 2)
    now, numbers = timezone.now(), [launched()[0].pk for _ in range(4)]
    codes = [("kl_spike", number, 0) for number in numbers]
    codes += [("entropy_low", numbers[0], hours) for hours in (1, 2)]
    Alert.objects.bulk_create(
        Alert(run_id=run, severity="warning", code=code, message="!", time=now - timedelta(hours=hours))
        for code, run, hours in codes
    )
    kinds = overview.build_overview(role=Role.ADMIN, user_id=None).kinds
    assert [(shown.kind.code, shown.kind.num_runs, len(shown.alerts)) for shown in kinds] == [
        ("kl_spike", 4, 2),
        ("entropy_low", 1, 1),
    ]
    assert kinds[1].newest.num_alike == 2


def test_overview_shows_the_first_and_the_newest_heldout_rate(operator: Client) -> None:
    run = make_run()
    Run.objects.filter(pk=run.pk).update(state="succeeded", finished_at=timezone.now())
    for iteration, rate in ((0, 0.125), (2, 0.25), (4, 0.625)):
        Evaluation.objects.create(
            run=run, iteration=iteration, name="heldout", policy_version=1, num_samples=16, num_tasks=8,
            num_solved=2, solve_rate=rate, interval_low=rate / 2, interval_high=rate,
            finished_at=timezone.now(),
        )  # fmt: skip
    page = " ".join(operator.get("/").content.decode().replace("\u202f", " ").split())
    assert "12.5 % → <strong>62.5 %</strong>" in page
    assert "31 % – 62 %" in page


def test_last_batch_has_its_own_solve_rate_interval_and_endings(yard: Yard, operator: Client) -> None:
    page = operator.get(f"/runs/{yard.run.pk}/").content.decode()
    assert "since start" not in page
    rate = iterations.batch_rate(yard.run.pk, iterations.points_after(yard.run.pk, -1)[-1])
    assert rate.rate is not None
    assert rate.low < rate.rate < rate.high
    assert rate.endings is not None
    assert rate.endings.graded == rate.graded
    assert "step limit\u202f" in page


def test_formula_matches_the_objective_and_appears_only_in_training(yard: Yard, operator: Client) -> None:
    trained = operator.get(f"/runs/{yard.run.pk}/train/0/").content.decode()
    assert escape(equation(yard.run)) in trained
    yard.run.config["algorithm"]["baseline"] = "none"
    yard.run.save()
    assert escape(equation(yard.run)) in operator.get(f"/runs/{yard.run.pk}/train/0/").content.decode()
    heldout = operator.get(f"/runs/{yard.run.pk}/eval:heldout/0/").content.decode()
    assert "other kept" not in heldout
    assert escape(equation(yard.run)) not in heldout


def test_run_list_filters_and_sorts(operator: Client) -> None:
    first, second = make_run(name="alpha"), make_run(name="beta")
    Run.objects.filter(pk=second.pk).update(state="failed", kind="evaluate")

    def run_ids(**filters: object) -> list[int]:
        return [run.pk for run in list_runs(RunFilters(**filters), number=1).rows]  # type: ignore[arg-type]

    assert run_ids() == [second.pk, first.pk]
    assert run_ids(sort="id") == run_ids(sort="name") == [first.pk, second.pk]
    assert run_ids(state="failed") == run_ids(kind="evaluate") == run_ids(q="BET") == [second.pk]
    assert run_ids(state="active") == run_ids(dataset="nowhere") == []
    page = operator.get("/runs/?sort=-name&kind=evaluate").content.decode()
    assert 'aria-sort="descending"' in page
    assert "showing 1–1 of 1" in page
    for invalid_query in ("?page=99999999999", "?page=-1", "?sort=token_hash", "?experiment=x", "?state=%00"):
        assert operator.get(f"/runs/{invalid_query}").status_code == 200


def test_run_list_shows_the_newest_heldout_rate_and_sorts_by_it(operator: Client) -> None:
    better, worse, without = (make_run(name=name) for name in ("better", "worse", "without"))
    for run, name, iteration, rate in (
        (better, "heldout", 0, 0.1), (better, "heldout", 4, 0.625), (better, "train", 8, 0.9),
        (worse, "other", 4, 0.25), (worse, "train", 8, 1.0),
    ):  # fmt: skip
        Evaluation.objects.create(
            run=run, iteration=iteration, name=name, policy_version=1, num_samples=16, num_tasks=8,
            num_solved=2, solve_rate=rate, interval_low=rate / 2, interval_high=rate,
            finished_at=timezone.now(),
        )  # fmt: skip
    rows = list_runs(RunFilters(sort="-heldout"), number=1).rows
    assert [run.pk for run in rows] == [better.pk, worse.pk, without.pk]
    page = operator.get("/runs/?sort=-heldout").content.decode().replace("\u202f", " ")
    assert "62.5 %" in page
    assert "25.0 %" in page
    assert "90.0 %" not in page
    assert "95 % interval 31.2 % to 62.5 %, 16 samples of 8 tasks" in page


# --- numbers ---------------------------------------------------------------------------


@pytest.fixture
def yard() -> Yard:
    return make_yard(iterations=2)


def test_the_funnel_accounts_for_every_rollout(yard: Yard) -> None:
    funnel = iterations.funnel(yard.run.pk, 1)
    assert funnel is not None
    masked = sum(count for _, count in funnel.masked)
    assert funnel.started == 16
    assert funnel.infrastructure + masked + funnel.zero_advantage + funnel.trained + funnel.unfinished == 16
    assert dict(funnel.masked) == {"max_steps": 2, "max_context": 2}
    assert funnel.infrastructure == 2
    assert funnel.trained == 10
    assert iterations.funnel(yard.run.pk, 99) is None


def add_token_rollout(yard: Yard, steps: list[int]) -> str:
    """Ingest rollout 51 with four tokens of the given steps and return its page's address."""
    record = TokenRecord(ids=range(4), mask=[0, 1, 0, 1], steps=steps)
    key = yard.ref(1, 0, 51)
    yard.stream.trajectory(key, steps=2, finish=False)
    yard.stream.finished(key, steps=2, tokens=base64.b64encode(encode(record)).decode())
    yard.post()
    return trajectory_url(yard.run.pk, "train", 1, yard.tasks[0].key, 51)


def num_samples(html: str) -> str:
    """Return the number of samples in a trajectory's provenance, or '' if it shows none."""
    shown = re.search(r'<dt>Samples</dt>\s*<dd title="[^"]*">\s*(\d+)\s*</dd>', html)
    return shown[1] if shown else ""


def test_a_trajectory_page_and_its_updates_read_no_tokens(yard: Yard, operator: Client) -> None:
    address = add_token_rollout(yard, [-1, 0, -1, 1])
    TokenBlob.objects.filter(trajectory__index=51).update(data=b"not a token block")
    target = ("train", "1", yard.tasks[0].key, "51")
    with CaptureQueriesContext(connection) as queries:
        page = operator.get(address).content.decode()
        update = snapshot(Subscription("trajectory", yard.run.pk, target, (), Role.OPERATOR))
    assert num_samples(page) == num_samples("".join(update.html.values())) == "2"
    token_queries = [query["sql"] for query in queries if TokenBlob._meta.db_table in query["sql"]]
    assert len(token_queries) == 2
    assert not any('"data"' in sql for sql in token_queries)
