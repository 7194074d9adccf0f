"""The page of scanners, and their hits in one trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.urls import reverse

from engine.scanners import rubrics
from engine.scanners.patterns import MOST_CHARS, PLACES
from webapp.core.contexts.frame import Crumb, choices_of, run_url
from webapp.core.permissions import Person, may_remove
from webapp.endpoints.selectors import list_endpoints
from webapp.rollouts.models.judgements import Judgement
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors import scans as reads
from webapp.rollouts.selectors.scans import Agreements, ScannerInfo, Share
from webapp.runs.models.runs import Run

MOST_RUNS = 6
"""Runs whose shares the page shows."""
DEFAULT_JUDGED = 50
"""Number of rollouts that the form of a scan with a rubric proposes."""
_FIELDS = ("name", "pattern", "place", "rubric", "endpoint", "model", "words")
MOST_PENDING = 10_000
"""Largest number of trajectories to scan that the page counts."""


@dataclass(frozen=True, slots=True)
class ScannerHits:
    """Hits of one scanner in a trajectory."""

    name: str
    words: str
    version: int
    count: int
    first: tuple[tuple[int | None, str], ...]
    """Step (None: the whole trajectory) and detail of the first hits."""


def hits_in(trajectory: Trajectory) -> tuple[ScannerHits, ...] | None:
    """Return the hits in a trajectory by scanner; None if it has not been scanned."""
    scan = reads.hits_of(trajectory.pk)
    if scan is None:
        return None
    return tuple(
        ScannerHits(
            info.name,
            info.words,
            info.version,
            hits["count"],
            tuple((step, detail) for step, detail in hits["first"]),
        )
        for info in reads.scanners()
        if (hits := scan.hits.get(info.name)) and scan.versions.get(info.name) == info.version
    )


@dataclass(frozen=True, slots=True)
class RunShare:
    """A scanner's share of a run's rollouts."""

    run: Run
    applies: bool
    """Whether the scanner reads the rollouts of this run."""
    share: Share | None
    """None where it has read none."""


@dataclass(frozen=True, slots=True)
class ScannerRow:
    """A scanner with its shares in the shown runs."""

    info: ScannerInfo
    shares: tuple[RunShare, ...]
    agreements: Agreements | None
    """None without labels of its name."""
    can_change: bool


@dataclass(frozen=True, slots=True)
class JudgementRow:
    """A scan with a rubric."""

    judgement: Judgement
    run_url: str
    can_stop: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannersContext:
    """Context of the page of scanners."""

    section: str
    crumbs: tuple[Crumb, ...]
    runs: tuple[Run, ...]
    rows: tuple[ScannerRow, ...]
    newest: int
    """Newest rollouts of each run from which the shares are computed."""
    pending: int
    """Trajectories that a scanner has not read yet, at most ``most_pending``."""
    most_pending: int
    rubrics: tuple[tuple[str, str], ...]
    """Scanners with rubrics, as choices."""
    judgements: tuple[JudgementRow, ...]
    """The newest scans with rubrics; empty for viewers."""
    most_judged: int
    default_judged: int
    places: tuple[tuple[str, str], ...]
    endpoints: tuple[tuple[str, str], ...]
    """Endpoints that a rubric may ask; empty for viewers."""
    most_chars: int
    most_rubric: int
    values: Mapping[str, str]
    """Values of the form of an expression."""
    rubric_values: Mapping[str, str]
    """Values of the form of a rubric."""
    refused: str
    """Reason why the form was refused; empty without one."""


def build_scanners(
    person: Person, *, edit: str = "", posted: Mapping[str, str] | None = None, refused: str = ""
) -> ScannersContext:
    """Build the page of scanners.

    Args:
        person: the reader, who may change own scanners.
        edit: entered scanner whose values the form shows.
        posted: values of a refused form.
        refused: reason why it was refused.
    """
    infos = reads.scanners()
    runs = reads.newest_runs(MOST_RUNS, with_answers=person.role.sees_answers)
    shares, agreements = reads.shares([run.pk for run in runs]), reads.agreements()
    values: Mapping[str, str] = posted or next(
        (
            {field: getattr(info, field) for field in _FIELDS}
            for info in infos
            if info.name == edit and not info.shipped
        ),
        {"place": PLACES[0]},
    )
    return ScannersContext(
        section="trajectories",
        crumbs=(Crumb("Trajectories", reverse("trajectory-search")), Crumb("Scanners")),
        runs=tuple(runs),
        rows=tuple(
            ScannerRow(
                info,
                tuple(
                    RunShare(run, reads.applies(info, run), shares.get(run.pk, {}).get(info.name))
                    for run in runs
                ),
                agreements.get(info.name),
                not info.shipped
                and (person.can_manage or (person.can_operate and info.author_id == person.user.pk)),
            )
            for info in infos
        ),
        newest=reads.NEWEST,
        pending=reads.pending()[:MOST_PENDING].count(),
        most_pending=MOST_PENDING,
        rubrics=tuple((info.name, info.name) for info in infos if info.rubric),
        judgements=_judgements(person) if person.can_operate else (),
        most_judged=reads.MOST_JUDGED,
        default_judged=DEFAULT_JUDGED,
        places=choices_of(PLACES),
        endpoints=tuple((row.name, row.name) for row in list_endpoints()) if person.can_operate else (),
        most_chars=MOST_CHARS,
        most_rubric=rubrics.MOST_CHARS,
        values={"place": PLACES[0]} if values.get("rubric") else values,
        rubric_values=values if values.get("rubric") else {},
        refused=refused,
    )


def _judgements(person: Person) -> tuple[JudgementRow, ...]:
    return tuple(
        JudgementRow(
            judgement,
            run_url(judgement.run),
            judgement.finished_at is None
            and may_remove(judgement.started_by_id, person.role, person.user.pk),
        )
        for judgement in reads.judgements()
    )
