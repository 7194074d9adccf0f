"""Results of tries of a model: calls in each tool format, speed, memory, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.config.recipes import resolve
from engine.errors import ConfigError
from engine.evaluation.calls import CallCounts
from engine.types import RunState
from webapp.endpoints.services import places
from webapp.runs.contexts.phase import phase_of
from webapp.runs.models.runs import Run
from webapp.runs.selectors.tries import RECIPE, newest_tries

FIGURES = ("responses", "call_rate", "valid_rate", "cut_rate", "mean_tokens", "tokens_per_s")
"""Properties of ``engine.evaluation.calls.CallCounts`` that are shown."""
_MEBIBYTE = 1 << 20
_ACTIVE = (RunState.QUEUED, RunState.STARTING, RunState.RUNNING, RunState.STOPPING)
"""States that end without a person; a paused try may wait for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TryView:
    """A try of a model in one tool format."""

    run_id: int
    state: str
    tool_format: str
    figures: Mapping[str, float | None]
    """Values of ``FIGURES``; None until it has ended, and where it ended without a result."""
    peak_memory: float | None
    """Peak memory of the run's process, bytes; None where it is unknown."""
    advice: str
    """Advice from the counts; without counts the reason of the failure, or the phase of the run."""
    is_active: bool

    def record(self) -> dict[str, Any]:
        """Return the try as the API and the command give it."""
        names = ("run_id", "state", "tool_format", "peak_memory", "advice")
        return {**{name: getattr(self, name) for name in names}, **self.figures}


@dataclass(frozen=True, slots=True, kw_only=True)
class TriesView:
    """The newest tries of a checkpoint with a prompt."""

    checkpoint: str
    prompt: str
    rows: tuple[TryView, ...]

    @property
    def is_active(self) -> bool:
        """Return whether a try is waiting or running."""
        return any(row.is_active for row in self.rows)


def find_tries(checkpoint: str, prompt: str) -> TriesView:
    """Return the newest tries of a checkpoint with a prompt.

    Args:
        checkpoint: as in ``policy.checkpoint``.
        prompt: name of the prompt; empty for that of the recipe.

    Raises:
        ConfigError: the checkpoint may not be used, or there is no such prompt.
    """
    chosen = {"policy.checkpoint": checkpoint} | ({"agent.prompt": prompt} if prompt else {})
    config = places.checked(resolve(RECIPE, chosen).model_dump(mode="json")).model_dump(mode="json")
    prompt = config["agent"]["prompt"]
    return TriesView(
        checkpoint=checkpoint,
        prompt=prompt,
        rows=views_of(newest_tries(config["policy"]["checkpoint"], prompt)),
    )


def tries_before_launch(policy_type: str, checkpoint: str, prompt: str) -> TriesView | None:
    """Return the tries of a draft's model; None where its policy is no model that can be tried."""
    if policy_type != "transformer" or not prompt or not checkpoint or checkpoint == "warm":
        return None
    try:
        return find_tries(checkpoint, prompt)
    except ConfigError:  # the form's findings have the reason
        return None


def views_of(runs: Iterable[Run]) -> tuple[TryView, ...]:
    """Return the runs of tries as a page shows them."""
    return tuple(_view(run) for run in runs)


def _view(run: Run) -> TryView:
    counts = CallCounts.of_summary(run.summary)
    memory, tool_format = run.summary.get("peak_memory_mb"), run.config["agent"]["tool_format"]
    if counts is not None:
        text = counts.advice(tool_format, max_response=run.config["agent"]["max_response"])
    else:
        text = run.reason or str(phase_of(run) or "")
    return TryView(
        run_id=run.pk,
        state=run.state,
        tool_format=tool_format,
        figures={name: getattr(counts, name, None) for name in FIGURES},
        peak_memory=memory * _MEBIBYTE if isinstance(memory, int | float) else None,
        advice=text,
        is_active=run.state in _ACTIVE,
    )
