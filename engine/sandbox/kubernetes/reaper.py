"""Removal of pods whose owner is dead or whose deadline has passed, and of ConfigMaps of old agents.

An owner is dead when its lease has expired or is gone. Deleting the lease leaves its pods to the cluster's
garbage collection; as that may be slow, they are deleted by label as well.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import structlog

from engine.config.kubernetes import KubernetesConfig
from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.api.errors import ApiError
from engine.sandbox.kubernetes.manifests import labels
from engine.sandbox.kubernetes.manifests.spec import agent_config_map
from engine.sandbox.kubernetes.owner import expired, leases_path

Json = dict[str, Any]
_AGENT_AGE_S = 3600.0
_log = structlog.get_logger(__name__)


async def reap(api: KubeApi, config: KubernetesConfig, run_id: str | None = None) -> int:
    """Remove all orphans, or those of one run; return the number of pods. Safe beside live owners.

    Raises:
        ApiError: the cluster does not answer or denies a request.
    """
    leases = leases_path(config.namespace)
    pods = f"/api/v1/namespaces/{config.namespace}/pods"
    wanted = {**labels.OURS}
    if run_id is not None:
        wanted[labels.RUN_ID] = labels.label_value(run_id)
    # Pods first: a lease is older than its pods, so that none of them can seem to have no owner.
    pod_list = await api.list(pods, labelSelector=labels.selector(wanted))
    lease_list = await api.list(leases, labelSelector=labels.selector(labels.OURS))
    now = api.now()
    alive = {lease["metadata"]["name"] for lease in lease_list["items"] if not expired(lease, now)}
    by_owner: defaultdict[str, list[Json]] = defaultdict(list)
    for pod in pod_list["items"]:
        by_owner[pod["metadata"]["labels"].get(labels.OWNER, "")].append(pod)
    removed = 0
    for owner, owned in by_owner.items():
        if owner not in alive:
            query = labels.selector({**wanted, labels.OWNER: owner})
            await api.delete(pods, grace_s=config.delete_grace_s, labelSelector=query)
            removed += len(owned)
            continue
        for pod in owned:
            if _deadline(pod) < now:
                await api.delete(f"{pods}/{pod['metadata']['name']}", grace_s=config.delete_grace_s)
                removed += 1
    if run_id is None:
        for lease in lease_list["items"]:
            if lease["metadata"]["name"] not in alive:
                await api.delete(f"{leases}/{lease['metadata']['name']}")
        living = [lease for lease in lease_list["items"] if lease["metadata"]["name"] in alive]
        await _remove_old_agents(api, config, living, pod_list["items"])
    return removed


async def _remove_old_agents(
    api: KubeApi, config: KubernetesConfig, leases: Sequence[Json], pods: Sequence[Json]
) -> None:
    """Remove the ConfigMaps of agents that no live process and no pod uses. Raises ApiError."""
    named = [(lease["metadata"].get("labels") or {}).get(labels.AGENT) for lease in leases]
    if None in named:
        return  # a process of an older version, whose lease does not name its ConfigMap
    mounted = {
        (volume.get("configMap") or {}).get("name")
        for pod in pods
        for volume in pod["spec"].get("volumes") or []
    }
    used = {agent_config_map()["metadata"]["name"], *named, *mounted}
    path = f"/api/v1/namespaces/{config.namespace}/configmaps"
    try:
        for agent in (await api.list(path, labelSelector=labels.selector(labels.OURS)))["items"]:
            meta = agent["metadata"]
            if meta["name"] not in used and api.now() - _created(meta) > _AGENT_AGE_S:
                await api.delete(f"{path}/{meta['name']}")
    except ApiError as error:
        if error.status != 403:
            raise
        _log.info("agents of old versions stay: the account may not remove them", error=str(error))


def _created(meta: Json) -> float:
    return datetime.datetime.fromisoformat(meta["creationTimestamp"].replace("Z", "+00:00")).timestamp()


def _deadline(pod: Json) -> float:
    text = (pod["metadata"].get("annotations") or {}).get(labels.DEADLINE, "")
    return float(text) if text.isdecimal() else float("inf")
