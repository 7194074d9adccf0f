"""Current phase of a live run: its name, its progress, the phases that follow and the time left.

Pages, API and commands show the same line.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.events.types import CollectionProgress
from engine.types import RunState
from webapp.core.contexts.words import count, duration
from webapp.runs.kinds import kind_of
from webapp.runs.models.runs import Run

_LIVE = (RunState.RUNNING, RunState.STOPPING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A phase as the engine last reported it."""

    now: str
    done: int
    total: int
    """0 where its amount of work is not known."""
    follows: str
    """Later phases; empty for the last one."""
    seconds_left: float | None
    """Estimated time until the end of the run; None while it is unknown."""
    live: tuple[tuple[str, float], ...] = ()
    """Label and number of its rollouts by what they do, of steps, and tokens per second."""

    def __str__(self) -> str:
        parts = [f"{self.now} {count(self.done)} of {count(self.total)}" if self.total else self.now]
        if self.live:
            parts.append(", ".join(f"{count(number)} {label}" for label, number in self.live))
        if self.follows:
            parts.append(f"then {self.follows}")
        if self.seconds_left is not None:
            parts.append(f"about {duration(self.seconds_left)} left")
        return " · ".join(parts)


def phase_of(run: Run) -> Phase | None:
    """Return the phase of a run; None unless it is running or stopping and has reported one."""
    if run.state not in _LIVE:
        return None
    if not run.progress_message:
        return _iterations(run)
    return Phase(
        now=run.progress_message,
        done=run.progress_done,
        total=run.progress_total,
        follows=run.progress_follows,
        seconds_left=run.progress_seconds_left or None,
        live=CollectionProgress.model_validate(run.collection).live if run.collection else (),
    )


def _iterations(run: Run) -> Phase | None:
    """Return progress in iterations for a run that reports no phase; None before the first."""
    if run.current_iteration is None or not run.total_iterations:
        return None
    return Phase(
        now=kind_of(run.kind).unit,
        done=run.current_iteration,
        total=run.total_iterations,
        follows="",
        seconds_left=None,
    )
