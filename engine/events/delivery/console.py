"""Console output of notable events, one line each, for runs without a web application.

To show another event: a function in ``_LINES``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TextIO

from engine.events.delivery.sink import EventSink
from engine.events.types import (
    Alert,
    EvaluationFinished,
    IterationFinished,
    RunFinished,
    RunPaused,
    RunProgress,
    RunStarted,
)
from engine.terminal import visible_line
from engine.types import TerminationReason

Fields = Mapping[str, Any]


class ConsoleSink:
    """Event sink that passes events on to ``sink`` and prints the notable ones.

    Args:
        sink: records the events.
        stream: a text stream, e.g. ``sys.stdout``.
    """

    def __init__(self, sink: EventSink, stream: TextIO) -> None:
        self._sink = sink
        self._stream = stream

    def emit(self, event_type: type[Any], /, **fields: Any) -> int:
        """Record the event, then print it if it is notable."""
        seq = self._sink.emit(event_type, **fields)
        if event_type in _LINES and (line := _LINES[event_type](fields)):
            print(visible_line(line), file=self._stream, flush=True)
        return seq


def _iteration(fields: Fields) -> str:
    metrics = fields["metrics"]
    parts = [f"iteration {fields['iteration'] + 1:>4}"]
    for label, name, form in (
        ("reward", "reward/mean", ".3f"),
        ("solved", "solve/rate", ".3f"),
        ("uniform", "groups/uniform", ".2f"),
        ("entropy", "entropy/mean", ".3f"),
        ("steps", "steps/mean", ".1f"),
        ("infra", "infra/rate", ".3f"),
        ("rollout s", "time/rollout", ".2f"),
        ("update s", "time/update", ".2f"),
        ("tokens/s", "update/tokens_per_s", ",.0f"),
        ("MFU", "update/mfu", ".1%"),
    ):
        if name in metrics:
            parts.append(f"{label} {metrics[name]:{form}}")
    return "  ".join([*parts, *_limits(metrics)])


def _limits(metrics: Mapping[str, float]) -> list[str]:
    """Return the shares of rollouts that did not end by a submission, by ending."""
    shares = [
        f"{reason.words} {share:.0%}"
        for reason in TerminationReason
        if reason is not TerminationReason.SUBMITTED and (share := metrics.get(f"termination/{reason}"))
    ]
    return [f"ended by {', '.join(shares)}"] if shares else []


def _evaluation(fields: Fields) -> str:
    return (
        f"evaluation '{fields['name']}' after {fields['iteration']} iterations: "
        f"{fields['solve_rate']:.3f} [{fields['interval_low']:.3f}, {fields['interval_high']:.3f}] "
        f"({fields['num_solved']}/{fields['num_samples']} on {fields['num_tasks']} tasks)"
        + "".join(f"  pass@{e['k']} {e['rate']:.3f}" for e in fields.get("pass_at_k", [])[1:])
        + "".join(f"  {text}" for text in _limits(fields.get("metrics", {})))
    )


def _finished(fields: Fields) -> str:
    summary = ", ".join(
        f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in fields.get("summary", {}).items()
        if value is not None
    )
    return ": ".join(part for part in (fields["state"], fields.get("reason", ""), summary) if part)


def _started(fields: Fields) -> str:
    if fields.get("rollouts_kept"):
        return f"resumed after {fields['rollouts_kept']} finished rollouts"
    if fields.get("resumed_from") is not None:
        return f"resumed after {fields['resumed_from']} iterations"
    return "started"


def _progress(fields: Fields) -> str:
    """Return the phase, its progress, the next phases and the time left; '' without a phase."""
    if not fields["message"]:
        return ""
    parts = [fields["message"]]
    if fields["total"]:
        parts[0] += f": {fields['done']}/{fields['total']}"
    state = fields.get("collection")
    if state is not None:
        parts += [f"solved {state.solved}/{state.graded}"] if state.graded else []
        parts += [f"{label} {number:,}" for label, number in state.live]
        parts += [
            f"{TerminationReason(reason).words} {count}"
            for reason, count in state.endings.items()
            if reason != TerminationReason.SUBMITTED
        ]
        parts += [f"lost {state.lost}"] if state.lost else []
        if state.per_hour:
            parts.append(f"per hour {state.per_hour:,.0f}")
        if state.cost is not None:
            parts.append(f"US dollars {state.cost:.2f}")
    if (funnel := fields.get("funnel")) is not None:
        parts.append(f"tasks {funnel.tasks}")
    if fields.get("follows"):
        parts.append(f"then {fields['follows']}")
    if left := fields.get("seconds_left"):
        parts.append(f"left {timedelta(seconds=round(left))}")
    return "  ".join(parts)


_LINES: dict[type[Any], Callable[[Fields], str]] = {
    RunStarted: _started,
    RunProgress: _progress,
    RunPaused: lambda _: "paused",
    IterationFinished: _iteration,
    EvaluationFinished: _evaluation,
    Alert: lambda f: f"{f['severity']}: {f['message']}",
    RunFinished: _finished,
}
