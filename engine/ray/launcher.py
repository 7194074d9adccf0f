"""Launcher of processes on the nodes of the Ray cluster that this run is a job of."""

from __future__ import annotations

from engine.config.placement import Bundles
from engine.ray.cluster import own_address
from engine.ray.node_process import NodeProcess
from engine.ray.placement import Notice, Placement


class RayProcesses:
    """Processes in reserved bundles, each with an equal share of its bundle.

    Args:
        bundles: what to reserve.
        per_bundle: number of processes in each.
        name: for people who look at the cluster.
        notice: told while the cluster lacks free resources.
    """

    isolates_devices = True

    def __init__(self, bundles: Bundles, *, per_bundle: int = 1, name: str, notice: Notice) -> None:
        self._bundles, self._per_bundle, self._name, self._notice = bundles, per_bundle, name, notice
        self._share = {resource: amount / per_bundle for resource, amount in bundles.resources.items()}
        self._placement: Placement | None = None

    def open(self) -> None:
        """Wait until the bundles are reserved. Raises PreflightError, and what the notice raises."""
        self._placement = Placement(self._bundles, name=self._name, notice=self._notice)

    def host(self) -> str:
        """Return the address of this node."""
        return own_address()

    def create(self, number: int) -> NodeProcess:
        """Return the process of a number, on the node that has its bundle when it starts."""
        assert self._placement is not None
        return NodeProcess(self._placement, number // self._per_bundle, self._share)

    def close(self) -> None:
        """Release the bundles; processes still running are killed."""
        if self._placement is not None:
            self._placement.release()
            self._placement = None
