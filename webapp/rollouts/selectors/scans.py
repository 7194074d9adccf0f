"""Reads of scanners and their hits."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Exists, OuterRef, Q, QuerySet

from engine.scanners import purposes
from engine.scanners.purposes import PURPOSES, Thinking
from engine.scanners.rules import RULES
from webapp.rollouts.models.annotations import Annotation
from webapp.rollouts.models.judgements import Judgement
from webapp.rollouts.models.scans import EnteredScanner, Scan
from webapp.runs.models.runs import Run

NEWEST = 2_000
"""Newest rollouts of a run from which its shares in lists are computed."""
NEWEST_OVER_TIME = 20_000
"""Newest rollouts of a run from which its shares over iterations are computed."""
MOST_JUDGED = 1_000
"""Largest number of rollouts of a scan with a rubric."""
_MOST_LABELS = 5_000
"""Newest labels that are compared with hits."""
_WITH_REPOSITORY = ("swe", "reproduction")
"""Types of environments whose actions the shipped scanners and the purposes of steps apply to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannerInfo:
    """A shipped or entered scanner."""

    name: str
    version: int
    words: str
    pattern: str = ""
    """Regular expression; empty for other scanners."""
    place: str = ""
    rubric: str = ""
    """Question to a model; empty for other scanners."""
    endpoint: str = ""
    model: str = ""
    problem: str = ""
    """Reason why it is no longer used; empty if it is used."""
    author_id: int | None = None

    @property
    def shipped(self) -> bool:
        """Return whether it is one of the shipped scanners."""
        return not self.pattern and not self.rubric


@dataclass(frozen=True, slots=True)
class Share:
    """Trajectories with a hit of a scanner, of those that its current version has read."""

    scanned: int
    found: int

    @property
    def rate(self) -> float | None:
        """Return the share; None if the scanner has read no trajectory."""
        return self.found / self.scanned if self.scanned else None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Hits of a scanner against labels with its name."""

    hit_and_labelled: int
    only_hit: int
    """Hits that a label ``not NAME`` refutes."""
    only_labelled: int

    @property
    def precision(self) -> float | None:
        """Return the share of labelled hits that are right; None without any."""
        hits = self.hit_and_labelled + self.only_hit
        return self.hit_and_labelled / hits if hits else None

    @property
    def recall(self) -> float | None:
        """Return the share of labels with the name that have a hit; None without any."""
        labelled = self.hit_and_labelled + self.only_labelled
        return self.hit_and_labelled / labelled if labelled else None


@dataclass(frozen=True, slots=True)
class Agreements:
    """Agreement of a scanner with labels, counted in trajectories and in steps; None without labels."""

    trajectories: Agreement | None
    steps: Agreement | None


Key = tuple[int, str, int]
"""Run, phase and iteration."""


def environment_of(run: Run) -> str:
    """Return the type of a run's environment."""
    return str(run.config.get("environment", {}).get("type", "swe"))


def has_repository(run: Run) -> bool:
    """Return whether the agents of a run work on a repository, so that the shipped scanners apply."""
    return environment_of(run) in _WITH_REPOSITORY


def applies(info: ScannerInfo, run: Run) -> bool:
    """Return whether a scanner reads the rollouts of a run; expressions read those of all runs."""
    return not info.shipped or has_repository(run)


def scanners() -> list[ScannerInfo]:
    """Return all scanners: the shipped ones, then those that people entered."""
    shipped = [ScannerInfo(name=rule.name, version=rule.version, words=rule.words) for rule in RULES.values()]
    entered = EnteredScanner.objects.filter(removed=False)
    return shipped + [
        ScannerInfo(
            name=row.name, version=row.version, words=row.words, pattern=row.pattern, place=row.place,
            rubric=row.rubric, endpoint=row.endpoint, model=row.model,
            problem=row.problem, author_id=row.created_by_id,
        )
        for row in entered
    ]  # fmt: skip


def current_versions() -> dict[str, int]:
    """Return the versions of all scanners in use, by name."""
    return {info.name: info.version for info in scanners() if not info.problem}


def entered_scanner(name: str) -> EnteredScanner | None:
    """Return a scanner that a person entered."""
    return EnteredScanner.objects.filter(name=name, removed=False).first()


def judgements(limit: int = 20) -> list[Judgement]:
    """Return the newest scans with rubrics."""
    return list(Judgement.objects.select_related("scanner", "started_by", "run").defer("run__config")[:limit])


def get_judgement(judgement_id: int) -> Judgement | None:
    """Return a scan with a rubric."""
    return Judgement.objects.select_related("scanner").filter(pk=judgement_id).first()


def fingerprint() -> str:
    """Return a hash of the versions of all scanners but rubrics, and of the purposes of steps.

    It is stored as ``Scan.fingerprint``.

    Scanners that are no longer used count, too: the hash changes with every new version, but not when a
    scanner is removed.
    """
    versions = {rule.name: rule.version for rule in RULES.values()}
    versions |= dict(EnteredScanner.objects.filter(rubric="").values_list("name", "version"))
    versions["purposes of steps"] = purposes.VERSION  # no scanner has a name with spaces
    return hashlib.blake2b(json.dumps(versions, sort_keys=True).encode(), digest_size=8).hexdigest()


def pending() -> QuerySet[Scan]:
    """Return the scans of trajectories that have not been scanned since a scanner changed."""
    before, after = _other_fingerprints()
    return Scan.objects.filter(before | after)


def next_pending(limit: int) -> list[int]:
    """Return trajectories to scan: those that no scanner has read before the others, the newest first."""
    ids: list[int] = []
    for condition in _other_fingerprints():  # one by one, so that each reads the index in its order
        rows = Scan.objects.filter(condition).order_by("fingerprint", "-trajectory_id")
        ids += rows.values_list("pk", flat=True)[: limit - len(ids)]
    return ids


def unindexed() -> QuerySet[Scan]:
    """Return the scans of trajectories whose texts are not in the full-text index yet."""
    return Scan.objects.filter(is_indexed=False)


def next_unindexed(limit: int) -> list[int]:
    """Return trajectories to index, the newest first."""
    return list(unindexed().order_by("-trajectory_id").values_list("pk", flat=True)[:limit])


def _other_fingerprints() -> tuple[Q, Q]:
    current = fingerprint()
    return Q(fingerprint__lt=current), Q(fingerprint__gt=current)


def hits_of(trajectory_id: int) -> Scan | None:
    """Return the hits in a trajectory; None if no scanner has read it yet."""
    return Scan.objects.filter(pk=trajectory_id).exclude(versions={}).first()


def has_hit(name: str) -> Q:
    """Return the condition of trajectories with a hit of a scanner's current version."""
    version = {info.name: info.version for info in scanners()}.get(name)
    hits = Scan.objects.filter(found__contains=[name], versions__contains={name: version})
    return Q(pk__in=hits.values("trajectory_id"))


def shares(run_ids: Sequence[int], *, newest: int = NEWEST) -> dict[int, dict[str, Share]]:
    """Return each scanner's share of the newest rollouts of runs, by run and scanner."""
    counted = _counted(
        "SELECT r.id, '', 0, s.versions, s.found FROM unnest(%s::bigint[]) AS r(id) CROSS JOIN LATERAL"
        " (SELECT versions, found FROM webapp_scan WHERE run_id = r.id"
        " ORDER BY trajectory_id DESC LIMIT %s) s",
        [list(run_ids), newest],
    )
    return {run: shown for (run, _, _), shown in counted.items()}


def shares_over_time(run_id: int) -> dict[tuple[str, int], dict[str, Share]]:
    """Return each scanner's share of a run's newest rollouts, by phase, iteration and scanner."""
    counted = _counted(
        "SELECT run_id, phase, iteration, versions, found FROM webapp_scan WHERE run_id = %s"
        " ORDER BY trajectory_id DESC LIMIT %s",
        [run_id, NEWEST_OVER_TIME],
    )
    return {(phase, iteration): shown for (_, phase, iteration), shown in counted.items()}


def _counted(rows: str, arguments: list[Any]) -> dict[Key, dict[str, Share]]:
    """Count scans and hits; ``rows`` selects run, phase, iteration, versions and found names of scans."""
    current = current_versions()
    shares: dict[Key, dict[str, Share]] = defaultdict(dict)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT run, phase, iteration, versions::text, found, count(*)"  # noqa: S608 (SQL of this module)
            f" FROM ({rows}) AS chosen(run, phase, iteration, versions, found) GROUP BY 1, 2, 3, versions, 5",
            arguments,
        )
        known: dict[str, list[str]] = {}
        for run, phase, iteration, versions, found, count in cursor.fetchall():
            if versions not in known:
                known[versions] = [n for n, v in json.loads(versions).items() if current.get(n) == v]
            counted = shares[run, phase, iteration]
            for name in known[versions]:
                old = counted.get(name, Share(0, 0))
                counted[name] = Share(old.scanned + count, old.found + count * (name in found))
    return shares


def thinking_over_time(run_id: int) -> dict[tuple[str, int], dict[str, Thinking]]:
    """Return the thinking tokens of a run's newest rollouts by phase, iteration and purpose of the step."""
    columns = ", ".join(
        f"coalesce(sum(purpose_steps[{i}]), 0), coalesce(sum(purpose_thinking[{i}]), 0)"
        for i in range(1, len(PURPOSES) + 1)
    )
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT phase, iteration, {columns} FROM"  # noqa: S608 (SQL of this module)
            " (SELECT phase, iteration, purpose_steps, purpose_thinking FROM webapp_scan WHERE run_id = %s"
            " ORDER BY trajectory_id DESC LIMIT %s) newest GROUP BY 1, 2 ORDER BY 1, 2",
            [run_id, NEWEST_OVER_TIME],
        )
        return {
            (phase, iteration): {
                name: Thinking(int(steps), int(tokens))
                for name, steps, tokens in zip(PURPOSES, sums[::2], sums[1::2], strict=True)
            }
            for phase, iteration, *sums in cursor.fetchall()
        }


def newest_runs(limit: int, *, with_answers: bool) -> list[Run]:
    """Return the newest runs with finished rollouts; without access to answers not those of the oracle."""
    runs = Run.objects.filter(Exists(Scan.objects.filter(run=OuterRef("pk"))))
    if not with_answers:
        runs = runs.exclude(pk__in=Run.playing_answers())
    return list(runs.defer("summary").order_by("-pk")[:limit])


def agreements() -> dict[str, Agreements]:
    """Compare scanners with labels ``NAME`` and ``not NAME``.

    A label may have spaces for the underscores of the name. A step labelled with the name is one of a
    trajectory with the behaviour; a step labelled ``not NAME`` says nothing about the others. Scanners
    without labels are left out, and steps after the hits that are stored.
    """
    current = current_versions()
    wanted: dict[str, tuple[str, bool]] = {}
    for name in current:
        for text in (name, name.replace("_", " ")):
            wanted[text], wanted[f"not {text}"] = (name, True), (name, False)
    labels = Annotation.objects.filter(kind=Annotation.Kind.LABEL, text__in=wanted).order_by("-pk")
    judged: set[tuple[str, bool, int, int | None]] = set()
    for text, trajectory, step in labels.values_list("text", "trajectory_id", "step_index")[:_MOST_LABELS]:
        judged.add((*wanted[text], trajectory, step))
        if step is not None and wanted[text][1]:
            judged.add((*wanted[text], trajectory, None))
    scans = Scan.objects.in_bulk({trajectory for _, _, trajectory, _ in judged})
    counts: dict[tuple[str, bool], Counter[tuple[bool, bool]]] = defaultdict(Counter)
    for name, is_right, trajectory, step in judged:
        scan = scans.get(trajectory)
        if scan is None or scan.versions.get(name) != current[name]:
            continue
        is_hit = _is_hit(scan.hits.get(name), step)
        if is_hit is not None:
            counts[name, step is None][is_hit, is_right] += 1
    return {
        name: Agreements(_agreement(counts.get((name, True))), _agreement(counts.get((name, False))))
        for name in {name for name, _ in counts}
    }


def _is_hit(hits: dict[str, Any] | None, step: int | None) -> bool | None:
    """Return whether a step (None: the trajectory) has a hit.

    None if not all hits are stored, or one is of the whole trajectory: it may mean any step.
    """
    if hits is None or step is None:
        return hits is not None
    steps = {index for index, _ in hits["first"]}
    if step in steps:
        return True
    return False if hits["count"] == len(hits["first"]) and None not in steps else None


def _agreement(count: Counter[tuple[bool, bool]] | None) -> Agreement | None:
    if count is None:
        return None
    return Agreement(count[True, True], count[True, False], count[False, True])
