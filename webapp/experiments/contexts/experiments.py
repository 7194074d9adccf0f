"""Experiments: the list, and one with its runs compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.urls import reverse

from webapp.core.contexts.charts import REWARD, ChartSet, ChartSpec, Columns, Series
from webapp.core.contexts.frame import Crumb
from webapp.core.contexts.numbers import page_number
from webapp.core.permissions import Role
from webapp.core.selectors import Page
from webapp.evaluations.contexts.evaluations import evaluation_comparison_url
from webapp.experiments import selectors as reads
from webapp.experiments.contexts.arms import ArmRow, build_cells
from webapp.experiments.contexts.bands import arm_charts
from webapp.experiments.contexts.controls import Control, build_controls
from webapp.experiments.contexts.results import Results, build_results
from webapp.experiments.contexts.run_comparison import MOST_RUNS, comparison_url
from webapp.experiments.designs import stored_design
from webapp.experiments.models import Experiment
from webapp.experiments.services import TEXTS, version_of
from webapp.runs.contexts.policy_label import policy_label
from webapp.runs.contexts.rows import RunRow, default_columns, run_rows
from webapp.runs.models.iterations import Evaluation
from webapp.runs.models.runs import Run
from webapp.runs.selectors import runs as run_reads
from webapp.runs.selectors import series as series_reads
from webapp.runs.selectors.budgets import count_rollouts
from webapp.runs.selectors.run_table import RunFilters, list_runs
from webapp.runs.selectors.series import Series as RunSeries


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentListContext:
    """Context of the list of experiments."""

    section: str
    crumbs: tuple[Crumb, ...]
    experiments: tuple[Experiment, ...]


def build_experiment_list() -> ExperimentListContext:
    """Build the context of the list of experiments."""
    return ExperimentListContext(
        section="experiments", crumbs=(Crumb("Experiments"),), experiments=tuple(reads.list_experiments())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutRow:
    """Held-out evaluations of one run, before and after training."""

    run: Run
    start: str
    """Model from which training started."""
    split: tuple[str, str]
    """Evaluated dataset and split."""
    first: Evaluation
    last: Evaluation

    @property
    def change(self) -> float:
        """Return the change of the solve rate, as a difference of shares."""
        return self.last.solve_rate - self.first.solve_rate

    @property
    def compare_url(self) -> str:
        """Return the URL of the comparison of both evaluations; empty if they are the same."""
        return evaluation_comparison_url(self.first, self.last) if self.first.pk != self.last.pk else ""

    @property
    def tasks(self) -> tuple[tuple[object, ...], ...]:
        """Return dataset, split and numbers of tasks and samples of both evaluations."""
        return tuple(
            (*self.split, evaluation.num_tasks, evaluation.num_samples)
            for evaluation in (self.first, self.last)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TextsForm:
    """Values of the form of goal, hypothesis and conclusion."""

    texts: Mapping[str, str]
    max_rollouts: str
    version: str
    """Version of the texts that these values replace."""
    refused: bool
    """Whether they were sent, and refused since the texts had been edited meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentContext:
    """Context of an experiment's page."""

    section: str
    crumbs: tuple[Crumb, ...]
    experiment: Experiment
    arms: tuple[ArmRow, ...]
    seeds: tuple[int, ...]
    start: str
    """Recipe or run that the arms start from, in words."""
    num_missing: int
    """Cells that another launch would create or continue."""
    controls: tuple[Control, ...]
    edit: TextsForm
    results: Results | None
    page: Page[Run]
    rows: tuple[RunRow, ...]
    heldout: tuple[HeldoutRow, ...]
    heldout_is_comparable: bool
    """Whether all evaluations of ``heldout`` have the same split and numbers of tasks and samples."""
    num_rollouts: int | None
    """Rollouts of its runs; None without a budget."""
    charts: Mapping[str, object]
    live_target: str
    """Identity of the page for live updates, as JSON."""
    live_identity: str
    """Digest of the charts: curves over seeds may change anywhere, so other ones replace all points."""
    num_archived: int
    """Archived runs, hidden unless the query string includes them."""
    num_compared: int
    compare_url: str
    """URL of the comparison of the first runs shown."""
    params: Mapping[str, str]
    can_operate: bool


def build_experiment(
    experiment: Experiment,
    params: Mapping[str, str],
    *,
    role: Role,
    user_id: int | None,
    sent: Mapping[str, str] | None = None,
) -> ExperimentContext:
    """Build the context of an experiment's page; the chart compares the first runs that it lists.

    Args:
        experiment: the experiment.
        params: query string.
        role: role of the person.
        user_id: the person.
        sent: form of goal, hypothesis and conclusion that was refused for an edit meanwhile.
    """
    filters = RunFilters(
        experiment=experiment.pk, archived=params.get("archived", ""), sort=params.get("sort", "-id")
    )
    page = list_runs(filters, number=page_number(params))
    numbers = [run.pk for run in page.rows]
    rewards = run_reads.reward_series(numbers)
    drawn = [number for number in numbers if rewards[number]][:MOST_RUNS]
    heldout = _heldout(page.rows)
    design = stored_design(experiment)
    arms = build_cells(experiment)
    if arms:
        compared, chart = {}, arm_charts(arms)
    else:
        compared = series_reads.bucketed(drawn, [REWARD], buckets=256)
        chart = comparison_chart(compared, {run.pk: run.name for run in page.rows})
    charts = chart.as_json()
    return ExperimentContext(
        section="experiments",
        crumbs=(Crumb("Experiments", reverse("experiment-list")), Crumb(experiment.name)),
        experiment=experiment,
        arms=arms,
        seeds=design.seeds if design is not None else (),
        start=(design.recipe or f"run {design.base_run}") if design is not None else "",
        num_missing=sum(cell.is_missing for row in arms for cell in row.cells),
        controls=build_controls(experiment, arms, role=role, user_id=user_id),
        edit=TextsForm(
            texts={name: (sent or {}).get(name, getattr(experiment, name)) for name in TEXTS},
            max_rollouts=(sent or {}).get("max_rollouts", str(experiment.max_rollouts or "")),
            version=version_of(experiment),
            refused=sent is not None,
        ),
        results=build_results(arms),
        page=page,
        rows=run_rows(page.rows, rewards, columns=default_columns()),
        heldout=heldout,
        heldout_is_comparable=len({tasks for row in heldout for tasks in row.tasks}) <= 1,
        num_rollouts=count_rollouts(experiment.pk) if experiment.max_rollouts is not None else None,
        charts=charts,
        live_target=json.dumps([str(experiment.pk)]),
        live_identity=hashlib.sha256(json.dumps(charts).encode()).hexdigest()[:16],
        num_archived=run_reads.count_archived(experiment),
        num_compared=len(compared),
        compare_url=comparison_url(numbers[:MOST_RUNS]),
        params=dict(params),
        can_operate=role.includes(Role.OPERATOR),
    )


def _heldout(runs: Sequence[Run]) -> tuple[HeldoutRow, ...]:
    """Return the runs with an evaluation of held-out tasks, best first."""
    evaluations = run_reads.first_and_newest_heldout([run.pk for run in runs])
    splits = reads.evaluated_splits(list(evaluations))
    rows = [
        HeldoutRow(
            run=run,
            start=policy_label(getattr(run, "policy", None)),
            split=(splits[run.pk][0], splits[run.pk][1] or ends[1].name),
            first=ends[0],
            last=ends[1],
        )
        for run in runs
        if (ends := evaluations.get(run.pk)) is not None
    ]
    return tuple(sorted(rows, key=lambda row: -row.last.solve_rate))


def comparison_chart(series: Mapping[int, RunSeries], names: Mapping[int, str]) -> ChartSet:
    """Return mean reward of several runs over iterations in one chart."""
    x = sorted({value for points in series.values() for value in points.x})
    columns: Columns = {}
    for number, points in series.items():
        values = dict(zip(points.x, points.mean[REWARD], strict=True))
        columns[f"run/{number}"] = [values.get(place) for place in x]
    lines = tuple(
        Series(f"run/{number}", f"run {number} {names[number]}"[:60], 1 + i % 9)
        for i, number in enumerate(series)
    )
    spec = ChartSpec("reward", "Reward", "mean", lines)
    return ChartSet((spec,) if lines else (), x, columns)
