"""Curation of a dataset from commits: history → candidates → trials → statements → rows.

Results of trials are kept (``kept_trials``): a curation that was stopped or killed continues with them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import structlog

from engine.datasets.commits.filters import Candidate, instance_id, select
from engine.datasets.commits.known_changes import KnownChanges
from engine.datasets.commits.languages.base import WORKDIR, Language
from engine.datasets.commits.repositories import (
    Repository,
    fetch_repository,
    list_commits,
    read_head,
)
from engine.datasets.commits.statements import Statement
from engine.datasets.commits.trials import Trial, Workshop, hidden_files, kept_trials, try_candidate
from engine.datasets.commits.written_statements import NoStatementError, count_statements, find_statement
from engine.datasets.commits.written_tests import NOT_WRITTEN, try_written_tests
from engine.datasets.funnel import Funnel, NoTasksError, Progress, Stages, reporting
from engine.datasets.importers.filters import Exclusion
from engine.datasets.kept_files import using
from engine.datasets.kept_results import KeptResults
from engine.datasets.store import Dataset, save_dataset, with_content_id
from engine.errors import (
    DatasetError,
    HostError,
    PreflightError,
    RunEndingError,
    describe_error,
)
from engine.patches.sections import count_changed_lines
from engine.redaction import redact
from engine.sandbox.local.images import image_exists
from engine.threads import gather_or_cancel, in_thread
from engine.tools import printable
from engine.types import Task, TaskAnswer, TaskRow

T = TypeVar("T")
STAGES: Stages = (
    ("commits", frozenset()),
    ("one change", frozenset({"merge", "first_commit", "revert", "cherry_pick", "empty"})),
    ("has code", frozenset({"no_code", "native_code"})),
    ("small enough", frozenset({"too_many_files", "too_large", "unreadable"})),
    ("has tests", frozenset({"no_tests", "not_written"})),
    ("real change", frozenset({"no_syntax", "no_real_change"})),
    ("new", frozenset({"duplicate", "contaminated"})),
    ("tried", frozenset({"not_tried", "waiting"})),
    (
        "builds",
        frozenset({"tree", "python_version", "does_not_build", "sandbox", "machine", "index", "error"}),
    ),
    ("tests run", frozenset({"no_tests_run", "timeout", "runner_changed", "written_do_not_run"})),
    (
        "tests differ",
        frozenset(
            {"collection", "no_difference", "fails_after", "written_pass_before", "written_fail_after"}
        ),
    ),
    ("stable", frozenset({"unstable"})),
    ("stated", frozenset({"statement", "leaks", "unclear"})),
    ("wanted", frozenset({"not_wanted"})),
)
"""Stages of the funnel."""
log = structlog.get_logger(__name__)
_NOT_KEPT = frozenset({"sandbox", "tree", "error"})
"""Reasons that may be this machine's: these commits are tried again by the next curation."""
_BATCH_PER_WORKER = 4
_FAILURES_IN_A_ROW = 10
"""Candidates in a row for which this machine or the package index may fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One candidate of one repository."""

    repository: Repository
    trials: KeptResults[Trial]
    candidate: Candidate


async def make_commit_tasks(shop: Workshop, progress: Progress) -> Dataset:
    """Build, save and return the dataset ``config.output``.

    The newest tasks are held out.

    Args:
        shop: configuration, data folder and sandboxes.
        progress: receives a report a second at most.

    Raises:
        NoTasksError: no commit became a task.
        DatasetError: no repository can be used.
        HostError: this machine or the package index failed for several candidates in a row.
    """
    async with using(shop.home):
        return await _make(shop, progress)


async def _make(shop: Workshop, progress: Progress) -> Dataset:
    started, config = time.monotonic(), shop.config
    funnel = Funnel(stages=STAGES)
    work = await _candidates(shop, funnel, progress)
    async with reporting(funnel, progress, "trying commits", lambda: (funnel.tried, funnel.candidates)):
        rows = await _rows(shop, work, funnel)
    state = funnel.snapshot()
    progress("all commits decided", funnel.candidates, funnel.candidates, funnel=state)
    record = {
        "config": config.model_dump(mode="json"),
        "seed": shop.seed,
        "sources": {item.repository.spec: item.repository.head for item in work},
        "licences": {item.repository.spec: item.repository.licence for item in work},
        "seconds": round(time.monotonic() - started, 1),
        "statements": count_statements(rows),
        **state.model_dump(mode="json"),
    }
    if not rows:
        raise NoTasksError(f"no commit of {funnel.total} became a task", record)
    return save_dataset(shop.home, config.output, rows, record)


async def _candidates(shop: Workshop, funnel: Funnel, progress: Progress) -> list[_Work]:
    work: list[_Work] = []
    known = await in_thread(partial(KnownChanges.read, shop.config.exclude_datasets, shop.home))
    for spec in shop.config.repositories:
        progress(f"reading the history of {spec}", 0, 0)
        try:
            repository, language = await in_thread(partial(_repository, shop, spec))
            found = await in_thread(partial(_select, shop, repository, language, known))
        except (DatasetError, PreflightError) as error:
            funnel.skipped[spec] = redact(printable(str(error)))
            progress(f"skipped {spec}: {funnel.skipped[spec]}", 0, 0)
            continue
        trials = kept_trials(shop.home, repository, language, shop.config, shop.sandbox, shop.seed)
        for sha, selected in found:
            funnel.total += 1
            if isinstance(selected, Exclusion):
                funnel.lose(selected.by, sha, origin=spec, detail=selected.detail, position=funnel.total)
            else:
                funnel.candidates += 1
                work.append(_Work(repository=repository, trials=trials, candidate=selected))
    if len(funnel.skipped) == len(shop.config.repositories):
        reasons = "; ".join(f"{spec}: {reason}" for spec, reason in funnel.skipped.items())
        raise DatasetError(f"no repository can be used. {reasons}")
    return sorted(work, key=lambda item: item.candidate.commit.date, reverse=True)


def _repository(shop: Workshop, spec: str) -> tuple[Repository, Language]:
    """Fetch a repository and find its language.

    Raises DatasetError: it is not usable, or its licence is not among the wanted ones.
    """
    fetched = fetch_repository(spec, shop.home)
    repository, language = read_head(fetched, shop.config.language, shop.home)
    wanted = shop.config.licences
    if wanted and repository.licence.lower() not in map(str.lower, wanted):
        raise DatasetError(f"its licence is '{repository.licence}', not one of {', '.join(wanted)}")
    return repository, language


def _select(
    shop: Workshop, repository: Repository, language: Language, known: KnownChanges
) -> list[tuple[str, Candidate | Exclusion]]:
    commits = list_commits(repository, language, shop.config.max_commits, shop.home)
    selection = select(commits, language, shop.config, partial(known.check, repository.name))
    return [(commit.sha, selected) for commit, selected in selection]


async def _rows(shop: Workshop, work: Sequence[_Work], funnel: Funnel) -> list[TaskRow]:
    """Try candidates, the newest first, until there are enough tasks; return them in that order.

    Batches make the rows independent of the order in which trials end.
    """
    permits, failures = asyncio.Semaphore(shop.config.workers), list[str]()
    wanted = shop.config.train_tasks + shop.config.heldout_tasks
    rows: list[TaskRow] = []

    async def handle(position: int) -> tuple[int, TaskRow | None]:
        item, row = work[position], None
        async with permits:
            item, trial = await _tested(shop, item, failures)
            is_written = item.candidate.written_tests is not None
            funnel.written["has tests"] += is_written and trial.reason != NOT_WRITTEN
            if not trial.reason:
                trial, row = await _stated(shop, item, trial)
            if row is not None:
                await in_thread(partial(funnel.measure, shop.home, trial.image))
        funnel.tried += 1
        funnel.trial_seconds += trial.seconds
        if row is None:
            sha, origin = item.candidate.commit.sha, item.repository.spec
            funnel.lose(trial.reason, sha, origin=origin, detail=trial.detail, position=position)
        else:
            funnel.proven += 1
            funnel.tasks = min(funnel.proven, wanted)
            funnel.written["stated"] += is_written
        return position, row

    size = _BATCH_PER_WORKER * shop.config.workers
    for start in range(0, len(work), size):
        if len(rows) >= wanted:
            break
        batch = range(start, min(start + size, len(work)))
        kept = {position for position in batch if _was_tried(shop, work[position])}
        made = await gather_or_cancel(handle(position) for position in batch if position in kept)
        funnel.is_live |= len(kept) < len(batch)
        made += await gather_or_cancel(handle(position) for position in batch if position not in kept)
        rows += [row for _, row in sorted(made, key=itemgetter(0)) if row is not None]
    funnel.is_over = True
    rows = rows[:wanted]
    heldout = min(shop.config.heldout_tasks, len(rows) // 4 if len(rows) < wanted else wanted)
    return [_in_split(row, "heldout" if number < heldout else "train") for number, row in enumerate(rows)]


async def _tested(shop: Workshop, item: _Work, failures: list[str]) -> tuple[_Work, Trial]:
    """Return a candidate, with tests by a model where it has none of its own, and its trial.

    Raises:
        HostError: as ``_trial``.
        RunEndingError: a model answers no question any more.
    """
    if item.candidate.test_paths:
        return item, await _trial(shop, item, failures)
    assert shop.writer is not None, "commits without tests are candidates only with a writer"

    def try_tests(candidate: Candidate) -> Coroutine[Any, Any, Trial]:
        return _trial(shop, replace(item, candidate=candidate), failures)

    candidate, trial = await try_written_tests(item.candidate, shop.writer, try_tests, seed=shop.seed)
    return replace(item, candidate=candidate), trial


async def _trial(shop: Workshop, item: _Work, failures: list[str]) -> Trial:
    """Return the kept or new trial of a candidate.

    Raises HostError: this machine or the package index failed for several candidates in a row.
    """
    kept = _kept_trial(shop, item)
    if kept is not None:
        return kept
    key = item.candidate.key
    started = time.monotonic()
    try:
        trial = await try_candidate(shop, item.repository, item.candidate)
    except (HostError, OSError, PreflightError) as error:
        failures.append(str(error))
        if len(failures) >= _FAILURES_IN_A_ROW:
            raise HostError(f"{len(failures)} commits in a row failed for the same cause: {error}") from error
        return Trial(reason="index" if isinstance(error, PreflightError) else "machine", detail=str(error))
    except Exception as error:  # one odd commit must not end the curation
        log.exception("commit_failed", repository=item.repository.spec, commit=key)
        trial = Trial(reason="error", detail=describe_error(error))
    failures.clear()
    trial = trial.model_copy(update={"seconds": round(time.monotonic() - started, 2)})
    if trial.reason not in _NOT_KEPT:
        item.trials.keep(key, trial)
    return trial


def _kept_trial(shop: Workshop, item: _Work) -> Trial | None:
    """Return the usable result of an earlier trial of a candidate; None if there is none."""
    kept = item.trials.get(item.candidate.key)
    return kept if kept is not None and (kept.reason or image_exists(shop.home, kept.image)) else None


def _was_tried(shop: Workshop, item: _Work) -> bool:
    """Return whether an earlier curation tried a candidate, with its own tests or those of a model."""
    if item.candidate.test_paths:
        return _kept_trial(shop, item) is not None
    return any(key.startswith(f"{item.candidate.commit.sha}-") for key in item.trials)


async def _stated(shop: Workshop, item: _Work, trial: Trial) -> tuple[Trial, TaskRow | None]:
    """Return the trial and the task of a candidate; without a task the trial has the reason.

    Raises RunEndingError: a model answers no question any more.
    """
    try:
        statement = await find_statement(
            item.candidate, trial, writer=shop.writer, judge=shop.judge, seed=shop.seed
        )
        return trial, _row(item, trial, statement)
    except NoStatementError as error:
        return trial.model_copy(update={"reason": error.reason, "detail": error.detail}), None
    except RunEndingError:
        raise
    except Exception as error:  # as for trials
        log.exception("statement_failed", repository=item.repository.spec, commit=item.candidate.commit.sha)
        return trial.model_copy(update={"reason": "error", "detail": describe_error(error)}), None


def _row(item: _Work, trial: Trial, statement: Statement) -> TaskRow:
    candidate, commit = item.candidate, item.candidate.commit
    task = Task(
        id="",
        instance_id=instance_id(item.repository.name, commit),
        repo=item.repository.name,
        base_commit=commit.parents[0],
        problem_statement=statement.text,
        image=f"local:{trial.image}",
        workdir=WORKDIR,
        difficulty={
            "patch_lines": count_changed_lines(candidate.gold_patch),
            "num_files": len(candidate.entities),
            "num_relevant_files": len(trial.relevant_files),
            "num_entities": candidate.num_entities,
            "num_tests": len(trial.fail_to_pass) + len(trial.pass_to_pass),
            "num_fail_to_pass": len(trial.fail_to_pass),
        },
        metadata={
            "source": item.repository.spec,
            "licence": item.repository.licence,
            "language": candidate.language.name,
            "statement": statement.method,
        },
    )
    answer = TaskAnswer(
        gold_patch=candidate.gold_patch,
        test_files=hidden_files(candidate),
        fail_to_pass=trial.fail_to_pass,
        pass_to_pass=trial.pass_to_pass,
        test_command=trial.test_command,
        grade_rule=candidate.language.grade_rule,
        deterministic=not trial.unstable,
        metadata={**_commit_record(candidate, trial), "statement": statement.record},
    )
    return with_content_id(TaskRow(task=task, answer=answer, split="train"))


def _commit_record(candidate: Candidate, trial: Trial) -> dict[str, Any]:
    return {
        "commit": candidate.commit.sha,
        "date": candidate.commit.date.isoformat(),
        "subject": candidate.commit.subject[:200],
        "files": sorted(candidate.entities),
        "relevant_files": trial.relevant_files,
        "entities": {
            path: {"added": change.added, "removed": change.removed, "changed": change.changed}
            for path, change in candidate.entities.items()
        },
        "packages": trial.pins,
        "unstable": trial.unstable,
        **({"tests": candidate.written_tests.record()} if candidate.written_tests is not None else {}),
    }


def _in_split(row: TaskRow, split: str) -> TaskRow:
    return TaskRow(task=row.task, answer=row.answer, split=split)
