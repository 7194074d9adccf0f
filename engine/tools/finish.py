"""``finish`` (also ``submit``): the agent hands in its work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.tools.base import ToolResult


class Finish:
    """Ends the rollout; the patch is taken from the sandbox as it is."""

    async def run(self, _arguments: Mapping[str, Any]) -> ToolResult:
        """Execute a validated call."""
        return ToolResult(observation="Submitted.", done=True)
