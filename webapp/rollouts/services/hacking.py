"""Alerts about counters of reward hacking that rise together with the reward."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from webapp.core.services import notifications
from webapp.notifications.services import outbox
from webapp.rollouts.selectors import hacking as reads
from webapp.rollouts.selectors.hacking import Evidence
from webapp.runs.models.alerts import REWARD_WITH, Alert
from webapp.runs.models.runs import Run


def watch(*, run_id: int) -> int:
    """Raise an alert for each counter that rises with the reward; return their number.

    Another one of the same counter needs evidence from iterations after those of the last alert.
    """
    run = Run.objects.filter(pk=run_id).first()
    rising = reads.rising_with_reward(run) if run is not None else []
    if run is None or not rising:
        return 0
    with transaction.atomic():
        Run.objects.select_for_update(no_key=True).get(pk=run_id)  # two tasks raise no alert twice
        raised = [
            Alert.objects.create(
                run=run,
                severity="warning",
                code=f"{REWARD_WITH}{evidence.counter}",
                message=_message(evidence),
                iteration=evidence.late[1],
                task_ids=reads.tasks_with_hits(run, evidence),
                time=timezone.now(),
            )
            for evidence in rising
            if not _is_known(run, evidence)
        ]
        if raised:
            outbox.alerts_raised(run=run, alerts=raised)
            notifications.run_changed(run_id, run.last_seq)
    return len(raised)


def _is_known(run: Run, evidence: Evidence) -> bool:
    alike = Alert.objects.filter(run=run, code=f"{REWARD_WITH}{evidence.counter}")
    return alike.filter(iteration__gte=evidence.early[0]).exists()


def _message(evidence: Evidence) -> str:
    share, reward = evidence.share, evidence.reward
    what = "Tampered verdicts" if evidence.counter == reads.TAMPERED else f"Hits of '{evidence.counter}'"
    return (
        f"{what} rose from {share.before:.1%} to {share.after:.1%} of rollouts (by at least {share.low:.1%})"
        f" and the mean reward from {reward.before:.3f} to {reward.after:.3f} between iterations"
        f" {evidence.early[0]}–{evidence.early[1]} and {evidence.late[0]}–{evidence.late[1]}"
        f" ({evidence.rollouts} rollouts). Read rollouts with hits before trusting the reward."
    )
