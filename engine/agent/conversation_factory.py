"""Factory of conversations with either kind of policy."""

from __future__ import annotations

from collections.abc import Sequence

from engine.agent.chat_conversation import ChatConversation
from engine.agent.conversation import Conversation
from engine.agent.prompts import Prompt
from engine.agent.token_conversation import SampledConversation
from engine.config.rollout import AgentConfig
from engine.inference.base import ChatPolicy, Policy, TokenPolicy
from engine.models.chat.base import Message
from engine.tools.schemas import Tools


def open_conversation(
    policy: Policy, messages: Sequence[Message], *, prompt: Prompt, config: AgentConfig, tools: Tools
) -> Conversation:
    """Return a conversation that begins with the given messages.

    Args:
        tools: tools of the environment.

    Raises:
        ModelError: the model's family cannot express the messages.
        TypeError: the policy is of neither kind.
    """
    keep_thinking = config.thinking_history == "keep"
    match policy:
        case TokenPolicy():
            chat = policy.chat if config.thinking == "on" else policy.chat.without_thinking()
            return SampledConversation(
                policy, chat, messages, tools=prompt.declarations, keep_thinking=keep_thinking
            )
        case ChatPolicy():
            return ChatConversation(
                policy,
                messages,
                declarations=prompt.declarations,
                tools=tools,
                tool_format=config.tool_format,
                keep_thinking=keep_thinking,
            )
        case _:
            raise TypeError(f"{type(policy).__name__} is neither a token policy nor a chat policy")
