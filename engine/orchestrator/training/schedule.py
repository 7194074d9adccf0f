"""Admission of groups and choice of batches, as pure functions: the whole policy of a schedule.

Every update takes B groups. With N groups admitted, u updates made and at most η updates between the
admission of a group and its own, groups are admitted while

    N < (u + η + 1) · B                                    (AReaL: Fu et al. 2025, arXiv:2505.24298, eq. 3)

so that η = 0 is synchronous and η = 1 is one step off. A group admitted after a updates has to be trained on
by update a + η. A batch takes complete groups, the oldest first, and waits while they are fewer than B, or
while the rest could not meet its deadlines: for every h ≥ u, at most (h − u) · B groups with a + η ≤ h may be
left. Before an update there are never more than (h − u + 1) · B of them, by admission and by induction over
batches. So the B oldest groups are always a possible batch: waiting for them ends, nothing is dropped, and no
group is staler than η, however late its rollouts end.

A group may be replaced (``algorithm.dynamic_sampling``): it is removed, and at the same moment another one is
admitted, which N does not count. The other is admitted after at least as many updates, so that for no h there
are more groups with a + η ≤ h than before: all of the above holds unchanged. At most R groups are replaced
between two batches, so waiting ends as well. Uniform groups that are not replaced count like any other, but a
batch has as few of them as its deadlines permit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGroup:
    """A group that is admitted and not yet trained on."""

    admitted_at: int
    """Updates made before its admission."""
    is_complete: bool
    """Whether its rollouts are finished and graded, and it is not to be replaced."""
    is_uniform: bool = False
    """Whether it has no learning signal."""


def capacity(*, admitted: int, updates: int, batch: int, staleness: int) -> int:
    """Return the number of groups that may be admitted now.

    Args:
        admitted: groups admitted so far, without those that replaced others, N.
        updates: updates made, u.
        batch: groups of an update, B.
        staleness: maximum number of updates between the admission of a group and its own, η.
    """
    return max(0, (updates + staleness + 1) * batch - admitted)


def choose_batch(
    groups: Sequence[OpenGroup], *, updates: int, batch: int, staleness: int, in_order: bool = False
) -> tuple[int, ...] | None:
    """Return the positions of the groups of the next update, in order; None while it has to wait.

    It first takes the complete groups without which the rest would miss its deadlines, then others up to B.
    In both steps informative groups come before uniform ones, and the oldest first.

    Args:
        groups: in the order of their admission.
        updates, batch, staleness: as in ``capacity``.
        in_order: take the oldest groups only, whichever are complete.
    """
    complete = sorted(
        (index for index, group in enumerate(groups) if group.is_complete),
        key=lambda index: (groups[index].is_uniform, index),
    )
    if len(complete) < batch:
        return None
    if in_order:
        return tuple(range(batch)) if all(group.is_complete for group in groups[:batch]) else None
    due = Counter(group.admitted_at + staleness for group in groups)
    chosen: set[int] = set()
    total = 0
    for update in sorted(due):
        total += due[update]
        needed = total - max(0, update - updates) * batch - len(chosen)
        early = [
            index
            for index in complete
            if index not in chosen and groups[index].admitted_at + staleness <= update
        ]
        if needed > min(len(early), batch - len(chosen)):
            return None
        chosen.update(early[: max(0, needed)])
    others = (index for index in complete if index not in chosen)
    return tuple(sorted({*chosen, *islice(others, batch - len(chosen))}))
