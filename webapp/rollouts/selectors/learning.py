"""Stored trajectories selected by a query for training: counted, listed and read in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from django.db.models import Q, QuerySet

from engine.config.learning.fine_tuning import TrajectoryQuery
from engine.events.selection import select
from engine.events.stored_trajectories import StoredAnnotation, StoredStep, StoredTrajectory
from engine.events.token_block import TokenBlock
from engine.types import TerminationReason, Verdict
from webapp.datasets.models.datasets import Task
from webapp.rollouts.models.annotations import Annotation
from webapp.rollouts.models.trajectories import Step, TokenBlob, Trajectory
from webapp.runs.models.runs import Run

_BATCH = 50
_PAGE = 20_000
"""Trajectories listed per statement."""


class _Row(NamedTuple):
    id: int
    task_key: str
    run_id: int
    patch_hash: str
    generated_tokens: int
    """0 if unknown, as for imported trajectories."""
    num_steps: int
    samples: int | None
    """None without token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Result of a query."""

    ids: tuple[int, ...]
    """Chosen trajectories in ascending order."""
    matching: int
    """Trajectories that pass every filter."""
    duplicates: int
    """Of these, left out because another trajectory of the task has the same patch."""
    over_cap: int
    """Left out because of the query's cap per task."""
    over_limit: int
    """Left out because the query's limit is reached."""
    tasks: int
    """Tasks of the chosen trajectories."""
    generated_tokens: int
    with_token_ids: int
    """Chosen trajectories with recorded token ids."""
    runs: tuple[tuple[int, int], ...]
    """Run and number of its chosen trajectories, by run."""


def choose(query: TrajectoryQuery, *, seed: int, working: Callable[[], None] | None = None) -> Chosen:
    """Select trajectories by a query; the same rows and seed give the same result.

    Args:
        query: filters and selection.
        seed: seed of the random selection.
        working: called before each page of trajectories is read; its exceptions are propagated.
    """
    rows = list(_listed(query, working))
    selection = select(rows, query, seed=seed)
    chosen = selection.chosen
    return Chosen(
        ids=tuple(sorted(row.id for row in chosen)),
        matching=len(rows),
        duplicates=selection.duplicates,
        over_cap=selection.over_cap,
        over_limit=selection.over_limit,
        tasks=len({row.task_key for row in chosen}),
        generated_tokens=sum(row.generated_tokens for row in chosen),
        with_token_ids=sum(row.samples is not None for row in chosen),
        runs=tuple(sorted(Counter(row.run_id for row in chosen).items())),
    )


def _listed(query: TrajectoryQuery, working: Callable[[], None] | None) -> Iterator[_Row]:
    """Yield the trajectories that pass every filter, in ascending order, a page at a time."""
    matching = _matching(query).order_by("pk")
    columns = (
        "pk",
        "task_key",
        "run_id",
        "patch_hash",
        "generated_tokens",
        "num_steps",
        "token_blob__samples",
    )
    after = 0
    while True:
        if working is not None:
            working()
        page = [_Row(*row) for row in matching.filter(pk__gt=after).values_list(*columns)[:_PAGE]]
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].id


def _matching(query: TrajectoryQuery) -> QuerySet[Trajectory]:
    rows = Trajectory.objects.filter(state=Trajectory.State.FINISHED, num_steps__gt=0, phase=query.phase)
    if query.runs:
        rows = rows.filter(run_id__in=query.runs)
    else:  # oracle runs are the tasks' answers, and test-writing runs solve no task: explicit runs only
        rows = rows.exclude(run__in=Run.playing_answers()).exclude(run__in=Run.writing_tests())
    if query.dataset:
        rows = rows.filter(run__dataset__name=query.dataset)
    if query.splits:
        rows = rows.filter(task__split__in=query.splits)
    if query.models:
        rows = rows.filter(run__in=_acting(query.models))
    # Ungraded trajectories are never trained on, whatever the query allows.
    rows = rows.exclude(verdict="")
    if query.verdicts:
        rows = rows.filter(verdict__in=query.verdicts)
    else:
        rows = rows.exclude(verdict=Verdict.INFRA_ERROR)
    if query.terminations:
        rows = rows.filter(termination__in=query.terminations)
    if query.tokens_min is not None or query.tokens_max is not None:
        rows = rows.filter(generated_tokens__gt=0)
    for name, column in (("reward", "reward"), ("steps", "num_steps"), ("tokens", "generated_tokens")):
        for bound, lookup in (("min", "gte"), ("max", "lte")):
            if (value := getattr(query, f"{name}_{bound}")) is not None:
                rows = rows.filter(**{f"{column}__{lookup}": value})
    return rows


def _acting(models: Sequence[str]) -> QuerySet[Run]:
    """Return the runs whose policy is one of these models."""
    return Run.objects.filter(Q(config__policy__checkpoint__in=models) | Q(config__policy__model__in=models))


def unknown_names(query: TrajectoryQuery) -> list[tuple[str, str]]:
    """Return setting and value of every run, model, dataset and split of a query that does not exist."""
    known_runs = set(Run.objects.filter(pk__in=query.runs).values_list("pk", flat=True))
    unknown = [("runs", str(run)) for run in query.runs if run not in known_runs]
    unknown += [("models", model) for model in query.models if not _acting((model,)).exists()]
    if query.dataset and not Run.objects.filter(dataset__name=query.dataset).exists():
        unknown.append(("dataset", query.dataset))
    splits = _split_names(query.splits)
    return unknown + [("splits", split) for split in query.splits if split not in splits]


def _split_names(named: Sequence[str]) -> set[str]:
    """Return the existing splits among ``named``; the default query's splits always count."""
    default = TrajectoryQuery().splits
    return {*default, *Task.objects.filter(split__in=named).values_list("split", flat=True).distinct()}


def stored(ids: Sequence[int], *, with_tokens: bool = True) -> Iterator[StoredTrajectory]:
    """Yield trajectories in full, in the given order, read in batches.

    Args:
        ids: trajectories to read.
        with_tokens: whether to read their token ids.
    """
    for batch in (ids[start : start + _BATCH] for start in range(0, len(ids), _BATCH)):
        found = Trajectory.objects.select_related("run", "task").prefetch_related("annotations__author")
        rows = found.defer("test_log", "detail").in_bulk(batch)
        steps: dict[int, list[StoredStep]] = {pk: [] for pk in batch}
        for step in Step.objects.filter(trajectory_id__in=batch).order_by("trajectory_id", "index"):
            steps[step.trajectory_id].append(_step(step))
        blobs = TokenBlob.objects.in_bulk(batch) if with_tokens else {}
        for pk in batch:
            if pk in rows:  # else deleted in the meantime
                yield _stored(rows[pk], steps[pk], blobs.get(pk))


def _step(step: Step) -> StoredStep:
    return StoredStep(
        thought=step.thought,
        response=step.response,
        tool=step.tool,
        arguments=step.arguments,
        observation=step.observation,
        error=step.error,
    )


def _annotation(annotation: Annotation) -> StoredAnnotation:
    return StoredAnnotation(
        kind=annotation.kind,
        text=annotation.text,
        step=annotation.step_index,
        author=annotation.author.get_username() if annotation.author else "",
    )


def _stored(row: Trajectory, steps: list[StoredStep], blob: TokenBlob | None) -> StoredTrajectory:
    task = row.task
    policy = row.run.config.get("policy", {})
    return StoredTrajectory(
        id=row.pk,
        run=row.run_id,
        model=str(policy.get("checkpoint") or policy.get("model") or policy.get("type", "")),
        task_id=row.task_key,
        instance_id=task.instance_id if task else row.task_key,
        problem_statement=task.problem_statement if task else "",
        workdir=task.workdir if task else "",
        metadata=task.metadata if task else {},
        verdict=Verdict(row.verdict) if row.verdict else None,
        reward=row.reward,
        termination=TerminationReason(row.termination) if row.termination else None,
        patch=row.patch,
        steps=steps,
        tokens=None if blob is None else TokenBlock(bytes(blob.data), blob.length, blob.samples),
        annotations=[_annotation(annotation) for annotation in row.annotations.all()],
    )
