"""Console output of notable events, one line each, for runs without a web application.

To show another event: a function in ``_LINES``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TextIO

from engine.events.sink import EventSink
from engine.events.types import (
    Alert,
    EvaluationFinished,
    IterationFinished,
    RunFinished,
    RunPaused,
    RunProgress,
    RunStarted,
)

Fields = Mapping[str, Any]


class ConsoleSink:
    """Event sink that passes events on to ``sink`` and prints the notable ones.

    Args:
        sink: where events are recorded.
        stream: a text stream, e.g. ``sys.stdout``.
    """

    def __init__(self, sink: EventSink, stream: TextIO) -> None:
        self._sink = sink
        self._stream = stream

    def emit(self, event_type: type[Any], /, **fields: Any) -> int:
        """Record the event, then print it if it is notable."""
        seq = self._sink.emit(event_type, **fields)
        if event_type in _LINES:
            print(_LINES[event_type](fields), file=self._stream, flush=True)
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
    return "  ".join(parts)


def _evaluation(fields: Fields) -> str:
    return (
        f"evaluation '{fields['name']}' after {fields['iteration']} iterations: "
        f"{fields['solve_rate']:.3f} [{fields['interval_low']:.3f}, {fields['interval_high']:.3f}] "
        f"({fields['num_solved']}/{fields['num_samples']} on {fields['num_tasks']} tasks)"
        + "".join(f"  pass@{e['k']} {e['rate']:.3f}" for e in fields.get("pass_at_k", [])[1:])
    )


def _finished(fields: Fields) -> str:
    summary = ", ".join(
        f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in fields.get("summary", {}).items()
        if value is not None
    )
    return ": ".join(part for part in (fields["state"], fields.get("reason", ""), summary) if part)


_LINES: dict[type[Any], Callable[[Fields], str]] = {
    RunStarted: lambda f: (
        "started" if f.get("resumed_from") is None else f"resumed after {f['resumed_from']} iterations"
    ),
    RunProgress: lambda f: f"{f['message']}: {f['done']}/{f['total']}",
    RunPaused: lambda _: "paused",
    IterationFinished: _iteration,
    EvaluationFinished: _evaluation,
    Alert: lambda f: f"{f['severity']}: {f['message']}",
    RunFinished: _finished,
}
