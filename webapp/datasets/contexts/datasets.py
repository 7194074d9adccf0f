"""Pages of the dataset list, a dataset and a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.safestring import SafeString

from engine.events.health import RowStatus, SideOutcome
from webapp.core.contexts.curation_funnel import FunnelTable, build_funnel
from webapp.core.contexts.frame import Crumb
from webapp.core.contexts.numbers import page_number
from webapp.core.contexts.row_status import LOOKS
from webapp.core.contexts.words import show
from webapp.core.selectors import Page
from webapp.datasets.contexts.health import SOLVED_LABELS
from webapp.datasets.models.datasets import Dataset, Task, TaskAnswer
from webapp.datasets.models.health import QuarantineDecision, Validation
from webapp.datasets.selectors import datasets as reads
from webapp.datasets.selectors import difficulty
from webapp.datasets.selectors import health as health_reads
from webapp.datasets.selectors import imports as import_reads
from webapp.datasets.selectors.datasets import RunOnTask, TaskFilters
from webapp.datasets.selectors.difficulty import SolveRate
from webapp.rollouts.contexts.diffs import Diff, patch_diff
from webapp.rollouts.contexts.prompts import statement_html, statement_text
from webapp.rollouts.contexts.steps import CutText
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors.filters import TrajectoryFilters
from webapp.rollouts.selectors.search import search
from webapp.runs.models.runs import Run
from webapp.runs.services import collection

MAX_EXPECTED = 200
"""Maximum number of tests of each kind shown on a task's page, beside their total number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetListContext:
    """List of all datasets."""

    section: str
    crumbs: tuple[Crumb, ...]
    datasets: tuple[Dataset, ...]
    imports: tuple[Run, ...]
    """Imports in progress, and imports that ended without a dataset."""
    can_operate: bool


def build_dataset_list(*, can_operate: bool) -> DatasetListContext:
    """Return the list of all datasets."""
    return DatasetListContext(
        section="datasets",
        crumbs=(Crumb("Datasets"),),
        datasets=tuple(reads.list_datasets()),
        imports=tuple(import_reads.unfinished_imports()),
        can_operate=can_operate,
    )


@dataclass(frozen=True, slots=True)
class TaskLine:
    """Row of a task list."""

    task: Task
    solve: SolveRate


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetContext:
    """Page of a dataset with its tasks."""

    section: str
    crumbs: tuple[Crumb, ...]
    dataset: Dataset
    funnel: FunnelTable | None
    """Funnel of a dataset made of commits; else None."""
    licences: tuple[tuple[str, str], ...]
    """Repository (its name) and licence, of a dataset made of commits."""
    facts: tuple[tuple[str, str], ...]
    page: Page[Task]
    rows: tuple[TaskLine, ...]
    """Tasks of ``page`` with their solve rates."""
    filters: TaskFilters
    narrowed: bool
    healths: tuple[tuple[str, str], ...]
    solved: tuple[tuple[str, str], ...]
    """Choices (value, label) of the filters ``health`` and ``solved``."""
    params: Mapping[str, str]
    exportable: bool
    """True if this person may export the whole dataset, answers included."""
    collect_recipe: str
    """Recipe that collects trajectories on the dataset; empty for persons who may not create runs."""


def flat_facts(data: Mapping[str, object], prefix: str = "") -> tuple[tuple[str, str], ...]:
    """Return a nested mapping as (dotted name, value) rows for people."""
    rows: list[tuple[str, str]] = []
    for key, value in data.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            rows += flat_facts(value, f"{prefix}{key} · ")
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value, start=1):
                rows += flat_facts(
                    item if isinstance(item, Mapping) else {"": item}, f"{prefix}{key} {number} · "
                )
        else:
            rows.append((name, show(value)))
    return tuple(rows)


_FUNNEL = frozenset(
    {"funnel", "examples", "skipped", "tasks", "trial_seconds", "disk_bytes", "original", "licences"}
)
"""Parts of the provenance that have a section of their own, or are shown by another dataset."""
_MADE = ("statement", "tests", "hardening")
"""Parts of an answer's metadata that its page shows."""
HEALTHS = (
    (reads.QUARANTINED, "in quarantine"),
    *((status.value, LOOKS[status][2]) for status in RowStatus),
    (reads.UNVALIDATED, "never validated"),
)


def parse_task_filters(params: Mapping[str, str]) -> TaskFilters:
    """Parse the filters of a query string; invalid values are ignored."""
    sides = {side.value for side in SideOutcome}
    health, solved = params.get("health", ""), params.get("solved", "")
    return TaskFilters(
        split=params.get("split", ""),
        q=params.get("q", "").strip(),
        health=health if health in dict(HEALTHS) else "",
        noop=params.get("noop", "") if params.get("noop") in sides else "",
        gold=params.get("gold", "") if params.get("gold") in sides else "",
        solved=solved if solved in SOLVED_LABELS else "",
        rate_min=_share(params.get("rate_min", "")),
        rate_max=_share(params.get("rate_max", "")),
        strength_min=_share(params.get("strength_min", "")),
        strength_max=_share(params.get("strength_max", "")),
        order="weakest" if params.get("order") == "weakest" else "",
    )


def _licences(record: object) -> tuple[tuple[str, str], ...]:
    items = record.items() if isinstance(record, Mapping) else ()
    return tuple((str(spec).rstrip("/").rpartition("/")[2], str(licence)) for spec, licence in items)


def _share(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None


def build_dataset(dataset: Dataset, params: Mapping[str, str], *, can_operate: bool) -> DatasetContext:
    """Return the page of a dataset."""
    filters = parse_task_filters(params)
    page = reads.list_tasks(dataset, filters, number=page_number(params))
    rates = difficulty.rates_of(dataset.pk, [task.pk for task in page.rows])
    funnel = build_funnel(dataset.provenance)
    return DatasetContext(
        section="datasets",
        crumbs=(Crumb("Datasets", reverse("dataset-list")), Crumb(dataset.name)),
        dataset=dataset,
        facts=flat_facts(
            {key: value for key, value in dataset.provenance.items() if funnel is None or key not in _FUNNEL}
        ),
        funnel=funnel,
        licences=_licences(dataset.provenance.get("licences")),
        page=page,
        rows=tuple(TaskLine(task, rates.get(task.pk, SolveRate())) for task in page.rows),
        filters=filters,
        narrowed=filters != TaskFilters(),
        healths=HEALTHS,
        solved=tuple(SOLVED_LABELS.items()),
        params=dict(params),
        exportable=can_operate and reads.has_folder(dataset),
        collect_recipe=collection.recipe_for(dataset.name) if can_operate else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """Page of a task, with its answer for persons who may see it, and its rollouts."""

    section: str
    crumbs: tuple[Crumb, ...]
    task: Task
    statement: CutText
    statement_html: SafeString | None
    """The statement's Markdown, rendered; None where the text is shown."""
    difficulty: tuple[tuple[str, str], ...]
    metadata: tuple[tuple[str, str], ...]
    answer: TaskAnswer | None
    gold: Diff | None
    relevant_files: tuple[str, ...]
    """First ``MAX_EXPECTED`` files without whose change a test fails; empty where it is not recorded."""
    made: tuple[tuple[str, str], ...]
    """How statement and tests were made and checked, for tasks made of commits."""
    test_files: tuple[str, ...]
    must_pass: tuple[str, ...]
    """First ``MAX_EXPECTED`` tests that must start to pass."""
    expected: tuple[tuple[str, str], ...]
    """First ``MAX_EXPECTED`` expected outcomes (test, outcome), for tasks graded by the whole map."""
    shows_answer: bool
    runs: tuple[RunOnTask, ...]
    trajectories: tuple[Trajectory, ...]
    num_trajectories: int
    solve: SolveRate
    validations: tuple[Validation, ...]
    strength: Mapping[str, Any] | None
    """Newest measurement of the test strength of this content, see ``Validation.strength``."""
    decisions: tuple[QuarantineDecision, ...]
    can_operate: bool


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(text) for text in value[:MAX_EXPECTED]) if isinstance(value, list) else ()


def build_task(task: Task, *, shows_answer: bool, can_operate: bool) -> TaskContext:
    """Return the page of a task."""
    answer = reads.get_answer(task) if shows_answer else None
    trajectories = search(TrajectoryFilters(task=task.key), before=None, size=25)
    dataset_url = reverse("dataset-detail", args=[task.dataset.name])
    statement = statement_text(task.problem_statement)
    validations = health_reads.validations_of(task)
    measured = (
        found.strength
        for found in validations
        if found.strength and found.strength["kinds"] and task.content in ("", found.content)
    )
    return TaskContext(
        section="datasets",
        crumbs=(
            Crumb("Datasets", reverse("dataset-list")),
            Crumb(task.dataset.name, dataset_url),
            Crumb(task.instance_id),
        ),
        task=task,
        statement=statement,
        statement_html=statement_html(statement),
        difficulty=flat_facts(task.difficulty),
        metadata=flat_facts(task.metadata),
        answer=answer,
        gold=patch_diff(answer.gold_patch) if answer else None,
        relevant_files=_texts(answer.metadata.get("relevant_files")) if answer else (),
        made=flat_facts({name: answer.metadata[name] for name in _MADE if name in answer.metadata})[
            :MAX_EXPECTED
        ]
        if answer
        else (),
        test_files=tuple(sorted([*answer.test_files, *answer.binary_files])) if answer else (),
        must_pass=tuple(answer.fail_to_pass[:MAX_EXPECTED]) if answer else (),
        expected=tuple(sorted(answer.expected.items())[:MAX_EXPECTED]) if answer else (),
        shows_answer=shows_answer,
        runs=tuple(reads.runs_on_task(task)),
        trajectories=tuple(trajectories.rows),
        num_trajectories=trajectories.total,
        solve=difficulty.rates_of(task.dataset_id, [task.pk]).get(task.pk, SolveRate()),
        validations=tuple(validations),
        strength=next(measured, None),
        decisions=tuple(health_reads.decisions_about(task)),
        can_operate=can_operate,
    )
