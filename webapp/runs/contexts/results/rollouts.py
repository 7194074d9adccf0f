"""Results of runs whose rollouts are scripted, were imported, scored or graded again."""

from __future__ import annotations

from django.urls import reverse

from engine.evaluation.flips import FLIPS
from engine.types import INFRASTRUCTURE_REASONS, Verdict
from webapp.core.contexts.frame import group_url
from webapp.core.contexts.words import in_words
from webapp.datasets.selectors.difficulty import SolveRate
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors import regrades as regrade_reads
from webapp.runs.contexts.results.parts import Fault, Figure, Part, RunResults, count_of, number_of
from webapp.runs.models.runs import Run
from webapp.runs.selectors import results as reads

MOST_FAULTS = 20
_CSS = {Verdict.PASSED: "passed", Verdict.INFRA_ERROR: "infra", Verdict.TAMPERED: "tampered", "": "open"}


def row_check(run: Run) -> RunResults:
    """Return the rows that hold: those the oracle solves, or those that fail without a change."""
    passes = run.must_pass
    rows = reads.checked_rows(run, passes=passes)
    checked = rows.hold + rows.broken
    faults = (
        reads.broken_rollouts(run, passes=passes, limit=MOST_FAULTS) if rows.broken + rows.unknown else []
    )
    wanted = "its gold patch passes the tests" if passes else "its tests fail without a change"
    return RunResults(
        title="Row validation",
        about=f"a row is valid if {wanted}",
        figures=(
            Figure(label="Valid rows", value=rows.hold if checked else None, of=checked or None,
                   sub=f"{rows.unknown} could not be checked" if rows.unknown else ""),
        ),
        faults=tuple(_fault(run, rollout) for rollout in faults),
        num_faults=rows.broken + rows.unknown,
    )  # fmt: skip


def _fault(run: Run, rollout: Trajectory) -> Fault:
    group, verdict = rollout.group, rollout.verdict
    lost = not verdict or rollout.termination in INFRASTRUCTURE_REASONS
    return Fault(
        name=group.task.instance_id if group.task is not None else group.task_key,
        url=group_url(run.pk, group.phase, group.iteration, group.task_key),
        status=in_words(verdict or rollout.termination),
        css="infra" if lost else "failed",
        reason=(rollout.error or rollout.detail)[:500],
    )


def imported(run: Run) -> RunResults:
    """Return imported trajectories by verdict, with the share that passed."""
    counts = dict(reads.verdict_counts(run))
    graded = sum(number for verdict, number in counts.items() if verdict not in ("", Verdict.INFRA_ERROR))
    rate = SolveRate(counts.get(Verdict.PASSED.value, 0), graded)
    low, high = rate.interval
    return RunResults(
        title="Imported trajectories",
        about="verdicts and rewards are those of the file",
        figures=(
            Figure(label="Trajectories", value=sum(counts.values())),
            Figure(label="Solved", value=rate.rate, form="percent",
                   sub=f"95 %: {100 * low:.1f} – {100 * high:.1f} % of {graded} graded" if graded else ""),
        ),
        parts=tuple(
            Part(label=in_words(verdict) if verdict else "not graded", css=_CSS.get(verdict, "failed"),
                 amount=number)
            for verdict, number in sorted(counts.items(), key=lambda pair: (pair[0] == "", -pair[1]))
        ),
        endings=reads.endings(run=run),
        links=(
            ("search, filter and compare its trajectories", f"{reverse('trajectory-search')}?run={run.pk}"),
        ),
    )  # fmt: skip


def verification(run: Run) -> RunResults:
    """Return the number of scored trajectories; the tab of scores lists them."""
    summary = run.summary
    total, scored = (count_of(summary, name) for name in ("trajectories", "scored"))
    kept, toxic = (count_of(summary, name) for name in ("tests_kept", "tests_toxic"))
    shared = (
        Figure(label="Scored", value=scored, of=total),
        Figure(label="Without a score", value=count_of(summary, "without_score")),
        Figure(label="Resolved by grading", value=count_of(summary, "resolved"), of=total),
    )
    if run.config.get("method") != "tests":
        auc = number_of(summary, "within_task_auc")
        return RunResults(
            title="Scores",
            figures=(*shared, Figure(label="AUC within tasks", value=auc, form="loss", sub="0.5 is chance")),
        )
    return RunResults(
        title="Scores",
        figures=(
            *shared,
            Figure(label="Written tests kept", value=kept, of=count_of(summary, "tests"),
                   sub=f"{toxic} toxic" if toxic else ""),
        ),
    )  # fmt: skip


def regrading(run: Run) -> RunResults:
    """Return the numbers of new verdicts and of flips; the tab of verdicts lists them."""
    totals = regrade_reads.totals(run.pk)
    flips = [(in_words(kind), totals.flips[kind]) for kind in FLIPS if totals.flips.get(kind)]
    return RunResults(
        title="Verdicts",
        figures=(
            Figure(label="Graded again", value=totals.num_regraded, of=totals.num_trajectories),
            Figure(label="Flips", value=sum(totals.flips.values()),
                   sub=", ".join(f"{count} {kind}" for kind, count in flips)),
            Figure(label="Infrastructure failed", value=totals.num_lost),
            Figure(label="Not graded again", value=sum(totals.obstacles.values())),
        ),
    )  # fmt: skip
