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
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGroup:
    """A group that is admitted and not yet trained on."""

    admitted_at: int
    """Updates made when it was admitted."""
    is_complete: bool
    """Whether its rollouts are finished and graded."""


def capacity(*, admitted: int, updates: int, batch: int, staleness: int) -> int:
    """Return the number of groups that may be admitted now.

    Args:
        admitted: groups admitted so far, N.
        updates: updates made, u.
        batch: groups of an update, B.
        staleness: maximum number of updates between the admission of a group and its own, η.
    """
    return max(0, (updates + staleness + 1) * batch - admitted)


def choose_batch(
    groups: Sequence[OpenGroup], *, updates: int, batch: int, staleness: int, in_order: bool = False
) -> tuple[int, ...] | None:
    """Return the positions of the groups of the next update; None while it has to wait.

    Args:
        groups: in the order of their admission.
        updates, batch, staleness: as in ``capacity``.
        in_order: take the oldest groups only, whichever are complete.
    """
    complete = [place for place, group in enumerate(groups) if group.is_complete]
    chosen = tuple(complete[:batch])
    if len(chosen) < batch or (in_order and chosen != tuple(range(batch))):
        return None
    left = Counter(group.admitted_at + staleness for group in groups)
    left.subtract(groups[place].admitted_at + staleness for place in chosen)
    due = accumulate(left[update] for update in range(min(left), updates + staleness + 1))
    late = zip(range(min(left), updates + staleness + 1), due, strict=True)
    return None if any(count > max(0, update - updates) * batch for update, count in late) else chosen
