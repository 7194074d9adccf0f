"""The header strip of a run: state, progress, time, solve rate, controls with their acknowledged state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from urllib.parse import urlencode

from django.urls import reverse
from django.utils import timezone

from engine.types import RunKind, RunState
from webapp.core.contexts.words import KINDS, in_words
from webapp.datasets.models.datasets import Dataset
from webapp.rollouts.selectors import scores as score_reads
from webapp.runs.contexts.collection import ENDED, CollectionView, build_collection
from webapp.runs.contexts.engines import EngineSummary, engine_summary
from webapp.runs.contexts.phase import Phase, phase_of
from webapp.runs.contexts.policy_label import policy_label
from webapp.runs.contexts.results.parts import RunResults
from webapp.runs.contexts.results.results import build_results, kept_of
from webapp.runs.kinds import kind_of
from webapp.runs.models.runs import Run
from webapp.runs.selectors import iterations as iteration_reads
from webapp.runs.selectors import runs as run_reads
from webapp.runs.selectors.checkpoints import newest_checkpoint
from webapp.runs.selectors.iterations import BatchRate, LiveCounts, Point
from webapp.sandboxes import selectors as sandbox_reads
from webapp.sandboxes.models import Pool


@dataclass(frozen=True, slots=True)
class Control:
    """A button with its action and its label."""

    action: str
    label: str
    confirm: str = ""
    css: str = ""

    @property
    def url_name(self) -> str:
        """Return the name of the URL that it posts to."""
        return f"run-{self.action}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """Content of the strip, also for runs that have not started or have no iterations."""

    run: Run
    policy: str
    """Model or script that acts; empty for kinds without one."""
    stale: bool
    condition: str
    """Reason for a queued run's wait, or the launcher's report about a live run; else empty."""
    waiting: str
    """Pending request, not yet acknowledged; empty when nothing is pending."""
    controls: tuple[Control, ...]
    iterations_done: int
    progress_done: int
    progress_total: int
    elapsed_seconds: float | None
    """None before it ran; for a live run the page counts on from ``running_at``."""
    solve: BatchRate | None
    """Of the newest training batch; None before one."""
    rewards: tuple[float | None, ...]
    counts: LiveCounts
    pool: Pool | None
    """Its sandboxes as last reported; None when it has none."""
    engines: EngineSummary | None
    """Its inference engines as last reported; None when it has none."""
    collection: CollectionView | None
    """Its progress if it samples a policy once; None for other kinds."""
    has_rollouts: bool
    """False for a run in which no agent acts."""
    has_charts: bool
    """Whether its iterations are charted, as those of training and fine-tuning."""
    phase: Phase | None
    """Current work of a live run; None for others."""
    made: Dataset | None
    """The dataset that it made; None until it exists."""
    results: RunResults | None
    """Result of its work; None for kinds whose evaluations, charts and rollouts are all there is."""
    kept: str
    """Sentence about what is kept of a run that failed or was stopped; empty for others."""
    kind: str
    """Its kind in words."""

    @property
    def can_archive(self) -> bool:
        """Return whether it may be archived: it is not archived, and neither queued nor live."""
        return self.run.archived_at is None and self.run.state in (RunState.DRAFT, *ENDED)

    @property
    def ending(self) -> str:
        """Return the word for the end of a run that did not succeed; empty for others."""
        return self.run.state if self.run.state in (RunState.FAILED, RunState.STOPPED) else ""

    @property
    def verify_urls(self) -> tuple[tuple[str, str], ...]:
        """Return label and address of the forms that score its trajectories or grade them again.

        Empty while it has none, or kept none of the tests that it wrote.
        """
        if not self.has_rollouts or not self.counts.total or self.run.is_imported:
            return ()
        if self.run.writes_tests:
            kept = self.collection is not None and self.collection.solve.solved
            with_tests = ("Verify with these tests", self._form("verify-by-tests", "verifier.tests"))
            return (with_tests,) if kept else ()
        of_patches = (
            ("Verify by tests", self._form("verify-by-tests", "verifier.runs")),
            ("Grade again", self._form("regrade", "regrade.runs")),
        )
        goes_on = self.run.state in (RunState.RUNNING, RunState.PAUSED)
        follow = {"verifier.follow": "true"} if goes_on else {}
        return (
            ("Verify", self._form("verify", "verifier.runs", **follow)),
            *(of_patches if self.run.config.get("environment", {}).get("type") == "swe" else ()),
            ("Train a judge", self._form("train-judge", "judgements.on_policy")),
        )

    def _form(self, recipe: str, setting: str, **others: str) -> str:
        return f"{reverse('run-new')}?{urlencode({'recipe': recipe, setting: self.run.pk, **others})}"


RESUME_CHECKPOINT = "Resume from the last checkpoint"
RESUME_COLLECTION = "Resume where it stopped"
START_OVER = "Start over"
RETRIES = MappingProxyType(
    {RunKind.VERIFIER: "Retry missing scores", RunKind.REGRADE: "Retry missing verdicts"}
)
"""Labels of the button that continues a run which has succeeded without some of its results, by kind."""


def controls_of(
    state: str, desired: str, *, resume: str = RESUME_CHECKPOINT, retry: str = ""
) -> tuple[Control, ...]:
    """Return the buttons for a state.

    Args:
        state: the run's state.
        desired: the requested state.
        resume: label of the button that resumes an ended run; empty where there is none.
        retry: label of the button that retries missing results of a succeeded run; empty without any.
    """
    stop = Control("stop", "Stop", "Stop this run? It ends after the work in flight is closed.", "danger")
    match state:
        case RunState.DRAFT:
            return (Control("start", "Start", css="primary"),)
        case RunState.QUEUED | RunState.STARTING:
            return (stop,)
        case RunState.RUNNING:
            pause = Control("resume", "Cancel pause") if desired == "pause" else Control("pause", "Pause")
            return (stop,) if desired == "stop" else (pause, stop)
        case RunState.PAUSED:
            return (stop,) if desired == "stop" else (Control("resume", "Resume", css="primary"), stop)
        case RunState.FAILED | RunState.STOPPED:
            return (Control("resume", resume),) if resume else ()
        case RunState.SUCCEEDED:
            return (Control("resume", retry),) if retry else ()
        case _:
            return ()


def waiting_for(state: str, desired: str) -> str:
    """Return the request that the engine has not acknowledged yet, in words; empty without one."""
    if state in ENDED or state in (RunState.DRAFT, RunState.QUEUED):
        return ""
    if state == RunState.STOPPING or desired == "stop":
        return "stop requested, waiting for the engine to acknowledge"
    if desired == "pause" and state != RunState.PAUSED:
        return "pause requested, takes effect when the work in flight is done"
    if desired == "run" and state == RunState.PAUSED:
        return "resume requested, waiting for the engine to acknowledge"
    return ""


def elapsed(run: Run, now: datetime) -> float | None:
    """Return the seconds from the run's first start to its end or ``now``; None before the start."""
    if run.running_at is None:
        return None
    return (
        (run.finished_at if run.state in ENDED and run.finished_at else now) - run.running_at
    ).total_seconds()


def build_header(run: Run, points: list[Point]) -> RunHeader:
    """Return the strip for a run whose newest finished iterations are ``points``."""
    done = iteration_reads.num_finished(run.pk)
    by_iteration = run.total_iterations > 0
    has_rollouts = RunKind(run.kind).has_rollouts
    counts = iteration_reads.live_counts(run)
    collection = build_collection(run, counts)
    made = None if has_rollouts else run.datasets_made.first()
    return RunHeader(
        run=run,
        policy=policy_label(run.config.get("policy")),
        stale=run_reads.is_stale(run),
        condition=run_reads.condition_of(run),
        waiting=waiting_for(run.state, run.desired),
        controls=controls_of(
            run.state,
            run.desired,
            resume=_resume_label(run, collection),
            retry=RETRIES[RunKind(run.kind)] if score_reads.can_retry(run) else "",
        ),
        iterations_done=done,
        progress_done=done if by_iteration else run.progress_done,
        progress_total=run.total_iterations if by_iteration else run.progress_total,
        elapsed_seconds=elapsed(run, timezone.now()),
        solve=iteration_reads.batch_rate(run.pk, points[-1]) if points and has_rollouts else None,
        rewards=tuple(point.metrics.get("reward/mean") for point in points[-60:]),
        counts=counts,
        pool=next(iter(sandbox_reads.pools(run.pk)), None),
        engines=engine_summary(run),
        collection=collection,
        has_rollouts=has_rollouts,
        has_charts=_has_charts(run, collection),
        phase=phase_of(run),
        made=made,
        results=build_results(run, points, made=made),
        kept=kept_of(run),
        kind="imported trajectories" if run.is_imported else in_words(run.kind, KINDS),
    )


def _has_charts(run: Run, collection: CollectionView | None) -> bool:
    """Return whether a run's iterations are charted."""
    if run.kind == RunKind.SFT:
        return run.config.get("data") != "stream"
    return RunKind(run.kind).has_rollouts and collection is None and not run.is_imported


def _resume_label(run: Run, collection: CollectionView | None) -> str:
    """Return the label of the button that resumes an ended run; empty where it would end again at once."""
    if run.state not in (RunState.FAILED, RunState.STOPPED):
        return RESUME_CHECKPOINT
    if collection is not None:
        return "" if collection.spent else RESUME_COLLECTION
    if kind_of(run.kind).has_checkpoints:
        return RESUME_CHECKPOINT if newest_checkpoint(run) else START_OVER
    return RESUME_COLLECTION
