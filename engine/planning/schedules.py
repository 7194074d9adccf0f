"""Parts of an iteration under each schedule, from the times of its rollouts, its update and its publication.

With at most η updates between the start of a group and its own (``engine.orchestrator.training.schedule``),
the groups that update u + η trains on start when update u − 1 is made. They take the time P of a phase, and
their update takes U: an iteration takes at least

    (P + U) / (η + 1)

whatever the throughput is. η = 0 is a synchronous iteration. Above that, it takes as long as the slowest of
rollouts at full concurrency, gradings and updates, which run at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.planning.rollouts import Flow, Limits, Phase
from engine.planning.run_plan import Time

SAMPLING, UPDATE, PUBLICATION = "sampling", "update", "publication"
GRADING, SLOWEST = "grading after the last rollout", "slowest rollouts"
REPLACEMENTS = "groups in place of uniform ones"
_FASTER_UPDATE = "more trainer GPUs (trainer.data_parallel), or fewer and shorter trajectories"
_PUBLICATION = "policy.vllm.transfer='nccl'"
_REPLACEMENTS = (
    "tasks that are solved sometimes (curriculum.mode='solve_rate'), a smaller "
    "algorithm.max_resampling_rounds, or schedule.mode='async': a synchronous iteration replaces in rounds"
)
_GRADING = "a larger grading.max_parallel, a smaller grading.timeout_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """Settings that shorten the parts that depend on the run's limits."""

    room: str
    sampling: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of an iteration besides rollouts, seconds."""

    update_s: float
    publication_s: float
    is_shared: bool
    """Rollouts and updates take turns on the same devices."""


def synchronous(
    phase: Phase, work: Work, remedies: Remedies, *, replacements_s: float = 0.0
) -> tuple[Time, ...]:
    """Return the parts of an iteration that collects, then updates.

    Args:
        phase: rollouts of its first groups.
        work: update and publication.
        remedies: settings that shorten parts.
        replacements_s: time of the rounds that replace uniform groups, one after the other.
    """
    replaced = Time(name=REPLACEMENTS, seconds=replacements_s, remedy=_REPLACEMENTS)
    return (
        Time(name="wait for room", seconds=phase.room_s, remedy=remedies.room),
        *_rollouts(phase.start_s, phase.sampling_s, phase.tools_s, remedies),
        Time(
            name=SLOWEST,
            seconds=phase.slowest_s,
            remedy="a smaller agent.rollout_timeout_s or agent.max_context, or schedule.mode='async': a "
            "synchronous iteration waits for all",
        ),
        Time(name=GRADING, seconds=phase.grading_s, remedy=_GRADING),
        *([replaced] if replacements_s else ()),
        Time(name=UPDATE, seconds=work.update_s, remedy=_FASTER_UPDATE),
        Time(name=PUBLICATION, seconds=work.publication_s, remedy=_PUBLICATION),
    )


def overlapped(
    phase: Phase, flow: Flow, num: int, limits: Limits, work: Work, remedies: Remedies, *, staleness: int
) -> tuple[Time, ...]:
    """Return the parts of an iteration that collects while it updates; overlapping work counts by its excess.

    Args:
        phase: rollouts of one iteration alone.
        flow: rollouts at full concurrency.
        num: rollouts of an iteration, with those of replaced groups.
        limits: of the rollouts.
        work: update and publication.
        remedies: settings that shorten parts.
        staleness: η, at least 1.
    """
    update_s = work.update_s + work.publication_s
    scale = num / limits.concurrent
    rollouts = _rollouts(flow.start_s * scale, flow.sampling_s * scale, flow.tools_s * scale, remedies)
    total = sum(part.seconds for part in rollouts) + work.is_shared * update_s
    waits = []
    for name, seconds, remedy in (
        ("gradings beyond the rollouts", num * flow.grading_s / limits.grading, _GRADING),
        (
            SLOWEST,
            (phase.total_s + update_s) / (staleness + 1),
            "a larger schedule.max_staleness, a smaller agent.rollout_timeout_s",
        ),
        (
            "update beyond the rollouts",
            0.0 if work.is_shared else update_s,
            _FASTER_UPDATE,
        ),
    ):
        waits.append(Time(name=name, seconds=max(0.0, seconds - total), remedy=remedy))
        total = max(total, seconds)
    update_parts = (
        Time(name=UPDATE, seconds=work.update_s, remedy=_FASTER_UPDATE),
        Time(name=PUBLICATION, seconds=work.publication_s, remedy=_PUBLICATION),
    )
    return (*rollouts, *waits, *(update_parts if work.is_shared else ()))


def _rollouts(start_s: float, sampling_s: float, tools_s: float, remedies: Remedies) -> tuple[Time, ...]:
    return (
        Time(name="sandbox start", seconds=start_s, remedy="a larger sandbox.max_starting, warm sandboxes"),
        Time(name=SAMPLING, seconds=sampling_s, remedy=remedies.sampling),
        Time(
            name="tools",
            seconds=tools_s,
            remedy="a smaller agent.command_timeout_s, more cores for sandboxes",
        ),
    )
