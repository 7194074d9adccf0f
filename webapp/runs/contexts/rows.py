"""Rows of runs, with their newest rewards and progress, as lists of runs show them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from webapp.core.contexts.metrics import METRICS
from webapp.runs.contexts.baseline import BaselineChange, baseline_changes
from webapp.runs.contexts.phase import Phase, phase_of
from webapp.runs.contexts.policy_label import policy_label
from webapp.runs.kinds import kind_of
from webapp.runs.models.iterations import Evaluation
from webapp.runs.models.runs import Run
from webapp.runs.selectors import runs as run_reads
from webapp.runs.selectors.baselines import pinned_baselines
from webapp.runs.selectors.run_table import METRIC, SETTING, SORTS, RunGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column that people may choose; number and name of a run are always shown."""

    key: str
    label: str
    css: str = ""
    title: str = ""
    """Full name, where the label is shorter."""
    unit: str = ""
    """Unit of a metric."""

    @property
    def sorts(self) -> bool:
        """Return whether runs can be sorted by it."""
        return self.key in SORTS or self.is_setting or self.is_metric

    @property
    def is_setting(self) -> bool:
        """Return whether its values are those of a setting."""
        return self.key.startswith(SETTING)

    @property
    def is_metric(self) -> bool:
        """Return whether its values are those of a metric."""
        return self.key.startswith(METRIC)


COLUMNS: Mapping[str, Column] = MappingProxyType({
    column.key: column for column in (
        Column(key="state", label="State"),
        Column(key="kind", label="Kind"),
        Column(key="recipe", label="Recipe"),
        Column(key="model", label="Model"),
        Column(key="dataset", label="Dataset"),
        Column(key="experiment", label="Experiment"),
        Column(key="arm", label="Arm"),
        Column(key="owner", label="Created by"),
        Column(key="progress", label="Progress", css="n"),
        Column(key="reward", label="Reward", css="n", title="mean reward of the newest finished iteration"),
        Column(key="heldout", label="Held-out", css="n", title="newest held-out solve rate, 95 % interval"),
        Column(key="gain", label="Held-out, first → now", css="n", title="held-out solve rates"),
        Column(key="change", label="Against baseline", css="n", title="held-out rate minus the baseline's"),
        Column(key="trend", label="Reward over time", css="trend"),
        Column(key="started", label="Started, UTC"),
    )
})  # fmt: skip
DEFAULT = tuple(
    COLUMNS[key]
    for key in ("state", "kind", "model", "dataset", "progress", "reward", "heldout", "trend", "started")
)


def default_columns() -> tuple[Column, ...]:
    """Return the columns of tables of runs without a choice, with the change where a baseline is pinned."""
    if not pinned_baselines():
        return DEFAULT
    place = DEFAULT.index(COLUMNS["heldout"]) + 1
    return (*DEFAULT[:place], COLUMNS["change"], *DEFAULT[place:])


def column_of(key: str) -> Column:
    """Return a column by its key; that of a setting or a metric has the name of what it shows."""
    if key in COLUMNS:
        return COLUMNS[key]
    if key.startswith(SETTING):
        name = key.removeprefix(SETTING)
        return Column(key=key, label=name.rpartition(".")[2], title=name)
    name = key.removeprefix(METRIC)
    metric = METRICS.get(name)
    if metric is None:
        return Column(key=key, label=name, css="n")
    return Column(key=key, label=metric.label, css="n", title=name, unit=metric.unit)


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run."""

    run: Run
    policy: str
    """Model or script that acts; empty for kinds without one."""
    rewards: tuple[float | None, ...]
    done: int
    total: int
    stale: bool
    phase: Phase | None
    """Current work of a live run."""
    heldout: Evaluation | None
    """Newest evaluation on other than training tasks."""
    change: BaselineChange | None
    """Change against its baseline, where the column ``change`` is shown."""
    first: Evaluation | None
    """The run's first evaluation of that name, where the column ``gain`` is shown."""
    cells: tuple[tuple[Column, Any], ...]
    """The shown columns; those of settings and metrics with a value, None where it is not known."""
    begins: RunGroup | None
    """Group of the table that begins with it."""


def progress_of(run: Run) -> tuple[int, int]:
    """Return (done, total) in iterations where the run has them, else in its own progress units."""
    if run.total_iterations and not kind_of(run.kind).collects:
        ended = run.current_iteration if run.current_iteration is not None else 0
        return (run.total_iterations if run.state == "succeeded" else ended, run.total_iterations)
    return run.progress_done, run.progress_total


def run_rows(
    runs: Sequence[Run],
    rewards: Mapping[int, Sequence[float | None]],
    *,
    columns: Collection[Column] = DEFAULT,
    values: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    begins: Mapping[int, RunGroup] = MappingProxyType({}),
) -> tuple[RunRow, ...]:
    """Return the rows of runs.

    Args:
        runs: the runs.
        rewards: their rewards over time, by run.
        columns: the shown columns.
        values: values of settings and metrics, by run and column.
        begins: groups, by their first run.
    """
    numbers = [run.pk for run in runs]
    shows_gain = COLUMNS["gain"] in columns
    pairs = run_reads.first_and_newest_heldout(numbers) if shows_gain else {}
    first = {run_id: before for run_id, (before, _) in pairs.items()}
    newest = {run_id: now for run_id, (_, now) in pairs.items()}
    heldout = newest if shows_gain else run_reads.newest_heldout(numbers)
    shows_change = COLUMNS["change"] in columns
    changes = baseline_changes(runs, pinned_baselines(), heldout) if shows_change else {}
    return tuple(
        RunRow(
            run,
            policy_label(getattr(run, "policy", None)),
            tuple(rewards.get(run.pk, [])),
            *progress_of(run),
            run_reads.is_stale(run),
            phase_of(run),
            heldout.get(run.pk),
            changes.get(run.pk),
            first.get(run.pk),
            tuple((column, values.get(run.pk, {}).get(column.key)) for column in columns),
            begins.get(run.pk),
        )
        for run in runs
    )
