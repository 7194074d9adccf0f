"""Properties of each kind of run, for pages and services: one record per kind.

To add a kind: a configuration in ``engine.config.run``, the function that performs it in
``engine.orchestrator`` and a record here; ``contexts.results`` shows its results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from engine.types import RunKind

TABS = (
    "groups", "trajectories", "behaviours", "steps", "tasks", "timeline", "evaluation", "engines",
    "sandboxes", "system", "checkpoints", "events", "log", "files", "configuration",
)  # fmt: skip
_CHARTS = ("reward", "solve", "steps", "response", "thinking", "termination")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of run."""

    tabs: tuple[str, ...]
    """Tabs of its page; ``engines`` is shown only where inference servers sample."""
    kept: str
    """Sentence about the results kept of a run that ended early; empty where its checkpoints decide."""
    charts: tuple[str, ...] = _CHARTS
    """Charts that its page shows before the first point."""
    unit: str = "iterations"
    """Word for its iterations."""
    trains_by_iteration: bool = False
    """Whether its rollouts of an iteration are trained on after it."""
    collects: bool = False
    """Whether it samples one policy once, and counts rollouts instead of iterations."""
    makes_dataset: str = ""
    """Section of its configuration with the name of its output dataset; empty for other kinds."""

    @property
    def keeps_progress(self) -> bool:
        """Return whether a new attempt continues with the work of the one before, and so with its numbers."""
        return bool(self.makes_dataset)

    @property
    def has_checkpoints(self) -> bool:
        """Return whether it continues from checkpoints."""
        return not self.kept


def _tabs(*without: str) -> tuple[str, ...]:
    return tuple(name for name in TABS if name not in without)


_SCORES = ("scores", "system", "events", "log", "files", "configuration")
_ROWS = ("events", "sandboxes", "system", "log", "files", "configuration")
KINDS: Mapping[RunKind, Kind] = MappingProxyType(
    {
        RunKind.TRAIN: Kind(tabs=TABS, kept="", trains_by_iteration=True),
        RunKind.IMPROVE: Kind(
            tabs=_tabs("timeline"), kept="", charts=("reward", "solve", "steps", "kept", "loss", "time")
        ),
        RunKind.SFT: Kind(
            tabs=("system", "checkpoints", "events", "log", "files", "configuration"),
            kept="",
            charts=("loss", "rate", "grad"),
            unit="optimizer steps",
        ),
        RunKind.ROLLOUT: Kind(
            tabs=_tabs("timeline", "evaluation", "checkpoints"),
            kept="Finished rollouts are kept.",
            collects=True,
        ),
        RunKind.EVALUATE: Kind(
            tabs=_tabs("timeline", "tasks", "checkpoints"), kept="Finished rollouts are kept.", collects=True
        ),
        RunKind.VERIFIER: Kind(tabs=_SCORES, kept="Scores are kept."),
        RunKind.REGRADE: Kind(
            tabs=("verdicts", "sandboxes", "system", "events", "log", "files", "configuration"),
            kept="New verdicts are kept.",
        ),
        RunKind.CURATE: Kind(
            tabs=_ROWS,
            kept="No dataset was made; what was measured is kept for the next curation of these sources.",
            makes_dataset="curation",
        ),
        RunKind.IMPORT: Kind(
            tabs=_ROWS,
            kept="No dataset was made; the same import continues at the row where this one ended.",
            makes_dataset="importing",
        ),
        RunKind.VALIDATE: Kind(tabs=_ROWS, kept="Findings about the rows that were graded are kept."),
    }
)


def kind_of(kind: str) -> Kind:
    """Return the record of a kind by its stored name."""
    return KINDS[RunKind(kind)]
