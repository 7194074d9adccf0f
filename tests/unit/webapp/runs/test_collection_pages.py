"""Page of a collection or evaluation: progress over all attempts, endings, and continuation."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.html_regions import inner_html
from tests.builders.web.web_builders import launched, make_run, make_user, post
from webapp.core.permissions import Role
from webapp.endpoints.services import endpoints
from webapp.models import Dataset, Run
from webapp.runs.cli.describe import describe
from webapp.runs.cli.quickstart import progress_line
from webapp.runs.services import runs

pytestmark = pytest.mark.django_db
STATE = {
    "graded": 30, "solved": 12, "lost": 2, "running": 8, "grading": 3, "steps": 300, "prompt_tokens": 9000,
    "generated_tokens": 40_000, "per_hour": 1200.0, "seconds_left": 96.0, "cost": 1.25,
}  # fmt: skip
ENDPOINT = {
    "policy.type": "endpoint", "policy.endpoint": "lab", "policy.model": "qwen-coder",
    "policy.input_price": 1, "policy.output_price": 2, "policy.spend_limit": 5,
}  # fmt: skip


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(make_user("olga", Role.OPERATOR))
    return client


def made(recipe: str = "collect", **overrides: Any) -> Run:
    Dataset.objects.get_or_create(name="tasks")
    endpoints.save(name="lab", address="https://lab.example/v1")
    return runs.create(recipe=recipe, overrides={"dataset.name": "tasks", **ENDPOINT, **overrides})


def started_run(run: Run) -> tuple[Run, Any, Stream]:
    run, claim = launched(run)
    stream = Stream()
    stream.add("run_started", host="h", pid=1, rollouts_kept=0, total_iterations=int(run.kind == "rollout"))
    post(claim, stream)
    return run, claim, stream


def going(run: Run, done: int = 32, total: int = 64, **state: Any) -> tuple[Run, Any, Stream]:
    run, claim, stream = started_run(run)
    progress = {"message": "rollouts", "done": done, "total": total, "seconds_left": STATE["seconds_left"]}
    stream.add("run_progress", collection=STATE | state, **progress)
    post(claim, stream, 1)
    run.refresh_from_db()
    return run, claim, stream


def text_of(client: Client, run: Run, region: str = "run-header") -> str:
    """Return the text of a live region with white space collapsed."""
    html = inner_html(client.get(f"/runs/{run.pk}/").content.decode(), region)
    return " ".join(re.sub(r"<[^>]+>", " ", html).replace("\u202f", " ").split())


def test_progress_shows_counts_interval_rate_tokens_cost_and_time_left(operator: Client) -> None:
    run, _, _ = going(made())
    text = text_of(operator, run)
    shown = "solved 12 not solved 18 excluded: lost to infrastructure 2 running 8 being graded 3 remaining 21"
    assert shown in text
    assert "Rollouts 32 of 64" in text
    assert "Solved so far 40.0 % 95 %: 24.6 % – 57.7 %" in text
    assert "about 1 min 36 s left" in text
    assert text.count("1 min 36 s") == 1
    assert "Rollouts per minute 20 last ten minutes" in text
    assert "Tokens 40 000 generated in 300 steps" in text
    assert "Cost $1.25 of $5.00" in text
    assert "model qwen-coder at lab" in text


def stopped_run(run: Run, **summary: Any) -> Run:
    run, claim, stream = going(run)
    reason = "the run has spent $5.0010 of policy.spend_limit $5"
    stream.add("run_finished", state="stopped", reason=reason, summary=summary)
    post(claim, stream, 2)
    run.refresh_from_db()
    return run


def test_spend_limit_is_reported_with_a_link_to_collect_the_rest(operator: Client) -> None:
    run = stopped_run(made(), stopped_by="spend_limit")
    text = text_of(operator, run)
    assert "Stopped at its spend limit. The run has spent $5.0010 of policy.spend_limit $5." in text
    assert "Resume" not in text
    page = operator.get(f"/runs/{run.pk}/").content.decode()
    address = re.search(r'href="(/runs/new/\?clone=[^"#]+)[^"]*">Collect the remaining', page)
    assert address is not None
    form = operator.get(address[1].replace("&amp;", "&")).context
    fields = {
        field.key: field for section in (*form["sections"], *form["others"]) for field in section.fields
    }
    assert (fields["collection.skip"].value, fields["collection.skip_runs"].value) == (
        "finished",
        str(run.pk),
    )
    assert fields["policy.spend_limit"].value == "5.0"


def test_endings_are_shown_beside_the_solve_rate(operator: Client) -> None:
    run, _, _ = going(made(), endings={"submitted": 1, "rollout_timeout": 28, "max_steps": 1})
    text = text_of(operator, run)
    assert (
        "Ended by ◷ time limit 93 % submitted 1 · rollout time limit 28 · step limit 1 · excluded 2" in text
    )


def test_phase_is_the_same_on_page_in_terminal_and_in_api(operator: Client) -> None:
    run, claim, stream = started_run(make_run(**{"trainer.iterations": 4}))
    later = {"follows": "4 iterations, 1 evaluation", "seconds_left": 754.0}
    state: dict[str, Any] = {"graded": 28, "solved": 7, "lost": 0, "running": 6, "generated_tokens": 900}
    state |= {"queued": 217, "sampling": 4, "tools": 2, "grading": 5, "steps": 64, "tokens_per_s": 83.4}
    stream.add(
        "run_progress", message="evaluation 'heldout' before training", done=28, total=256, collection=state,
        **later,
    )  # fmt: skip
    post(claim, stream, 1)
    run.refresh_from_db()
    assert "7 of 28 solved" in describe(run)
    line = "evaluation 'heldout' before training 28 of 256"
    live = "217 queued, 4 sampling, 2 in tools, 5 grading, 64 steps, 83 tokens/s"
    then = "then 4 iterations, 1 evaluation"
    assert f"{line} · {live} · {then} · about 12\u202fmin 34\u202fs left" in describe(run)
    assert "12\u202fmin 34\u202fs" in progress_line(run)
    text = text_of(operator, run)
    shown = f"{line.capitalize()} {live.replace(',', '')} {then} about 12 min 34 s left"
    assert shown in text.replace("&#x27;", "'")
    answer = operator.get(f"/api/v1/runs/{run.pk}").json()
    assert answer["progress_follows"] == "4 iterations, 1 evaluation"
    assert answer["progress_seconds_left"] == 754.0
    assert (answer["collection"]["sampling"], answer["collection"]["tokens_per_s"]) == (4, 83.4)


def test_a_training_shows_its_evaluation_in_progress(operator: Client) -> None:
    run, claim, stream = started_run(make_run(**{"evaluation.samples": 3}))
    for index, reward in enumerate((1.0, 0.0)):
        stream.trajectory(ref(0, "a", index, phase="eval:heldout"), reward=reward)
    stream.trajectory(ref(0, "b", 0, phase="eval:heldout"), finish=False)
    post(claim, stream, 1)
    assert "partial over 1 ended task · report submitted 2 50.0 %" in text_of(
        operator, run, "run-evaluations"
    )


def test_a_change_is_shown_only_where_a_paired_test_supports_it(operator: Client) -> None:
    def changed(num_gained: int) -> str:
        run, claim, stream = started_run(made(name=f"gains {num_gained}"))
        for at in (0, 1):
            for number in range(8):
                solved = at == 1 and number < num_gained
                stream.trajectory(ref(at, f"t{number}", 0, phase="eval:heldout"), reward=float(solved))
            stream.add(
                "evaluation_finished", iteration=at, name="heldout", policy_version=at, num_samples=8,
                num_tasks=8, num_solved=at * num_gained, solve_rate=at * num_gained / 8, interval_low=0.0,
                interval_high=1.0,
            )  # fmt: skip
        post(claim, stream, 1)
        return inner_html(operator.get(f"/runs/{run.pk}/").content.decode(), "run-evaluations")

    few, many = changed(2), changed(7)
    assert "no significant change, p = 0.50" in few
    assert 'class="up' not in few
    assert 'class="up num">+87.5' in many


def test_evaluation_shows_partial_results_of_ended_tasks(operator: Client) -> None:
    run, claim, stream = going(made("quickstart-evaluate", **{"rollout.group_size": 2}))
    for task, rewards in {"a": (1.0, 0.0), "b": (1.0, 1.0), "c": (1.0,)}.items():
        for index, reward in enumerate(rewards):
            stream.trajectory(ref(0, task, index, phase="eval:heldout"), reward=reward)
    post(claim, stream, 2)
    text = text_of(operator, run, "run-evaluations")
    assert "partial over 2 ended tasks · report submitted 4 75.0 %" in text
    tab = operator.get(f"/runs/{run.pk}/?tab=evaluation").content.decode()
    assert "partial" in inner_html(tab, "run-panel")
    assert "@2 100.0" in inner_html(tab, "run-panel")
    before = len(stream.lines)
    stream.evaluation(0)
    post(claim, stream, before)
    assert "partial" not in text_of(operator, run, "run-evaluations")
