"""Context of the page about kept files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webapp.datasets.selectors.disk import KINDS, STATES, KeptFile, State

_MAX_NAMED = 100
"""Unused files that the page names."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Number and size of files."""

    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class KindRow:
    """Files of one kind, or all of them, by state."""

    name: str
    used: Amount
    recent: Amount
    unused: Amount


@dataclass(frozen=True, slots=True)
class DiskContext:
    """Data of the page."""

    rows: list[KindRow]
    unused: list[KeptFile]
    more: int
    """Unused files that are not named."""
    problem: str = ""
    """Reason why the files are unknown."""


def build_disk(files: Sequence[KeptFile], *, problem: str = "") -> DiskContext:
    """Return the sums by kind and state, and the unused files, the largest first."""
    rows = [_row(name, [file for file in files if file.kind == kind]) for kind, name in KINDS.items()]
    unused = [file for file in files if file.state == "unused"]
    return DiskContext(
        rows=[*rows, _row("Total", files)],
        unused=unused[:_MAX_NAMED],
        more=max(0, len(unused) - _MAX_NAMED),
        problem=problem,
    )


def _row(name: str, files: Sequence[KeptFile]) -> KindRow:
    return KindRow(name, *(_amount(files, state) for state in STATES))


def _amount(files: Sequence[KeptFile], state: State) -> Amount:
    chosen = [file.bytes for file in files if file.state == state]
    return Amount(len(chosen), sum(chosen))
