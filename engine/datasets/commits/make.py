"""Curation of a dataset from commits: history → candidates → trials → statements → rows.

Results of trials are kept (``TrialStore``): a curation that was stopped or killed continues with them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import structlog

from engine.datasets.commits.filters import Candidate, select
from engine.datasets.commits.repositories import Repository, fetch_repository, list_commits
from engine.datasets.commits.statements import write_statement
from engine.datasets.commits.trials import WORKDIR, Trial, TrialStore, Workshop, hidden_files, try_candidate
from engine.datasets.store import Dataset, save_dataset, with_content_id
from engine.errors import DatasetError, HostError, PreflightError, describe_error
from engine.patches.sections import count_changed_lines
from engine.redaction import redact
from engine.sandbox.local.images import image_exists
from engine.threads import in_thread
from engine.types import Task, TaskAnswer, TaskRow

Progress = Callable[[str, int, int], None]
T = TypeVar("T")
log = structlog.get_logger(__name__)
STAGES = (
    ("commits", frozenset[str]()),
    ("one change", frozenset({"merge", "first_commit", "revert", "cherry_pick", "empty", "duplicate"})),
    ("small enough", frozenset({"too_many_files", "too_large", "unreadable"})),
    ("real change", frozenset({"no_code", "native_code", "no_syntax", "no_real_change"})),
    ("has tests", frozenset({"no_tests"})),
    ("tried", frozenset({"not_tried"})),
    (
        "builds",
        frozenset({"tree", "python_version", "does_not_build", "sandbox", "machine", "index", "error"}),
    ),
    ("tests run", frozenset({"no_tests_run", "timeout", "runner_changed"})),
    ("tests differ", frozenset({"collection", "no_difference"})),
    ("stable", frozenset({"unstable"})),
    ("stated", frozenset({"statement"})),
    ("wanted", frozenset({"not_wanted"})),
)
"""Stages of the funnel, each with the reasons for which commits do not reach it."""
_EXAMPLES = 3
"""Commits that are named for each reason."""
_NOT_KEPT = frozenset({"sandbox", "tree", "error"})
"""Reasons that may be this machine's: these commits are tried again by the next curation."""
_BATCH_PER_WORKER = 4
_FAILURES_IN_A_ROW = 10
"""Candidates in a row for which this machine or the package index may fail."""


@dataclass(slots=True)
class Funnel:
    """Commits of a curation by the reason for which they became no task."""

    total: int = 0
    trial_seconds: float = 0.0
    """Duration of all trials, those of earlier curations included."""
    lost: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def lose(self, reason: str, repository: Repository, sha: str, detail: str = "") -> None:
        """Count a commit that became no task."""
        self.lost[reason] += 1
        named = self.examples.setdefault(reason, [])
        if len(named) < _EXAMPLES:
            named.append({"repository": repository.spec, "commit": sha, "detail": redact(detail)[-500:]})

    def stages(self) -> list[dict[str, Any]]:
        """Return each stage with the commits that reached it and those lost on the way, by reason."""
        left, stages = self.total, []
        for stage, reasons in STAGES:
            lost = {reason: self.lost[reason] for reason in sorted(reasons) if self.lost[reason]}
            left -= sum(lost.values())
            stages.append({"stage": stage, "commits": left, "lost": lost})
        return stages


class NoTasksError(DatasetError):
    """No commit became a task.

    Attributes:
        record: what the provenance of a dataset has about its making.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        reasons = [item for stage in record["funnel"] for item in stage["lost"].items()]
        lost = ", ".join(f"{reason} {number}" for reason, number in reasons)
        super().__init__(f"no commit of {record['funnel'][0]['commits']} became a task: {lost}")
        self.record = record


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One candidate of one repository."""

    repository: Repository
    store: TrialStore
    candidate: Candidate


async def make_commit_tasks(shop: Workshop, progress: Progress) -> Dataset:
    """Build, save and return the dataset ``config.output``.

    The newest tasks are held out.

    Args:
        shop: configuration, data folder and sandboxes.
        progress: called with a message, candidates tried and candidates in all.

    Raises:
        NoTasksError: no commit became a task.
        DatasetError: no repository can be used.
        HostError: this machine or the package index failed for several candidates in a row.
    """
    started, config = time.monotonic(), shop.config
    funnel, skipped = Funnel(), dict[str, str]()
    work = await _candidates(shop, funnel, skipped, progress)
    rows = await _rows(shop, work, funnel, progress)
    record = {
        "config": config.model_dump(mode="json"),
        "seed": shop.seed,
        "sources": {item.repository.spec: item.repository.head for item in work},
        "skipped": skipped,
        "funnel": funnel.stages(),
        "examples": funnel.examples,
        "seconds": round(time.monotonic() - started, 1),
        "trial_seconds": round(funnel.trial_seconds, 1),
    }
    if not rows:
        raise NoTasksError(record)
    return save_dataset(shop.home, config.output, rows, record)


async def _candidates(
    shop: Workshop, funnel: Funnel, skipped: dict[str, str], progress: Progress
) -> list[_Work]:
    work: list[_Work] = []
    known: set[str] = set()
    for spec in shop.config.repositories:
        progress(f"reading the history of {spec}", 0, 0)
        try:
            repository = await in_thread(partial(fetch_repository, spec, shop.home))
            found = await in_thread(partial(_select, shop, repository, known))
        except (DatasetError, PreflightError) as error:
            skipped[spec] = redact(str(error))
            progress(f"skipped {spec}: {error}", 0, 0)
            continue
        store = TrialStore(shop.home, repository, shop.config, shop.sandbox, shop.seed)
        for sha, selected in found:
            funnel.total += 1
            if isinstance(selected, str):
                funnel.lose(selected, repository, sha)
            else:
                work.append(_Work(repository=repository, store=store, candidate=selected))
    if len(skipped) == len(shop.config.repositories):
        reasons = "; ".join(f"{spec}: {reason}" for spec, reason in skipped.items())
        raise DatasetError(f"no repository can be used. {reasons}")
    return sorted(work, key=lambda item: item.candidate.commit.date, reverse=True)


def _select(shop: Workshop, repository: Repository, known: set[str]) -> list[tuple[str, Candidate | str]]:
    commits = list_commits(repository, shop.config.max_commits, shop.home)
    return [(commit.sha, selected) for commit, selected in select(commits, shop.config, known)]


async def _rows(shop: Workshop, work: Sequence[_Work], funnel: Funnel, progress: Progress) -> list[TaskRow]:
    """Try candidates, the newest first, until there are enough tasks; return them in that order.

    Batches make the rows independent of the order in which trials end.
    """
    wanted = shop.config.train_tasks + shop.config.heldout_tasks
    permits, failures = asyncio.Semaphore(shop.config.workers), list[str]()
    rows: list[TaskRow] = []
    tried = 0

    async def handle(item: _Work) -> tuple[Trial, TaskRow | None]:
        nonlocal tried
        async with permits:
            trial = await _trial(shop, item, failures)
            row = None
            if not trial.reason:
                trial, row = await in_thread(partial(_stated, item, trial))
        tried += 1
        progress(f"{len(rows)} tasks so far, trying commits", tried, len(work))
        return trial, row

    size = _BATCH_PER_WORKER * shop.config.workers
    for start in range(0, len(work), size):
        if len(rows) >= wanted:
            break
        batch = work[start : start + size]
        for item, (trial, row) in zip(batch, await _gather(map(handle, batch)), strict=True):
            funnel.trial_seconds += trial.seconds
            if row is not None and len(rows) < wanted:
                rows.append(row)
            else:
                reason = trial.reason or "not_wanted"
                funnel.lose(reason, item.repository, item.candidate.commit.sha, trial.detail)
    funnel.lost["not_tried"] += len(work) - tried
    heldout = min(shop.config.heldout_tasks, len(rows) // 4 if len(rows) < wanted else wanted)
    return [_in_split(row, "heldout" if number < heldout else "train") for number, row in enumerate(rows)]


async def _gather(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all; if one fails, cancel the others and raise its error."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def _trial(shop: Workshop, item: _Work, failures: list[str]) -> Trial:
    """Return the kept or new trial of a candidate.

    Raises HostError: this machine or the package index failed for several candidates in a row.
    """
    sha = item.candidate.commit.sha
    kept = item.store.get(sha)
    if kept is not None and (kept.reason or image_exists(shop.home, kept.image)):
        return kept
    started = time.monotonic()
    try:
        trial = await try_candidate(shop, item.repository, item.candidate)
    except (HostError, OSError, PreflightError) as error:
        failures.append(str(error))
        if len(failures) >= _FAILURES_IN_A_ROW:
            raise HostError(f"{len(failures)} commits in a row failed for the same cause: {error}") from error
        return Trial(reason="index" if isinstance(error, PreflightError) else "machine", detail=str(error))
    except Exception as error:  # one odd commit must not end the curation
        log.exception("commit_failed", repository=item.repository.spec, commit=sha)
        trial = Trial(reason="error", detail=describe_error(error))
    failures.clear()
    trial = trial.model_copy(update={"seconds": round(time.monotonic() - started, 2)})
    if trial.reason not in _NOT_KEPT:
        item.store.keep(sha, trial)
    return trial


def _stated(item: _Work, trial: Trial) -> tuple[Trial, TaskRow | None]:
    """Return the trial and the task of a candidate; without a task the trial has the reason."""
    try:
        row = _row(item, trial)
    except Exception as error:  # as for trials
        log.exception("statement_failed", repository=item.repository.spec, commit=item.candidate.commit.sha)
        return trial.model_copy(update={"reason": "error", "detail": describe_error(error)}), None
    return (trial, row) if row is not None else (trial.model_copy(update={"reason": "statement"}), None)


def _row(item: _Work, trial: Trial) -> TaskRow | None:
    """Return the task of a candidate; None if no statement without leaks was found."""
    candidate, commit = item.candidate, item.candidate.commit
    statement = write_statement(candidate, trial)
    if statement is None:
        return None
    task = Task(
        id="",
        instance_id=f"{item.repository.name}__{commit.sha[:12]}",
        repo=item.repository.name,
        base_commit=commit.parents[0],
        problem_statement=statement.text,
        image=f"local:{trial.image}",
        workdir=WORKDIR,
        difficulty={
            "patch_lines": count_changed_lines(candidate.gold_patch),
            "num_files": len(candidate.entities),
            "num_entities": candidate.num_entities,
            "num_tests": len(trial.fail_to_pass) + len(trial.pass_to_pass),
            "num_fail_to_pass": len(trial.fail_to_pass),
        },
        metadata={"source": item.repository.spec, "statement": statement.method},
    )
    answer = TaskAnswer(
        gold_patch=candidate.gold_patch,
        test_files=hidden_files(candidate),
        fail_to_pass=trial.fail_to_pass,
        pass_to_pass=trial.pass_to_pass,
        test_command=trial.test_command,
        deterministic=not trial.unstable,
        metadata=_commit_record(candidate, trial),
    )
    return with_content_id(TaskRow(task=task, answer=answer, split="train"))


def _commit_record(candidate: Candidate, trial: Trial) -> dict[str, Any]:
    return {
        "commit": candidate.commit.sha,
        "date": candidate.commit.date.isoformat(),
        "subject": candidate.commit.subject[:200],
        "files": sorted(candidate.entities),
        "entities": {
            path: {"added": change.added, "removed": change.removed, "changed": change.changed}
            for path, change in candidate.entities.items()
        },
        "packages": trial.pins,
        "unstable": trial.unstable,
    }


def _in_split(row: TaskRow, split: str) -> TaskRow:
    return TaskRow(task=row.task, answer=row.answer, split=split)
