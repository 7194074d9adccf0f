"""Names, labels and annotations of all objects created by the backend.

Labels are for selectors, annotations for text that is no valid label value. To record another fact about a
sandbox, add a constant here and a line in ``spec.pod``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

DOMAIN = "trainyard.dev"
SANDBOX_ID = f"{DOMAIN}/sandbox-id"
RUN_ID = f"{DOMAIN}/run-id"
OWNER = f"{DOMAIN}/owner"
"""Process that owns the pod, by the name of its lease object."""
AGENT = f"{DOMAIN}/agent"
"""ConfigMap from which the pods of a lease mount the agent; empty where an image provides it."""
STATE = f"{DOMAIN}/state"
"""State of a pod: ``warm`` (not requested yet) or ``leased``."""
POOL = f"{DOMAIN}/pool"
"""Key shared by a warm pod and the sandboxes it may become."""
ITERATION = f"{DOMAIN}/iteration"
TASK_ID = f"{DOMAIN}/task-id"
ROLLOUT_ID = f"{DOMAIN}/rollout-id"
DEADLINE = f"{DOMAIN}/deadline"
"""Annotation: absolute deadline, seconds since the epoch by the cluster's clock."""
NAME = f"{DOMAIN}/name"
IMAGE = f"{DOMAIN}/image"
"""Annotation: the image as the task names it, before mirrors."""
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
WARM, LEASED = "warm", "leased"

OURS = {"app.kubernetes.io/name": "trainyard-sandbox", "app.kubernetes.io/managed-by": "trainyard"}
"""Label selector of all objects created by the backend."""
COMMON = {**OURS, "app.kubernetes.io/part-of": "trainyard"}

_VALUE = re.compile(r"[^A-Za-z0-9._-]+")
_LIMIT = 63


def label_value(text: str) -> str:
    """Return ``text`` as a label value: invalid characters become dashes, long texts end in a hash."""
    plain = _VALUE.sub("-", text).strip("-._")
    if len(plain) > _LIMIT:
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        plain = f"{plain[: _LIMIT - 9].rstrip('-._')}-{digest}"
    return plain


def rollout_labels(name: str) -> dict[str, str]:
    """Return the labels of a sandbox named by a rollout's key, ``phase/iteration/task/index``."""
    parts = name.split("/")
    if len(parts) != 4:
        return {}
    _, iteration, task, _ = parts
    return {
        ITERATION: label_value(iteration),
        TASK_ID: label_value(task),
        ROLLOUT_ID: label_value(name),
    }


def selector(labels: Mapping[str, str]) -> str:
    """Return a label selector that requires all of the labels."""
    return ",".join(f"{key}={value}" for key, value in labels.items())
