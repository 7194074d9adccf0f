"""Results of a regrading: pass@1 and Best@K of the original and the new verdicts, and the flips."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.errors import ConfigError, DatasetError, MissingScoreError
from engine.evaluation.flips import FLIPS
from engine.evaluation.metrics import EvaluationSummary, EvaluationTally
from engine.types import Verdict
from engine.verifiers.selection.candidates import Candidate
from engine.verifiers.selection.curves import CurvePoint, available_rules, curves
from engine.verifiers.selection.rules import EB, EF, HYBRID, ORACLE, Rule
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.core.contexts.words import FLIPS as FLIP_WORDS
from webapp.core.selectors import Page, map_page
from webapp.evaluations.contexts.scores import trajectory_urls
from webapp.rollouts.models.regrades import Regrade
from webapp.rollouts.selectors import regrades as reads
from webapp.rollouts.selectors import scores as score_reads
from webapp.rollouts.selectors.regrades import StoredScores, Totals, TwoVerdicts
from webapp.runs.models.runs import Run
from webapp.runs.selectors import runs as run_reads

_LABELS = {
    "flips": "flips",
    "all": "all",
    "lost": "infrastructure failed",
    "not_regraded": "not graded again",
}


@dataclass(frozen=True, slots=True)
class SelectionPair:
    """Best@K by the original and by the new verdicts."""

    k: int
    before: CurvePoint
    after: CurvePoint


@dataclass(frozen=True, slots=True, kw_only=True)
class RegradedPart:
    """The trajectories of one run and phase that have both verdicts; iterations are pooled."""

    source: str
    """Run of the trajectories, by folder name."""
    name: str
    """Display name of that run; empty where it is not in the database."""
    phase: str
    num_iterations: int
    num_regraded: int
    flips: Mapping[str, int]
    """Kind of flip → trajectories."""
    before: EvaluationSummary
    """pass@1 by the original verdicts."""
    after: EvaluationSummary
    """pass@1 by the new verdicts, over the same trajectories."""
    rule: str
    """Selection rule of Best@K; ``oracle`` is pass@K. Empty without several rollouts of each task."""
    selection: tuple[SelectionPair, ...]
    """At K = 1, 2, 4, … up to the fewest trajectories of any task."""
    note: str
    """Reason why no verifier's scores are used, or why there is no Best@K; empty without one."""


@dataclass(frozen=True, slots=True)
class RegradeRow:
    """A trajectory with both verdicts."""

    regrade: Regrade
    task: str
    """Readable name of the task; its key where it is unknown."""
    url: str
    """URL of the trajectory; empty where its run is not in the database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegradingPanel:
    """Context of the panel: both rates of each run, and the list of flips."""

    parts: tuple[RegradedPart, ...]
    totals: Totals
    page: Page[RegradeRow]
    show: str
    choices: tuple[tuple[str, str], ...]
    """Values and labels of the filter."""
    num_stale: int
    """Verdicts left out because a later attempt removed or repeated their rollouts."""
    unfinished: tuple[int, ...]
    """Runs that had not ended when they were read."""


def build_regrading(run: Run, params: Mapping[str, str]) -> RegradingPanel:
    """Build the panel of a regrading as selected by the query string."""
    show = params.get("show", "")
    show = show if show in (*reads.SHOWN, *FLIPS) else "flips"
    page = reads.list_regrades(run.pk, show=show, number=whole(params.get("page", "")) or 1)
    names = score_reads.task_names([row.task_key for row in page.rows])
    urls = trajectory_urls(page.rows)
    totals = reads.totals(run.pk)
    return RegradingPanel(
        parts=regraded_parts(run),
        totals=totals,
        page=map_page(
            page,
            lambda row: RegradeRow(row, names.get(row.task_key, row.task_key), urls.get(row.pk, "")),
        ),
        show=show,
        choices=(*_LABELS.items(), *((kind, FLIP_WORDS[kind]) for kind in FLIPS if totals.flips.get(kind))),
        num_stale=score_reads.count_stale(Regrade, run.pk),
        unfinished=score_reads.unfinished_sources(run),
    )


def regraded_parts(run: Run) -> tuple[RegradedPart, ...]:
    """Return the rates of each run and phase that a regrading graded again."""
    members: dict[tuple[str, str], list[TwoVerdicts]] = defaultdict(list)
    for pair in reads.both_verdicts(run.pk):
        members[pair.source, pair.phase].append(pair)
    ids = {source: whole(source, most=MOST_ID) for source, _ in members}
    runs = run_reads.runs_by_number({number for number in ids.values() if number is not None})
    names = {source: runs[number].name for source, number in ids.items() if number in runs}
    return tuple(
        _part(source, names.get(source, ""), phase, pairs) for (source, phase), pairs in members.items()
    )


def _part(source: str, name: str, phase: str, pairs: Sequence[TwoVerdicts]) -> RegradedPart:
    rule, selection, note = _selection(pairs, source, phase)
    return RegradedPart(
        source=source,
        name=name,
        phase=phase,
        num_iterations=len({pair.iteration for pair in pairs}),
        num_regraded=len(pairs),
        flips=dict(Counter(pair.flip for pair in pairs if pair.flip).most_common()),
        before=_summary((pair.task_key, pair.old) for pair in pairs),
        after=_summary((pair.task_key, pair.new) for pair in pairs),
        rule=rule,
        selection=selection,
        note=note,
    )


def _summary(verdicts: Iterator[tuple[str, Verdict]]) -> EvaluationSummary:
    tally = EvaluationTally()
    for task, verdict in verdicts:
        tally.add(task, solved=verdict is Verdict.PASSED)
    return tally.summary()


def _selection(
    pairs: Sequence[TwoVerdicts], source: str, phase: str
) -> tuple[str, tuple[SelectionPair, ...], str]:
    """Return rule, Best@K by both verdicts, and the reason why no scores are used or no rule applies."""
    fewest = min(Counter(pair.task_key for pair in pairs).values())
    if fewest < 2:
        return "", (), "Best@K needs several trajectories of every task."
    ks = [2**power for power in range(fewest.bit_length())]
    before = _candidates(pairs, reads.scores_of(source, phase))
    after = [
        replace(candidate, resolved=pair.new is Verdict.PASSED)
        for candidate, pair in zip(before, pairs, strict=True)
    ]
    note = ""
    available = {rule.name for rule in available_rules(before)}
    for rule in (rule for rule in (HYBRID, EF, EB, ORACLE) if rule.name in available):
        try:
            old, new = (_points(rule, candidates, ks) for candidates in (before, after))
        except MissingScoreError as error:
            note = note or f"{error}."
            continue
        except (ConfigError, DatasetError) as error:
            return "", (), str(error)
        if rule is ORACLE:
            note = note or "No verifier has scored these trajectories."
        return rule.name, tuple(map(SelectionPair, ks, old, new)), note
    return "", (), note


def _points(rule: Rule, candidates: Sequence[Candidate], ks: Sequence[int]) -> Sequence[CurvePoint]:
    (curve,) = curves(candidates, [rule], ks)
    return curve.points


def _candidates(pairs: Sequence[TwoVerdicts], scores: StoredScores) -> list[Candidate]:
    """Return the trajectories with their scores and original verdicts, in order."""
    candidates = []
    for pair in pairs:
        key = pair.iteration, pair.task_key, pair.index
        judged_epoch, p_yes = scores.p_yes.get(key, (None, None))
        tested_epoch, passes = scores.passes.get(key, (None, (None, None)))
        # A score of another attempt's rollout does not apply; scores of earlier versions name no attempt.
        regression, reproduction = passes if tested_epoch in (None, pair.source_epoch) else (None, None)
        candidates.append(
            Candidate(
                task_id=pair.task_key,
                trajectory_id=f"{pair.iteration}/{pair.index}",
                resolved=pair.old is Verdict.PASSED,
                p_yes=p_yes if judged_epoch in (None, pair.source_epoch) else None,
                regression_passes=regression,
                reproduction_passes=reproduction,
            )
        )
    return candidates
