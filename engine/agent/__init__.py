"""The agent: prompts, tool-call formats, tools, token-id conversation and the loop."""

from __future__ import annotations

from engine.agent.parser import ParsedResponse, ToolFormat, parse
from engine.agent.rendering import render_call, render_response, response_ids

__all__ = ["ParsedResponse", "ToolFormat", "parse", "render_call", "render_response", "response_ids"]
