"""Measured difficulty: counted attempts, confidence intervals, and selection in the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.config.rollout import DatasetConfig
from engine.datasets.health import select
from engine.datasets.store import load_dataset, save_dataset
from engine.errors import ConfigError
from engine.types import TaskRow
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.web_builders import launched, post
from tests.unit.datasets.test_health import make_row
from webapp.datasets.selectors import difficulty
from webapp.datasets.selectors.difficulty import SolveRate
from webapp.datasets.services import datasets
from webapp.models import Dataset, Run, Task
from webapp.rollouts.selectors import groups
from webapp.runs.services import runs

pytestmark = pytest.mark.django_db
NAMES = ("never", "sometimes", "always", "untried")


@pytest.fixture
def rows(settings: Any, tmp_path: Path) -> dict[str, TaskRow]:
    """Rows of four tasks; a training run solved 0, 1 and 4 of 4 attempts at the first three."""
    settings.TRAINYARD_HOME = tmp_path
    by_name = {name: make_row(name) for name in NAMES}
    save_dataset(tmp_path, "d", list(by_name.values()), {})
    datasets.sync(name="d")
    attempts(by_name, solved={"never": 0, "sometimes": 1, "always": 4})
    return by_name


def attempts(rows: dict[str, TaskRow], *, solved: dict[str, int], **overrides: Any) -> Run:
    recipe = overrides.pop("recipe", "quickstart")
    run, claim = launched(runs.create(recipe=recipe, overrides={"dataset.name": "d"} | overrides))
    stream = Stream()
    stream.started()
    for name, count in solved.items():
        for index in range(4):
            stream.trajectory(ref(0, rows[name].task.id, index), steps=1, reward=float(index < count))
        lost = ref(0, rows[name].task.id, 4)
        stream.trajectory(lost, steps=1, reward=None, termination="env_error")
    post(claim, stream)
    return run


def dataset() -> Dataset:
    return Dataset.objects.get(name="d")


def rates(rows: dict[str, TaskRow]) -> dict[str, SolveRate]:
    pks = dict(Task.objects.values_list("instance_id", "pk"))
    measured = difficulty.rates_of(dataset().pk, list(pks.values()))
    return {name: measured[pks[name]] for name in rows if pks[name] in measured}


def test_attempts_of_all_runs_are_summed_and_lost_ones_left_out(rows: dict[str, TaskRow]) -> None:
    attempts(rows, solved={"never": 0, "always": 3})
    assert rates(rows) == {"never": SolveRate(0, 8), "sometimes": SolveRate(1, 4), "always": SolveRate(7, 8)}
    assert [rate.kind for rate in rates(rows).values()] == ["none", "mixed", "mixed"]
    assert SolveRate().kind == "unmeasured"


def test_tasks_ended_by_time_limits_do_not_count_as_never_solved(rows: dict[str, TaskRow]) -> None:
    run, claim = launched(runs.create(recipe="quickstart", overrides={"dataset.name": "d"}))
    stream = Stream()
    stream.started()
    for name in ("untried", "never"):
        for index in range(2):
            key = ref(0, rows[name].task.id, index)
            stream.trajectory(key, steps=1, reward=0.0, termination="rollout_timeout")
    post(claim, stream)
    measured = rates(rows)
    assert "untried" not in measured
    assert measured["never"] == SolveRate(0, 6, 2)
    assert difficulty.profile(dataset()).classes["none"] == 1
    names = Task.objects.filter(pk__in=difficulty.measured_tasks(dataset().pk, kind="none"))
    assert set(names.values_list("instance_id", flat=True)) == {"never"}
    never = groups.list_groups(run.pk, phase="", outcome="none", number=1, part=groups.PartOfRun())
    assert never.total == 0


def test_oracle_and_noop_attempts_are_not_measured(rows: dict[str, TaskRow]) -> None:
    before = rates(rows)
    attempts(rows, solved={"never": 4, "untried": 4}, recipe="quickstart-oracle")
    attempts(rows, solved={"never": 0, "untried": 0}, recipe="quickstart-oracle", policy={"type": "noop"})
    assert rates(rows) == before


@pytest.mark.parametrize(
    ("solved", "graded", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (8, 8, 0.6756, 1.0), (1, 4, 0.0456, 0.6994)],
)
def test_interval_is_the_wilson_score_interval(solved: int, graded: int, low: float, high: float) -> None:
    assert SolveRate(solved, graded).interval == pytest.approx((low, high), abs=5e-5)


def test_untried_task_has_the_full_interval_and_no_rate() -> None:
    assert SolveRate().interval == (0.0, 1.0)
    assert SolveRate().rate is None


def test_tasks_are_found_by_class_and_by_range(rows: dict[str, TaskRow]) -> None:
    wanted: tuple[tuple[dict[str, Any], set[str]], ...] = (
        ({"kind": "none"}, {"never"}),
        ({"kind": "mixed"}, {"sometimes"}),
        ({"kind": "all"}, {"always"}),
        ({}, {"never", "sometimes", "always"}),
        ({"low": 0.25}, {"sometimes", "always"}),
        ({"low": 0.01, "high": 0.99}, {"sometimes"}),
    )
    for narrowed, names in wanted:
        ids = difficulty.measured_tasks(dataset().pk, **narrowed)
        assert set(Task.objects.filter(pk__in=ids).values_list("instance_id", flat=True)) == names


def test_the_profile_counts_every_task_once(rows: dict[str, TaskRow], tmp_path: Path) -> None:
    profile = difficulty.profile(dataset())
    assert profile.classes == {"none": 1, "mixed": 1, "all": 1, "unmeasured": 1}
    assert profile.bins == (1, 0, 1, 0, 0, 0, 0, 0, 0, 1)
    assert profile.attempts == 12
    save_dataset(tmp_path, "d", [rows["never"]], {})
    datasets.sync(name="d")
    assert difficulty.profile(dataset()).classes == {"none": 1, "mixed": 0, "all": 0, "unmeasured": 0}


def test_run_selecting_by_solve_rate_gets_the_rates(rows: dict[str, TaskRow], tmp_path: Path) -> None:
    overrides = {"dataset.name": "d", "dataset.solve_rate_min": 0.01, "dataset.solve_rate_samples": 4}
    run = runs.create(recipe="quickstart", overrides=overrides)
    runs.start(run=run)
    folder = tmp_path / "datasets" / "d"
    stored = json.loads((folder / "solve_rates.json").read_text())
    assert stored["tasks"] == {
        rows["never"].task.id: [0, 4], rows["sometimes"].task.id: [1, 4], rows["always"].task.id: [4, 4],
    }  # fmt: skip
    chosen = select(load_dataset(tmp_path, "d").rows, DatasetConfig(**run.config["dataset"]), folder)
    assert [row.task.instance_id for row in chosen.rows] == ["sometimes", "always", "untried"]


def test_a_run_whose_solve_rates_cannot_be_measured_does_not_start(rows: dict[str, TaskRow]) -> None:
    Dataset.objects.create(name="elsewhere")
    overrides = {"dataset.name": "elsewhere", "dataset.solve_rate_max": 0.9}
    run = runs.create(recipe="quickstart", overrides=overrides)
    with pytest.raises(ConfigError, match="solve_rate_min and _max cannot be obeyed"):
        runs.start(run=run)
    run.refresh_from_db()
    assert run.state == "draft"
