"""Client of the REST interface of a Ray cluster's dashboard: jobs, nodes, version.

Ray's own ``JobSubmissionClient`` uses the same interface; importing it costs each worker process 57 MB and
4 s, and ties the workers to one version of Ray.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from engine.errors import TrainyardError

ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
TIMEOUT = httpx.Timeout(20.0, connect=3.0)
ENTRYPOINT_FAILED = "JOB_ENTRYPOINT_COMMAND_ERROR"
NOT_READY = "No available agent"
"""Beginning of Ray's response, with status 500, while the head's job agent is starting."""


class ClusterUnreachableError(TrainyardError):
    """The cluster's dashboard does not answer, or does not accept jobs yet."""


class ClusterRefusedError(TrainyardError):
    """The cluster answered a request with an error; the message is its last line."""


@dataclass(frozen=True, slots=True)
class Job:
    """State of a job as the cluster reports it."""

    status: str
    """``PENDING``, ``RUNNING``, ``STOPPED``, ``SUCCEEDED`` or ``FAILED``."""
    message: str
    error_type: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Version and nodes of a cluster."""

    ray_version: str
    nodes: tuple[Mapping[str, float], ...]
    """Total resources of each live node: ``CPU``, ``GPU``, ``memory`` in bytes, custom resources."""

    @property
    def has_gpus(self) -> bool:
        """Return whether any node has GPUs."""
        return any(node.get("GPU") for node in self.nodes)


class RayJobs:
    """Client of one cluster. Every method raises ClusterUnreachableError and ClusterRefusedError.

    Args:
        address: address of the dashboard, ``http://HOST:8265``.
    """

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")

    def submit(self, job: Mapping[str, Any]) -> None:
        """Submit a job; no effect if the cluster has a job with its ``submission_id``."""
        try:
            self._request("POST", "/api/jobs/", job)
        except ClusterRefusedError:
            if self.find(job["submission_id"]) is None:
                raise

    def find(self, submission_id: str) -> Job | None:
        """Return a job; None if the cluster has no job with this id."""
        record = self._request("GET", f"/api/jobs/{submission_id}")
        if record is None:
            return None
        return Job(
            status=record["status"],
            message=record["message"] or "",
            error_type=record.get("error_type") or "",
        )

    def stop(self, submission_id: str) -> None:
        """End a job: SIGTERM to all its processes, then SIGKILL; no effect on missing or ended jobs."""
        self._request("POST", f"/api/jobs/{submission_id}/stop")

    def cluster(self) -> Cluster:
        """Return version and nodes of the cluster."""
        version = self._request("GET", "/api/version") or {}
        listed = self._request("GET", "/api/v0/nodes?detail=1&limit=10000") or {}
        nodes = listed.get("data", {}).get("result", {}).get("result", [])
        return Cluster(
            ray_version=str(version.get("ray_version", "")),
            nodes=tuple(node.get("resources_total", {}) for node in nodes if node.get("state") == "ALIVE"),
        )

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON body of the response; None for status 404."""
        token = os.environ.get(TOKEN_VARIABLE, "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            answer = httpx.request(
                method, self._address + path, json=body, headers=headers, timeout=TIMEOUT, trust_env=False
            )
            if answer.status_code == httpx.codes.NOT_FOUND:
                return None
            if answer.is_success:
                return answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise ClusterUnreachableError(
                f"the Ray cluster at {self._address} does not answer ({error or type(error).__name__})"
            ) from error
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise ClusterRefusedError(
                f"the Ray cluster at {self._address} refuses the workers' token: set {TOKEN_VARIABLE} of the "
                "workers to the cluster's"
            )
        if answer.text.startswith(NOT_READY):
            raise ClusterUnreachableError(f"the Ray cluster at {self._address} takes no jobs yet")
        lines = [line for line in answer.text.splitlines() if line.strip()]
        last = next((line for line in reversed(lines) if len(line) > 1), "no message")
        raise ClusterRefusedError(
            f"the Ray cluster at {self._address} answered {method} {path.partition('?')[0]} with status "
            f"{answer.status_code}: {last.strip()[:500]}"
        )
