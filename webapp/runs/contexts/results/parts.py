"""Parts of a run's results on its page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.evaluation.endings import Endings
from webapp.core.contexts.curation_funnel import FunnelTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number of the header; None where it is not known."""

    label: str
    value: float | None
    form: Literal["number", "percent", "loss", "seconds", "bytes"] = "number"
    of: float | None = None
    """Number that ``value`` is a part of."""
    sub: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A share of the bar, and its line in the legend."""

    label: str
    css: str
    amount: int
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A reason why something was left out, and how often."""

    label: str
    amount: int
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that failed and why; address and reason are for those who may read the run's rollouts."""

    name: str
    url: str
    status: str
    css: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResults:
    """Results of a run beside its evaluations and charts; empty parts are not shown."""

    title: str
    about: str = ""
    figures: tuple[Figure, ...] = ()
    """Numbers for the header."""
    parts: tuple[Part, ...] = ()
    reasons: tuple[Reason, ...] = ()
    endings: Endings | None = None
    """Endings behind a solve rate among the figures."""
    faults: tuple[Fault, ...] = ()
    num_faults: int = 0
    funnel: FunnelTable | None = None
    """Funnel of a curation or hardening."""
    links: tuple[tuple[str, str], ...] = ()
    """Label and address of each output."""

    @property
    def bar(self) -> tuple[tuple[str, str, float], ...]:
        """Return (label, css class, amount) of the bar."""
        return tuple((part.label, part.css, float(part.amount)) for part in self.parts)

    @property
    def is_shown(self) -> bool:
        """Return whether there is anything below the header to show."""
        return bool(sum(part.amount for part in self.parts) or self.reasons or self.faults or self.links)


def count_of(summary: dict[str, object], name: str) -> int | None:
    """Return a whole number of a summary; None where it has none."""
    value = summary.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number_of(summary: dict[str, object], name: str) -> float | None:
    """Return a number of a summary; None where it has none."""
    value = summary.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def prefixed(summary: dict[str, object], prefix: str) -> tuple[tuple[str, int], ...]:
    """Return the whole numbers whose names begin with a prefix, by the rest of the name, largest first."""
    counts = [
        (name.removeprefix(prefix), value)
        for name, value in summary.items()
        if name.startswith(prefix) and isinstance(value, int) and value
    ]
    return tuple(sorted(counts, key=lambda pair: (-pair[1], pair[0])))
