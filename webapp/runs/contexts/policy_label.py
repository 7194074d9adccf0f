"""Name of the model or script that acts in a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def policy_label(policy: Mapping[str, Any] | None) -> str:
    """Return the name of a stored policy, with its endpoint or engine; empty without a policy.

    Configurations of other versions may lack settings, which are left out.
    """
    policy = policy or {}
    match policy.get("type", ""):
        case "endpoint":
            return " at ".join(filter(None, (policy.get("model"), policy.get("endpoint")))) or "endpoint"
        case "transformer":
            engine = ", vLLM" if policy.get("engine") == "vllm" else ""
            return f"{policy.get('checkpoint') or 'transformer'}{engine}"
        case "noop":
            return "no-op"
        case policy_type:
            return str(policy_type)
