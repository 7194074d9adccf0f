"""Scores of a verifier's run: trajectories by P(YES), and calibration of the scores."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.verifiers.calibration import Calibration, Forecast, ReliabilityBin, calibrate
from webapp.core.contexts.frame import trajectory_url
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.core.selectors import Page, map_page
from webapp.rollouts.models.regrades import Regrade
from webapp.rollouts.models.scores import ExaminedTest, Score
from webapp.rollouts.selectors import scores as reads
from webapp.rollouts.selectors.scores import GradedScore
from webapp.runs.models.runs import Run
from webapp.runs.selectors import runs as run_reads

SIDE = 200
"""Side of the reliability diagram, px."""
MAX_REPOSITORIES = 20
"""Maximum number of repositories shown."""
MAX_PHASES = 20
"""Maximum number of runs and phases shown."""
_MAX_ITERATION_PARTS = 10
_LENGTHS = (2_000, 4_000, 8_000, 16_000, 32_000, 64_000)
"""Lower bounds of the parts by prompt tokens."""
_LEAST_RADIUS, _MOST_RADIUS = 2.5, 8.0


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """A trajectory with its score."""

    score: Score
    task: str
    """Readable name of the task; its key where it is unknown."""
    url: str
    """URL of the trajectory; empty where its run is not in the database."""


@dataclass(frozen=True, slots=True)
class ReliabilityMark:
    """A bin of the reliability diagram, in px from its upper left corner."""

    bin: ReliabilityBin
    x: str
    y: str
    low: str
    high: str
    radius: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the scores, with its own calibration."""

    name: str
    calibration: Calibration


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The scores by one property of their trajectories."""

    title: str
    parts: tuple[Part, ...]
    total: int
    """Number of all parts, shown or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoresPanel:
    """Context of the panel: calibration, and the scores by P(YES)."""

    page: Page[ScoreRow]
    num_missing: int
    num_stale: int
    """Scores left out because a later attempt removed or repeated their rollouts."""
    unfinished: tuple[int, ...]
    """Runs that had not ended when they were read; rollouts finished later have no score."""
    only_missing: bool
    calibration: Calibration
    marks: tuple[ReliabilityMark, ...]
    side: int
    breakdowns: tuple[Breakdown, ...]


def build_scores(run: Run, params: Mapping[str, str]) -> ScoresPanel:
    """Build the panel of a run's scores as selected by the query string."""
    only_missing = params.get("scores") == "missing"
    page = reads.list_scores(run.pk, missing=only_missing, number=whole(params.get("page", "")) or 1)
    names = reads.task_names([score.task_key for score in page.rows])
    urls = trajectory_urls(page.rows)
    graded = reads.graded_scores(run.pk)
    calibration = _calibration(graded)
    return ScoresPanel(
        page=map_page(
            page,
            lambda score: ScoreRow(score, names.get(score.task_key, score.task_key), urls.get(score.pk, "")),
        ),
        num_missing=reads.count_missing(run.pk),
        num_stale=reads.count_stale(Score, run.pk),
        unfinished=reads.unfinished_sources(run),
        only_missing=only_missing,
        calibration=calibration,
        marks=_marks(calibration),
        side=SIDE,
        breakdowns=tuple(
            breakdown
            for breakdown in (
                _by_phase(graded),
                *_by_iteration(graded),
                _by_length(graded),
                _by_repository(graded),
            )
            if breakdown.total > 1
        ),
    )


def _calibration(scores: Iterable[GradedScore]) -> Calibration:
    by_task: dict[str, list[Forecast]] = defaultdict(list)
    for score in scores:
        by_task[score.task_key].append(score.forecast)
    return calibrate(by_task)


def _by_phase(scores: Sequence[GradedScore]) -> Breakdown:
    """Return the scores by run and phase of their trajectories."""
    parts = _phases(scores)
    names = [(f"run {source}, {phase}", members) for (source, phase), members in sorted(parts.items())]
    shown = tuple(Part(name, _calibration(members)) for name, members in names[:MAX_PHASES])
    return Breakdown("Rollouts", shown, len(parts))


def _by_iteration(scores: Sequence[GradedScore]) -> list[Breakdown]:
    """Return the scores of each run's phase by iterations, in parts of equal width."""
    phases = _phases(scores)
    breakdowns = []
    for (source, phase), members in sorted(phases.items()):
        width = -(-(max(score.iteration for score in members) + 1) // _MAX_ITERATION_PARTS)
        parts: dict[int, list[GradedScore]] = defaultdict(list)
        for score in members:
            parts[score.iteration // width].append(score)
        title = "Iteration" if len(phases) == 1 else f"Iteration of run {source}, {phase}"
        rows = (
            Part(_iterations(place * width, width), _calibration(part))
            for place, part in sorted(parts.items())
        )
        breakdowns.append(Breakdown(title, tuple(rows), len(parts)))
    return breakdowns


def _phases(scores: Iterable[GradedScore]) -> dict[tuple[str, str], list[GradedScore]]:
    parts: dict[tuple[str, str], list[GradedScore]] = defaultdict(list)
    for score in scores:
        parts[score.source, score.phase].append(score)
    return parts


def _iterations(first: int, width: int) -> str:
    return str(first) if width == 1 else f"{first:,}–{first + width - 1:,}"


def _by_length(scores: Sequence[GradedScore]) -> Breakdown:
    parts: dict[int, list[GradedScore]] = defaultdict(list)
    for score in scores:
        if score.prompt_tokens:
            parts[bisect_right(_LENGTHS, score.prompt_tokens)].append(score)
    names = (f"below {_LENGTHS[0]:,}", *(f"{low:,} and more" for low in _LENGTHS))
    shown = tuple(Part(names[place], _calibration(members)) for place, members in sorted(parts.items()))
    return Breakdown("Prompt tokens", shown, len(shown))


def _by_repository(scores: Sequence[GradedScore]) -> Breakdown:
    repositories = reads.repositories({score.task_key for score in scores})
    parts: dict[str, list[GradedScore]] = defaultdict(list)
    for score in scores:
        parts[repositories.get(score.task_key) or "–"].append(score)
    ordered = sorted(parts.items(), key=lambda part: (-len(part[1]), part[0]))
    shown = tuple(Part(name, _calibration(members)) for name, members in ordered[:MAX_REPOSITORIES])
    return Breakdown("Repository", shown, len(ordered))


def trajectory_urls(rows: Sequence[Score] | Sequence[ExaminedTest] | Sequence[Regrade]) -> dict[int, str]:
    """Return the URL of each row's trajectory by the row's id; rows of unknown runs are left out."""
    sources = {row.source: whole(row.source, most=MOST_ID) for row in rows}
    known = run_reads.existing([run_id for run_id in sources.values() if run_id is not None])
    return {
        row.pk: trajectory_url(run_id, row.phase, row.iteration, row.task_key, row.index)
        for row in rows
        if (run_id := sources[row.source]) in known and run_id is not None
    }


def _marks(calibration: Calibration) -> tuple[ReliabilityMark, ...]:
    most = max((bin_.count for bin_ in calibration.bins), default=0)
    return tuple(
        ReliabilityMark(
            bin_,
            x=_px(bin_.mean_probability or 0.0),
            y=_px(1 - (bin_.rate or 0.0)),
            low=_px(1 - (bin_.rate_low or 0.0)),
            high=_px(1 - (bin_.rate_high or 0.0)),
            # The area of a mark is about proportional to its number of trajectories.
            radius=f"{_LEAST_RADIUS + (_MOST_RADIUS - _LEAST_RADIUS) * (bin_.count / most) ** 0.5:.1f}",
        )
        for bin_ in calibration.bins
        if bin_.count
    )


def _px(share: float) -> str:
    return f"{share * SIDE:.1f}"
