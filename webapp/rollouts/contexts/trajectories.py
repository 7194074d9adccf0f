"""One trajectory with its steps and result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.safestring import SafeString

from webapp.core.contexts.frame import (
    Crumb,
    LiveCursor,
    group_crumbs,
    group_url,
    trajectory_url,
)
from webapp.core.permissions import Role, may_remove
from webapp.rollouts.contexts.advantage import algorithm_of, formula
from webapp.rollouts.contexts.diffs import Diff, patch_diff
from webapp.rollouts.contexts.found import Found, find_text
from webapp.rollouts.contexts.pair import pair_url
from webapp.rollouts.contexts.prompts import (
    ImportedField,
    PromptMessage,
    imported_fields,
    opening_messages,
    statement_html,
    statement_text,
)
from webapp.rollouts.contexts.scanners import ScannerHits, hits_in
from webapp.rollouts.contexts.staleness import Staleness, staleness_of
from webapp.rollouts.contexts.steps import PAGE_CHARS, PAGE_STEPS, CutText, StepEntry, step_entries, window
from webapp.rollouts.contexts.tokens import tokenless_reason
from webapp.rollouts.models.annotations import Annotation
from webapp.rollouts.models.regrades import Regrade
from webapp.rollouts.models.scores import Score
from webapp.rollouts.models.trajectories import TestResult, Trajectory
from webapp.rollouts.selectors import annotations as annotation_reads
from webapp.rollouts.selectors import regrades as regrade_reads
from webapp.rollouts.selectors import scores as score_reads
from webapp.rollouts.selectors import steps as step_reads
from webapp.rollouts.selectors import trajectories as reads
from webapp.rollouts.services import annotations as annotation_writes
from webapp.rollouts.services.rows import PASSED
from webapp.runs.models.runs import Run


@dataclass(frozen=True, slots=True)
class SiblingLink:
    """Another rollout of the group."""

    index: int
    url: str
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryContext:
    """Context of a trajectory's page."""

    section: str
    crumbs: tuple[Crumb, ...]
    live: LiveCursor
    run: Run
    trajectory: Trajectory
    title: str
    task_url: str
    group_url: str
    siblings: tuple[SiblingLink, ...]
    pair_url: str
    """URL of the rollout beside a sibling with another result; empty without siblings."""
    steps: tuple[StepEntry, ...]
    """All steps; a window from the requested one on is in full."""
    find: str
    """Text to search for in the steps; empty for none."""
    found: Found | None
    statement: CutText
    """The task's problem statement; empty where it is not known."""
    statement_html: SafeString | None
    """The statement's Markdown, rendered; None where the text is shown."""
    opening: tuple[PromptMessage, ...]
    """Messages before the first response; empty where they were not recorded."""
    imported: tuple[ImportedField, ...] | None
    """Fields of the file that the trajectory was imported from; None for rollouts of runs."""
    formula: str
    failed_tests: tuple[TestResult, ...]
    """Tests that did not pass, skipped ones included."""
    passed_tests: tuple[TestResult, ...]
    whole_log_chars: int
    """Length of the complete test log if the page shows only a part; else 0."""
    samples: int
    """Number of training samples: more than 1 where the conversation was rendered anew."""
    tokenless: str
    """Reason why the trajectory has no token ids; empty if it has or may still get them."""
    is_traced: bool
    """Whether the trainer recorded its tokens."""
    staleness: Staleness | None
    """None where its update is not known."""
    time_parts: tuple[tuple[str, str, float], ...]
    patch: Diff | None
    gold: Diff | None
    findings: tuple[dict[str, Any], ...]
    hits: tuple[ScannerHits, ...] | None
    """Hits of scanners; None if the trajectory has not been scanned."""
    scores: tuple[Score, ...]
    """Scores by verifiers' runs."""
    later_verdicts: tuple[Regrade, ...]
    """Verdicts by regradings."""
    annotations: tuple[Annotation, ...]
    """Labels and comments, oldest first."""
    removable: frozenset[int]
    """Ids of those that the reader may remove."""
    labels: tuple[str, ...]
    """Frequent labels of all trajectories."""
    note_kinds: tuple[tuple[str, int], ...]
    """Kinds of annotations, each with the length of its longest text."""
    shows_answer: bool
    """True if the user may see the gold patch and the output of the hidden tests."""
    has_repository: bool
    """True if rollouts of the environment end in a patch that is tested."""


def _sandbox_rest(trajectory: Trajectory) -> float:
    """Return the sandbox's time other than image pull and start, seconds."""
    return trajectory.sandbox_seconds - trajectory.pull_seconds - trajectory.start_seconds


def time_parts(trajectory: Trajectory) -> tuple[tuple[str, str, float], ...]:
    """Return the parts of the wall time that are not zero as (label, CSS class, seconds)."""
    parts = [
        ("queued", "t-queue", trajectory.queue_seconds),
        ("image pull", "t-pull", trajectory.pull_seconds),
        ("sandbox start", "t-sandbox", trajectory.start_seconds),
        ("patch and teardown", "t-sandbox-rest", _sandbox_rest(trajectory)),
        ("model", "t-model", trajectory.model_seconds), ("tools", "t-tools", trajectory.tool_seconds),
        ("grading", "t-grading", trajectory.grading_seconds),
    ]  # fmt: skip
    return tuple((label, css, seconds) for label, css, seconds in parts if seconds > 0)


def build_trajectory(
    run: Run,
    *,
    phase: str,
    iteration: int,
    task_key: str,
    index: int,
    role: Role,
    user_id: int | None = None,
    start: int = 0,
    find: str = "",
    newest: bool = False,
    with_forms: bool = False,
) -> TrajectoryContext | None:
    """Build the context of a trajectory's page; None if there is no such trajectory.

    Args:
        role: role of the reader.
        user_id: the reader, if an operator.
        start: first step that is shown in full.
        find: text to search for; empty for none.
        newest: True to show the newest steps in full instead.
        with_forms: True for a page with the forms of labels, which offer frequent ones.
    """
    trajectory = reads.get_trajectory(
        run.pk, phase=phase, iteration=iteration, task_key=task_key, index=index
    )
    if trajectory is None:
        return None
    shows_answer = role.sees_answers
    annotations = annotation_reads.annotations_of(trajectory.pk)
    samples = reads.num_samples(trajectory.pk)
    siblings, tests = reads.siblings(trajectory.group_id), reads.tests(trajectory.pk)
    task = trajectory.task
    title = task.instance_id if task else task_key
    statement = statement_text(task.problem_statement if task else "")
    return TrajectoryContext(
        section="runs",
        crumbs=group_crumbs(run, phase, iteration, task_key, title, Crumb(f"rollout {index}")),
        live=_live_cursor(run, trajectory),
        run=run,
        trajectory=trajectory,
        title=title,
        task_url=task_address(trajectory),
        group_url=group_url(run.pk, phase, iteration, task_key),
        siblings=_sibling_links(trajectory, siblings),
        pair_url=pair_url(trajectory, siblings),
        steps=_steps(trajectory.pk, None if newest else start),
        find=find,
        found=find_text(trajectory.pk, find) if find else None,
        statement=statement,
        statement_html=statement_html(statement),
        opening=opening_messages(reads.opening(trajectory.pk)),
        imported=imported_fields(reads.imported_fields(trajectory.pk, with_answers=shows_answer)),
        formula=formula(trajectory, algorithm_of(run)),
        failed_tests=tuple(test for test in tests if test.outcome not in PASSED),
        passed_tests=tuple(test for test in tests if test.outcome in PASSED),
        whole_log_chars=reads.whole_log_chars(trajectory.pk),
        samples=samples,
        tokenless="" if samples else tokenless_reason(run, trajectory),
        is_traced=reads.is_traced(trajectory.pk),
        staleness=staleness_of(trajectory),
        time_parts=time_parts(trajectory),
        patch=patch_diff(trajectory.patch),
        gold=patch_diff(reads.gold_patch(trajectory.task_id)) if shows_answer else None,
        findings=tuple(reads.findings(trajectory, with_answers=shows_answer)),
        hits=hits_in(trajectory),
        scores=tuple(score_reads.given_to([trajectory])),
        later_verdicts=tuple(regrade_reads.later_verdicts(trajectory)),
        annotations=tuple(annotations),
        removable=frozenset(a.pk for a in annotations if may_remove(a.author_id, role, user_id)),
        labels=tuple(annotation_reads.common_labels(with_answers=shows_answer)) if with_forms else (),
        note_kinds=tuple((kind.value, most) for kind, most in annotation_writes.MOST_CHARS.items()),
        shows_answer=shows_answer,
        has_repository=run.config.get("environment", {}).get("type", "swe") == "swe",
    )


def _live_cursor(run: Run, trajectory: Trajectory) -> LiveCursor:
    identity = f"{trajectory.pk}-{trajectory.epoch}-{trajectory.started_at.timestamp()}"
    key = (trajectory.phase, str(trajectory.iteration), trajectory.task_key, str(trajectory.index))
    return LiveCursor(run.pk, run.last_seq, "trajectory", identity, key)


def _sibling_links(trajectory: Trajectory, siblings: Iterable[Trajectory]) -> tuple[SiblingLink, ...]:
    key = (trajectory.run_id, trajectory.phase, trajectory.iteration, trajectory.task_key)
    return tuple(
        SiblingLink(sibling.index, trajectory_url(*key, sibling.index), sibling.pk == trajectory.pk)
        for sibling in siblings
    )


def _steps(trajectory_id: int, start: int | None) -> tuple[StepEntry, ...]:
    """Return all steps, with a window from ``start`` on in full; None selects the newest."""
    # Outline before texts: a step stored in between is then absent, never a line without its text.
    outline = step_reads.outline(trajectory_id)
    if start is None:
        start = max(0, len(outline) - PAGE_STEPS)
    rows = step_reads.steps(trajectory_id, start=start, limit=PAGE_STEPS)
    return step_entries(outline, window(rows, chars=PAGE_CHARS))


def task_address(trajectory: Trajectory) -> str:
    """Return the URL of the task's page; empty while its dataset is not synchronised."""
    task = trajectory.task
    return reverse("task-detail", args=[task.dataset.name, task.key]) if task else ""
