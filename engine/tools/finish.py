"""``finish`` (also ``submit``): the agent submits its work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.tools.base import ToolResult


class Finish:
    """Tool that ends the rollout; the patch is the current state of the sandbox."""

    async def run(self, _arguments: Mapping[str, Any]) -> ToolResult:
        """Execute a validated call."""
        return ToolResult(observation="Submitted.", done=True)
