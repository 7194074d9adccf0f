"""Test of an endpoint before the first sandbox starts: one tool call is requested, parsed and sent back."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import EndpointRefusedError
from engine.inference.base import ChatResponse
from engine.inference.sent_calls import sent_calls
from engine.models.chat.base import Message, ToolDeclaration
from engine.tools.formats import written_call

CHECK_TOKENS = 1024
"""Maximum length of a response, tokens; models may think first."""


def check_messages(tools: Sequence[ToolDeclaration]) -> list[Message]:
    """Return the test request: it asks for a call of the tool that needs the fewest arguments."""
    if not tools:
        return [{"role": "user", "content": "Answer with one word: ready?"}]
    functions = [tool["function"] for tool in tools]
    easiest = min(functions, key=lambda function: len(function.get("parameters", {}).get("required", ())))
    return [
        {"role": "user", "content": f"Call the tool {easiest['name']} once, with any arguments that fit it."}
    ]


def check_call(response: ChatResponse, tools: Sequence[ToolDeclaration], *, endpoint: str) -> None:
    """Raise EndpointRefusedError where the model's tool call arrives as text.

    A response without any call passes: the model may have chosen not to call.
    """
    written = written_call(response.content, {tool["function"]["name"] for tool in tools})
    if tools and not response.calls and written:
        raise EndpointRefusedError(
            f"{endpoint} returned a tool call as text ('{written}'), so no call of the model could be read: "
            "have the server parse its calls (vLLM: --enable-auto-tool-choice --tool-call-parser ...), or "
            "set agent.tool_format to the format in which the model writes them"
        )


def returned_call(response: ChatResponse) -> list[Message]:
    """Return a response's message and the answers to its calls, as later requests contain them."""
    calls = sent_calls(response, identify=lambda position: f"check{position:04d}")
    message: Message = {
        "role": "assistant",
        "content": response.content,
        "reasoning_content": response.thinking,
        "tool_calls": calls,
        "provider_state": response.provider_state,
    }
    return [message, *({"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls)]
