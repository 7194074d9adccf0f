"""Results on the page of each kind of run, in every state."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from tests.builders.web.html_regions import inner_html
from tests.builders.web.kind_builders import KINDS, make_kind
from tests.builders.web.web_builders import make_user
from webapp.core.permissions import Role
from webapp.models import Run

pytestmark = pytest.mark.django_db
MADE = {
    "train": ("Solved, heldout 100.0 % [20.0 %, 100.0 %]", "Solved, last batch 50.0 %", "Iterations 3 of 3"),
    "evaluate": ("Solved, heldout 66.7 % 95 %: 12.5 % – 93.8 % over 3 tasks", "Open the evaluation"),
    "rollout": ("Solved 66.7 %", "Rollouts 4 of 4"),
    "oracle": (
        "Valid rows 2 of 3 1 could not be checked", "a row is valid if its gold patch passes the tests",
        "boltons__iterutils-1 failed 1 of 3 tests failed",
        "boltons__iterutils-3 environment failed the sandbox did not start",
    ),
    "write-tests": ("Reproduced 66.7 %", "not reproduced 1"),
    "sft": ("Loss of answers 0.312", "Held-out faults fixed 50.0 % 40 episodes, greedy", "checkpoint run:"),
    "fine-tune": (
        "Loss 0.75 last step", "Evaluation loss 1.38 1.88 before training",
        "Trajectories used 21 3 more held out", "2 not used: longer than trainer.max_tokens",
        "learned from run", "checkpoint run:",
    ),
    "train-judge": ("Loss 0.75 last step", "Trajectories used 21", "learned from run", "checkpoint run:"),
    "curate": (
        "Tasks 40 at most 64 wanted", "From faults to tasks", "Tried 75 35.7 % 135 not tried: enough tasks",
        "30 no test detects the fault pip:toolz==1.0.0 toolz/utils.py:9 raises &lt;b&gt;",
        "Sources that were not used pip:nothing==1: there are no tests", "tasks of curated",
        "Open the dataset",
    ),
    "validate": (
        "Valid rows 1 of 4", "Quarantined 2", "valid 1 no-op passes 1 gold fails 1",
        "boltons__iterutils-1 gold fails with its gold patch the row still fails", "health of quickstart",
    ),
    "import": (
        "Rows imported 4 500 of 5 000", "Rejected 12", "10 rejected: field patch",
        "400 excluded: statement like one of the benchmark", "tasks of imported", "Open the dataset",
    ),
    "improve": ("Rounds 2 of 2", "Solved, heldout 100.0 % [20.0 %, 100.0 %]"),
    "verify": ("Scored 3 of 4", "Without a score 1", "Resolved by grading 2 of 4"),
    "regrade": (
        "Graded again 3 of 4", "Flips 2 1 passed → failed, 1 passed → tampered", "Not graded again 1",
        "3 of its trajectories graded again, on 3 tasks", "pass@1 66.7 %",
    ),
    "verify-by-tests": ("Scored 3 of 4", "Written tests kept 2 of 6 1 toxic"),
}  # fmt: skip
DRAWN = ("train", "improve", "fine-tune", "train-judge")
"""Kinds with charts of iterations."""
UNENDED = re.compile(r"\byet\b|not finished|so far|appear here|remaining: –|will be here")
"""Texts that only an unfinished run may show."""


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(make_user("olga", Role.OPERATOR))
    return client


def page_of(client: Client, run: Run, part: str = "content") -> str:
    html = inner_html(client.get(f"/runs/{run.pk}/").content.decode(), part)
    return " ".join(re.sub(r"<[^>]+>", " ", html).replace("\u202f", " ").split())


def charts_of(client: Client, run: Run) -> list[str] | None:
    """Return the titles of the page's charts, or None without a visible chart section."""
    response = client.get(f"/runs/{run.pk}/")
    section = re.search(r'<section[^>]*id="charts-section"[^>]*>', response.content.decode())
    if section is None or "hidden" in section[0]:
        return None
    return [spec["title"] for spec in response.context["charts"]["specs"]]


@pytest.mark.parametrize("kind", KINDS)
def test_succeeded_run_shows_its_results(operator: Client, kind: str) -> None:
    run = make_kind(kind)
    text = page_of(operator, run)
    for words in MADE[kind]:
        assert words in text
    assert UNENDED.search(text) is None
    charts = charts_of(operator, run)
    assert (charts is not None) == (kind in DRAWN)
    assert charts is None or charts[0] in ("Mean reward", "Loss")


@pytest.mark.parametrize("kind", KINDS)
def test_failed_run_shows_its_reason_and_kept_results(operator: Client, kind: str) -> None:
    failed = make_kind(kind, "failed")
    text = page_of(operator, failed)
    assert "✕ failed" in text
    assert "Failed. No sandbox could be started: bubblewrap is missing." in text
    assert kept_after_failure(kind) in text
    assert UNENDED.search(text) is None
    assert (charts_of(operator, failed) is not None) == (kind in DRAWN)


@pytest.mark.parametrize("kind", ["train", "fine-tune", "evaluate", "rollout", "curate"])
def test_stopped_run_shows_its_state_and_reason(operator: Client, kind: str) -> None:
    stopped = make_kind(kind, "stopped")
    text = page_of(operator, stopped)
    assert "■ stopped" in text
    assert "Stopped. A stop was requested." in text
    assert UNENDED.search(text) is None
    assert (charts_of(operator, stopped) is not None) == (kind in DRAWN)


def kept_after_failure(kind: str) -> str:
    if kind in ("fine-tune", "train-judge"):
        return "The checkpoint after iteration 2 is kept."
    if kind == "improve":
        return "The checkpoint after iteration 1 is kept."
    if kind in ("train", "sft"):
        return "No checkpoint was saved."
    return "kept" if kind not in ("curate", "import") else "No dataset was made; "


@pytest.mark.parametrize("kind", ["train", "fine-tune"])
def test_run_that_ended_before_its_first_iteration_has_no_charts(operator: Client, kind: str) -> None:
    run = make_kind(kind, "running")
    run.iterations.all().delete()
    announced = charts_of(operator, run)
    assert announced is not None
    assert ("Mean reward" in announced) == (kind == "train")
    Run.objects.filter(pk=run.pk).update(state="failed", finished_at=run.running_at)
    assert charts_of(operator, run) is None


def test_viewers_see_failed_oracle_rows_without_reasons(client: Client) -> None:
    run = make_kind("oracle")
    client.force_login(make_user("vera", Role.VIEWER))
    text = page_of(client, run)
    assert "boltons__iterutils-1 failed –" in text
    assert "1 of 3 tests failed" not in text
