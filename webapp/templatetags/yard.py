"""Formatting of values on pages: numbers with units, states as chips, small drawings as SVG.

An unknown value is "–", never 0. Drawings use SVG attributes because the content security policy forbids
inline styles. To add a filter, add a typed function that returns plain text, or ``format_html``, which
escapes its arguments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from engine.evaluation.endings import Endings
from webapp.core.contexts.metrics import DOLLARS, FLOPS, SECONDS, SHARE, YES_OR_NO
from webapp.core.contexts.printed import printed as render_printed
from webapp.core.contexts.row_status import LOOKS
from webapp.core.contexts.words import (
    COUNTERFACTUALS,
    FAILURES,
    KINDS,
    OBSTACLES,
    SELECTION_RULES,
    count,
    duration,
    in_words,
    show,
)

register = template.Library()

UNKNOWN = "–"
MARKS = {
    "passed": "✓", "succeeded": "✓", "failed": "✕", "error": "✕", "test_timeout": "◷", "patch_failed": "⊘",
    "infra_error": "!", "tampered": "▲", "paused": "‖", "stopped": "■", "stopping": "■", "queued": "…",
    "draft": "○", "starting": "…", "warning": "!", "info": "i", "skipped": "–", "missing": "?",
    "xfail": "–", "xpass": "✓",
}  # fmt: skip
INFRASTRUCTURE = frozenset({"env_error", "model_error", "cancelled"})
ACTION_LETTERS = {"command": "C", "search": "S", "view": "V", "edit": "E", "finish": "F", "other": "O"}


@register.filter
def number(value: float | None, digits: int = 3) -> str:
    """Return a number with ``digits`` significant digits (whole numbers in full)."""
    if value is None or value != value:
        return UNKNOWN
    if float(value).is_integer() and abs(value) < 1e15:
        return count(int(value))
    return f"{value:.{digits}g}" if abs(value) < 10**digits else count(value)


@register.filter
def usd(value: float | None) -> str:
    """Return an amount in US dollars with cents; below one dollar with two significant digits."""
    if value is None or value != value:
        return UNKNOWN
    if not value or abs(value) >= 0.995:
        return f"${value:,.2f}".replace(",", "\u202f")
    digits = max(2, 1 - math.floor(math.log10(abs(value))))
    return f"${value:.{digits}f}" if digits <= 6 else "<$0.000001"


@register.filter
def signed(value: float | None, digits: int = 3) -> str:
    """Return a number with its sign, e.g. ``+0.714``, and a typographic minus sign."""
    if value is None:
        return UNKNOWN
    text = f"{value:+.{digits}f}" if value else "0"
    return text.replace("-", "−")


@register.filter
def fixed(value: float | None, digits: int = 2) -> str:
    """Return a number with a fixed number of decimals."""
    return UNKNOWN if value is None else f"{value:.{digits}f}".replace("-", "−")


@register.filter
def percent(value: float | None, digits: int = 1) -> str:
    """Return a share as per cent."""
    return UNKNOWN if value is None else f"{100 * value:.{digits}f}\u202f%"


@register.filter
def points(value: float | None) -> str:
    """Return a difference of two shares in percentage points, signed."""
    return UNKNOWN if value is None else f"{100 * value:+.1f}\u202fpp".replace("-", "−")


@register.simple_tag
def outcome(value: float | None, is_rate: bool) -> str:
    """Return a result of a run: a share in percent, or a number."""
    return percent(value) if is_rate else fixed(value, 3)


@register.simple_tag
def outcome_change(value: float | None, is_rate: bool) -> str:
    """Return a change of a result: percentage points, or a number, signed."""
    return points(value) if is_rate else signed(value)


@register.simple_tag
def outcome_size(value: float, is_rate: bool) -> str:
    """Return the size of a change without its sign."""
    return points(value).lstrip("+") if is_rate else fixed(value, 3)


@register.simple_tag
def outcome_interval(low: float | None, high: float | None, is_rate: bool) -> str:
    """Return an interval of a change: ``−10.1 … +3.9 pp``."""
    if low is None or high is None:
        return UNKNOWN
    return (
        f"{outcome_change(low, is_rate).removesuffix(chr(0x202F) + 'pp')} … {outcome_change(high, is_rate)}"
    )


@register.filter
def seconds(value: float | None) -> str:
    """Return a duration: ``0.42 s``, ``38 s``, ``4 min 05 s``, ``3 h 12 min``."""
    return UNKNOWN if value is None else duration(value)


@register.filter
def in_unit(value: float | None, unit: str) -> str:
    """Return a metric's value with its unit: ``12.5 %``, ``3.46 GFLOP/s``, ``4 min 05 s``, ``0.62 nats``."""
    if value is None or value != value:
        return UNKNOWN
    if unit.startswith(SHARE):
        return percent(value) + unit.removeprefix(SHARE)
    if unit == SECONDS:
        return duration(value)
    if unit == DOLLARS:
        return usd(value)
    if unit == FLOPS:
        return _scaled(value, unit)
    if unit == YES_OR_NO:
        return "yes" if value else "no"
    return f"{number(value, 4)} {unit}".rstrip()


def _scaled(value: float, unit: str) -> str:
    """Return a value with three significant digits and the unit's decimal prefix."""
    prefixes = ("", "k", "M", "G", "T", "P", "E")
    step = min(len(prefixes) - 1, max(0, int(math.log10(max(abs(value), 1)) // 3)))
    return f"{value / 1000**step:.3g}\u202f{prefixes[step]}{unit}"


@register.filter
def brief(value: float | None) -> str:
    """Return a duration below one second as ``3.2 ms`` or ``140 ms``, a longer one like ``seconds``."""
    if value is None or value >= 1:
        return seconds(value)
    return f"{1000 * value:.{1 if value < 0.01 else 0}f}\u202fms"


@register.filter
def clock(value: datetime | None) -> str:
    """Return a time as ``2026-11-21 10:03:07``, UTC."""
    return UNKNOWN if value is None else value.strftime("%Y-%m-%d %H:%M:%S")


@register.filter
def epoch(value: datetime | None) -> str:
    """Return a time as Unix seconds, for ``data-since``, from which the page counts on."""
    return "" if value is None else f"{value.timestamp():.0f}"


@register.filter
def dash(value: object) -> object:
    """Return the value, or "–" for None and empty text."""
    return UNKNOWN if value is None or value == "" else value


@register.filter
def setting(value: object) -> str:
    """Return a setting's value as on the configuration's page, "–" for none."""
    return show(value)


@register.filter
def words(value: str) -> str:
    """Return a value of an enumeration, or a code, in words: ``max_context`` → ``context limit``."""
    return in_words(str(value))


@register.filter
def kind_words(value: str) -> str:
    """Return a kind of run in words."""
    return in_words(str(value), KINDS)


@register.filter
def counterfactual_words(value: str) -> str:
    """Return the result of an audit in words."""
    return in_words(str(value), COUNTERFACTUALS)


@register.filter
def obstacle_words(value: str) -> str:
    """Return a reason why a trajectory cannot be graded again in words."""
    return in_words(str(value), OBSTACLES)


@register.filter
def rule_words(value: str) -> str:
    """Return the display text of a selection rule."""
    return in_words(str(value), SELECTION_RULES)


@register.filter
def failure_words(value: str) -> str:
    """Return a kind of sandbox failure in words."""
    return in_words(str(value), FAILURES)


@register.filter
def prose(value: str) -> SafeString:
    """Return a docstring as HTML, with its ``literal`` parts as code."""
    parts = str(value).split("``")
    return format_html_join(
        "", "{}", ((format_html("<code>{}</code>", part) if i % 2 else part,) for i, part in enumerate(parts))
    )


@register.filter
def printed(value: str) -> SafeString:
    """Return text of a model or sandbox with its colours and with hidden characters marked."""
    return render_printed(value)


@register.filter
def visible_token(value: str) -> SafeString:
    """Return the text of a token: as ``printed``, with line ends and tabs marked."""
    marked = value.replace("\n", "↵\n").replace("\t", "⇥\t")
    return render_printed(marked or "∅")


@register.filter
def known(value: float | None) -> float | None:
    """Return the value, or None for 0, where 0 means that no value was reported."""
    return value or None


@register.filter
def action_letter(value: str) -> str:
    """Return the one-letter second cue of an action's colour."""
    return ACTION_LETTERS.get(value, "!")


@register.filter
def failure(step: Any) -> str:
    """Return how a step failed, ``error`` or ``exit 2``; empty if it did not."""
    if step.error:
        return "error"
    return f"exit {step.exit_code}" if step.exit_code else ""


@register.simple_tag
def action_mark(step: Any) -> SafeString:
    """Return the letter of a step's action, and a cross beside it if the step failed."""
    failed = failure(step)
    cross = format_html('<span class="fail" role="img" aria-label="{}">✕</span>', failed) if failed else None
    return format_html(
        '<span class="act {}">{}</span>{}',
        step.action,
        action_letter(step.action),
        cross or SafeString('<span class="fail"></span>'),
    )


@register.simple_tag
def chip(value: str, label: str = "") -> SafeString:
    """Return a state, verdict, severity or test outcome as a coloured chip with a mark."""
    if not value:
        return SafeString('<span class="muted">–</span>')
    if value in ("running", "starting"):
        mark = SafeString('<span class="pulse"></span>')
    else:
        mark = format_html('<span class="mark" aria-hidden="true">{}</span>', MARKS.get(value, "·"))
    return format_html('<span class="chip {}">{}{}</span>', value, mark, label or words(value))


@register.simple_tag
def health_chip(status: str) -> SafeString:
    """Return a task's validation status as a chip; "–" for a task that was never validated."""
    if not status:
        return SafeString('<span class="muted">–</span>')
    css, mark, label = LOOKS[status]
    return format_html(
        '<span class="chip {}"><span class="mark" aria-hidden="true">{}</span>{}</span>', css, mark, label
    )


@register.filter
def passed_of(verdicts: Sequence[str]) -> str:
    """Return the number of passed gradings, ``2 / 3``; "–" without a grading."""
    return f"{list(verdicts).count('passed')} / {len(verdicts)}" if verdicts else UNKNOWN


@register.simple_tag
def termination_chip(value: str) -> SafeString:
    """Return a termination reason as a chip; infrastructure failures are violet, limits plain."""
    if not value:
        return SafeString('<span class="muted">–</span>')
    kind = "infra" if value in INFRASTRUCTURE else ""
    mark = format_html('<span class="mark" aria-hidden="true">{}</span>', "!") if kind else ""
    return format_html('<span class="chip {}">{}{}</span>', kind, mark, words(value))


@register.simple_tag
def show_endings(found: Endings | None, goal: str = "") -> SafeString:
    """Return numbers of attempts by ending, after a warning if a time limit ended some; "" without attempts.

    Args:
        found: the endings.
        goal: name of the adjacent rate, if the page shows several.
    """
    if found is None or not found.graded + found.excluded:
        return SafeString("")
    counts = [("submitted", found.submitted), *((words(reason), n) for reason, n in found.limits.items())]
    counts += [("excluded", found.excluded)]
    parts = [f"{name}\u202f{number(count)}" for name, count in counts if count]
    title = f"{goal}: how rollouts ended" if goal else "how rollouts ended"
    text = format_html('<span class="endings" title="{}">{}</span>', title, " · ".join(parts))
    return format_html("{} {}", timed_chip(found.timed, found.graded), text) if found.timed else text


@register.simple_tag
def timed_chip(count: int, total: int) -> SafeString:
    """Return a warning for a rate over attempts of which a time limit ended ``count``; empty for 0."""
    if not count:
        return SafeString("")
    return format_html(
        '<span class="chip warning" title="{} of {} were ended by a time limit: with more time or a free '
        'machine some may be solved"><span class="mark" aria-hidden="true">◷</span>time limit {}</span>',
        number(count),
        number(total),
        percent(count / total, 0),
    )


@register.simple_tag
def mask_chip(loss_mask: bool | None, reason: str, advantage: float | None) -> SafeString:
    """Return a chip that shows whether a trajectory had a gradient, with the reason if it had none."""
    if loss_mask is None:
        return SafeString('<span class="muted">–</span>')
    if loss_mask and advantage:
        return SafeString('<span class="chip">trained</span>')
    if loss_mask:
        return SafeString(
            '<span class="chip" title="part of the loss, but without a policy gradient">zero advantage</span>'
        )
    return format_html(
        '<span class="chip masked"><span>masked: {}</span></span>', words(reason or "no reason given")
    )


@register.simple_tag
def sparkline(values: Sequence[float | None], label: str = "") -> SafeString:
    """Return the last values of a series as a 120 × 28 line; "–" for fewer than two values."""
    known = [(i, v) for i, v in enumerate(values) if v is not None]
    if len(known) < 2:
        return SafeString('<span class="muted">–</span>')
    low, high = min(v for _, v in known), max(v for _, v in known)
    span = (high - low) or 1.0
    last = known[-1][0] or 1
    path = " ".join(f"{120 * i / last:.1f},{26 - 24 * (v - low) / span:.1f}" for i, v in known)
    return format_html(
        '<svg class="spark" viewBox="0 0 120 28" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<polyline points="{}"></polyline></svg>',
        f"{label} from {number(known[0][1])} to {number(known[-1][1])}".strip(),
        path,
    )


@register.simple_tag
def progress(done: float | None, total: float | None) -> SafeString:
    """Return a thin progress bar, ``done`` of ``total``; empty while the total is unknown."""
    share = min(1.0, (done or 0) / total) if total else 0.0
    return format_html(
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<rect width="{}" height="6"></rect></svg>',
        f"{number(done)} of {number(total)}" if total else "progress unknown",
        f"{100 * share:.2f}",
    )


@register.simple_tag
def stacked_bar(parts: Sequence[tuple[str, str, float]], height: int = 14) -> SafeString:
    """Return shares as one horizontal bar; ``parts`` are (label, css class, amount)."""
    total = sum(amount for _, _, amount in parts) or 1.0
    x = 0.0
    rects = []
    for label, css, amount in parts:
        width = 100 * amount / total
        rects.append((css, f"{x:.3f}", f"{width:.3f}", height, f"{label}: {number(amount)}"))
        x += width
    body = format_html_join(
        "", '<rect class="{}" x="{}" y="0" width="{}" height="{}"><title>{}</title></rect>', rects
    )
    return format_html(
        '<svg class="stacked" viewBox="0 0 100 {}" preserveAspectRatio="none" aria-hidden="true">{}</svg>',
        height,
        body,
    )


@register.simple_tag
def histogram(bars: Sequence[Any], label: str) -> SafeString:
    """Return buckets as bars; each has ``label``, ``count`` and ``height`` (per cent of the tallest)."""
    if not bars:
        return SafeString('<div class="empty-histogram">nothing measured yet</div>')
    rects = [
        (
            f"{10 * i + 1}",
            f"{68 - 0.66 * bar.height:.1f}",
            f"{0.66 * bar.height:.1f}",
            bar.label,
            number(bar.count),
        )
        for i, bar in enumerate(bars)
        if bar.count
    ]
    body = format_html_join(
        "", '<rect x="{}" y="{}" width="8" height="{}"><title>{}: {}</title></rect>', rects
    )
    description = ", ".join(f"{name} {count}" for *_, name, count in rects)
    return format_html(
        '<svg class="histogram" viewBox="0 0 {} 70" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<rect class="base" x="0" y="68.5" width="{}" height="1"></rect>{}</svg>',
        10 * len(bars),
        f"{label}: {description}",
        10 * len(bars),
        body,
    )


@register.simple_tag(takes_context=True)
def query(context: template.Context, **changes: object) -> str:
    """Return the page's query string (variable ``params``) with parameters set or removed."""
    params = {key: value for key, value in context["params"].items() if value}
    for key, value in changes.items():
        params.pop(key, None)
        if value not in (None, ""):
            params[key] = str(value)
    return f"?{urlencode(params)}"
