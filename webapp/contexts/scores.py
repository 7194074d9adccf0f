"""Scores of a verifier's run: the trajectories by P(YES), and how well the scores tell them apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.verifiers.calibration import Calibration, ReliabilityBin, calibrate
from webapp.contexts.frame import trajectory_url
from webapp.contexts.numbers import MOST_ID, whole
from webapp.models import Run, Score
from webapp.selectors import runs as run_reads
from webapp.selectors import scores as reads
from webapp.selectors.paging import Page, map_page

SIDE = 200
"""Side of the reliability diagram, px."""
_LEAST_RADIUS, _MOST_RADIUS = 2.5, 8.0


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """A trajectory with its score."""

    score: Score
    task: str
    """Readable name of the task; its key where it is unknown."""
    url: str
    """Address of the trajectory; empty where its run is not in the database."""


@dataclass(frozen=True, slots=True)
class ReliabilityMark:
    """A bin of the reliability diagram, in px from its upper left corner."""

    bin: ReliabilityBin
    x: str
    y: str
    low: str
    high: str
    radius: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoresPanel:
    """Calibration, and the scores by P(YES)."""

    page: Page[ScoreRow]
    num_missing: int
    only_missing: bool
    calibration: Calibration
    marks: tuple[ReliabilityMark, ...]
    side: int


def build_scores(run: Run, params: Mapping[str, str]) -> ScoresPanel:
    """Return the scores of a run as the address asks for them."""
    only_missing = params.get("scores") == "missing"
    page = reads.list_scores(run.pk, missing=only_missing, number=whole(params.get("page", "")) or 1)
    names = reads.task_names([score.task_key for score in page.rows])
    sources = {score.source: whole(score.source, most=MOST_ID) for score in page.rows}
    known = run_reads.existing([run_id for run_id in sources.values() if run_id is not None])
    calibration = calibrate(reads.forecasts_by_task(run.pk))
    return ScoresPanel(
        page=map_page(
            page,
            lambda score: ScoreRow(
                score, names.get(score.task_key, score.task_key), _url(score, sources[score.source], known)
            ),
        ),
        num_missing=reads.count_missing(run.pk),
        only_missing=only_missing,
        calibration=calibration,
        marks=_marks(calibration),
        side=SIDE,
    )


def _url(score: Score, run_id: int | None, known: set[int]) -> str:
    if run_id not in known or run_id is None:
        return ""
    return trajectory_url(run_id, score.phase, score.iteration, score.task_key, score.index)


def _marks(calibration: Calibration) -> tuple[ReliabilityMark, ...]:
    most = max((one.count for one in calibration.bins), default=0)
    return tuple(
        ReliabilityMark(
            one,
            x=_px(one.mean_probability or 0.0),
            y=_px(1 - (one.rate or 0.0)),
            low=_px(1 - (one.rate_low or 0.0)),
            high=_px(1 - (one.rate_high or 0.0)),
            radius=f"{_LEAST_RADIUS + (_MOST_RADIUS - _LEAST_RADIUS) * (one.count / most) ** 0.5:.1f}",
        )
        for one in calibration.bins
        if one.count
    )


def _px(share: float) -> str:
    return f"{share * SIDE:.1f}"
