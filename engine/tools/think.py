"""``think``: the agent writes down a thought."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.tools.base import ToolResult


class Think:
    """Tool that changes nothing; the thought is in the call itself."""

    async def run(self, _arguments: Mapping[str, Any]) -> ToolResult:
        """Execute a validated call."""
        return ToolResult(observation="Noted.")
