"""The page of scanners, and their hits in one trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.urls import reverse

from engine.scanners.patterns import MOST_CHARS, PLACES
from webapp.core.contexts.frame import Crumb, choices_of
from webapp.core.permissions import Person
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors import scans as reads
from webapp.rollouts.selectors.scans import Agreement, ScannerInfo, Share
from webapp.runs.models.runs import Run

MOST_RUNS = 6
"""Runs whose shares the page shows."""
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
    agreement: Agreement | None
    """None without labels of its name."""
    can_change: bool


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
    places: tuple[tuple[str, str], ...]
    most_chars: int
    values: Mapping[str, str]
    """Values of the form."""
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
    values = next(
        (
            {"name": info.name, "pattern": info.pattern, "place": info.place, "words": info.words}
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
        places=choices_of(PLACES),
        most_chars=MOST_CHARS,
        values=values if posted is None else posted,
        refused=refused,
    )
