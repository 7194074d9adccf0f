"""Name of the model or script that acts in a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def policy_label(policy: Mapping[str, Any] | None) -> str:
    """Return the name of a configuration's policy, with its endpoint or engine; empty without a policy."""
    policy = policy or {}
    match policy.get("type", ""):
        case "endpoint":
            return f"{policy['model']} at {policy['endpoint']}"
        case "transformer":
            engine = ", vLLM" if policy.get("engine") == "vllm" else ""
            return f"{policy['checkpoint']}{engine}"
        case "noop":
            return "no-op"
        case other:
            return str(other)
