"""Resources reserved on nodes of the cluster: placement groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from engine.config.placement import Bundles
from engine.ray.cluster import connect

Notice: TypeAlias = Callable[[str], None]
"""Reports what is waited for, and an empty text once that is over; it may raise to end the wait."""

_POLL_S = 0.5


def ignore(_text: str) -> None:
    """Report nothing."""


class Placement:
    """Bundles reserved on nodes of the cluster until they are released.

    Args:
        bundles: what to reserve.
        name: for people who look at the cluster.
        notice: told while the cluster lacks free resources.

    Raises:
        PreflightError: see ``connect``.
    """

    def __init__(self, bundles: Bundles, *, name: str, notice: Notice) -> None:
        connect()
        from ray.util.placement_group import placement_group

        self._group = placement_group(
            [dict(bundles.resources)] * bundles.count, strategy=bundles.strategy, name=name
        )
        try:
            self._wait(bundles, notice)
        except BaseException:
            self.release()
            raise

    def bundle(self, number: int) -> Any:
        """Return the scheduling strategy of an actor in a bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)

    def release(self) -> None:
        """Give the resources back; actors that are left in the bundles are killed."""
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(self._group)

    def _wait(self, bundles: Bundles, notice: Notice) -> None:
        while not self._group.wait(timeout_seconds=_POLL_S):
            notice(f"waiting for {bundles} on the Ray cluster")
        notice("")
