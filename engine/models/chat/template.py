"""Rendering of published chat templates in a separate process.

A template is an untrusted program: nested loops can take any time, and repeated text any memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from engine.errors import HostileInputError, ModelError, describe_error
from engine.isolation import Limits

RENDER_ERRORS = (TemplateError, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError)
"""Errors of renderers and chat templates for messages that they cannot express."""
TEMPLATE_LIMITS = Limits("the chat template", cpu_s=0.5, memory_bytes=512 << 20)
"""Normal templates take milliseconds (200 messages of 2 kB: 4 to 9); the library alone takes 220 MiB of
address space."""
_MAX_TEXT = 1 << 20
"""Length in characters up to which a text may exceed its messages more than four times."""


def render_template(
    template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> str:
    """Return a conversation rendered by a chat template; called through ``engine.isolation``.

    Args:
        template: its text.
        messages: the conversation.
        variables: further variables of the template.

    Raises:
        ModelError: the template cannot express the conversation.
        HostileInputError: its output is far longer than its input.
    """
    conversations: Any = [list(messages)]
    try:
        rendered: Any = render_jinja_template(conversations, chat_template=template, **dict(variables))
    except RENDER_ERRORS as error:
        raise ModelError(describe_error(error)) from None
    text = str(rendered[0][0])
    if len(text) > _MAX_TEXT and len(text) > 4 * (len(repr(messages)) + len(repr(variables))):
        raise HostileInputError(f"the chat template writes {len(text):,} characters")
    return text
