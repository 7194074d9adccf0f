"""Model size against score: page, API and command, from stored evaluations."""

from __future__ import annotations

import json

import pytest

from tests.builders.commands import run_command
from tests.builders.web.evaluation_builders import FIRST, evaluated
from tests.builders.web.page_builders import make_dataset
from tests.builders.web.web_builders import signed_in
from webapp.core.permissions import Role
from webapp.evaluations.contexts.model_sizes import size_of
from webapp.models import Evaluation, Run

pytestmark = pytest.mark.django_db(transaction=True)
HOSTILE = "<script>alert(1)</script>"


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("Qwen/Qwen3-32B", 32e9),
        ("Qwen3-30B-A3B-Instruct", 30e9),
        ("qwen2.5-coder-1.5b-instruct", 1.5e9),
        ("HuggingFaceTB/SmolLM2-135M", 135e6),
        ("fresh:tiny", None),
        ("gpt-5-mini", None),
        ("runs/12/checkpoints/00040", None),
        ("1" * 100_000 + "b", None),
    ],
)
def test_sizes_are_those_that_names_state(model: str, parameters: float | None) -> None:
    assert size_of(model) == parameters


def evaluated_model(tasks: list[object], model: str, rate: float) -> Run:
    run = evaluated(tasks, FIRST)  # type: ignore[arg-type]
    Run.objects.filter(pk=run.pk).update(
        config={**run.config, "policy": {"type": "endpoint", "model": model}}
    )
    Evaluation.objects.filter(run=run).update(
        solve_rate=rate, interval_low=rate - 0.1, interval_high=rate + 0.1
    )
    return run


def test_models_are_shown_by_size_with_intervals() -> None:
    client = signed_in(Role.VIEWER)
    page = client.get("/evaluations/compare/").content.decode()
    assert "No evaluation of a model has ended" in page
    _, tasks = make_dataset()
    large = evaluated_model(list(tasks), "Qwen3-32B", 0.4)
    assert "needs evaluations of two models" in client.get("/evaluations/compare/").content.decode()
    small = evaluated_model(list(tasks), "Qwen3-4B", 0.2)
    unknown = evaluated_model(list(tasks), f"model {HOSTILE}", 0.3)
    page = client.get("/evaluations/compare/").content.decode()
    plot, _, table = page.partition("sizes-plot")[2].partition("</svg>")
    assert plot.count("<circle") == 2
    assert (">4B</text>" in plot, ">32B</text>" in plot) == (True, True)
    places = [table.index(f"run {run.pk}, heldout evaluation at 0") for run in (small, large, unknown)]
    assert places == sorted(places)
    assert HOSTILE not in page
    records = client.get("/api/v1/evaluations/models").json()
    assert json.loads(run_command("evaluation", "models")) == records
    assert [(r["run"], r["parameters"]) for r in records] == [
        (unknown.pk, None), (small.pk, 4e9), (large.pk, 32e9),
    ]  # fmt: skip
    chosen = f"first={small.pk}:eval:heldout:0&second={large.pk}:eval:heldout:0"
    assert "sizes-plot" not in client.get(f"/evaluations/compare/?{chosen}").content.decode()


def test_reports_have_charts_of_budgets() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks, FIRST)
    page = signed_in(Role.VIEWER).get(f"/evaluations/{run.pk}/eval:heldout/0/").content.decode()
    assert 'data-key="budget-context-tokens"' in page
    assert 'data-key="budget-turns"' not in page, "a single budget has no curve"
