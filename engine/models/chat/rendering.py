"""Choice of a renderer of ``renderers``: the family's own if it agrees with the folder's chat template.

A family's renderer is handwritten and extends conversations token by token. One architecture may have several
templates, though (Qwen3 and Qwen3-Coder), so the renderer is used only if it writes the same tokens as the
folder's chat template. All other models follow their template.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

from jinja2 import TemplateError
from pydantic import TypeAdapter, ValidationError
from renderers.base import Renderer, create_renderer
from renderers.configs import RendererConfig
from renderers.default import DefaultRenderer

from engine.errors import CheckpointError, HostileInputError, ModelError
from engine.isolation import call_isolated
from engine.models.chat.published import PublishedTokenizer
from engine.models.chat.template import RENDER_ERRORS, TEMPLATE_LIMITS, render_template

_DATE = date(2024, 7, 26)
"""Date in every prompt: a prompt must not change from day to day. Llama's renderer has the same one."""
PROBE_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Look.",
        "parameters": {
            "type": "object",
            "properties": {"where": {"type": "string", "description": "Place."}},
            "required": ["where"],
        },
    },
}
_MARK = "Any question?"
_PROBE = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "First question."},
)
_PROBES: Sequence[tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]] = (
    (_PROBE, ()),
    (_PROBE, (PROBE_TOOL,)),
    ((*_PROBE, {"role": "assistant", "content": "Answer."}, {"role": "user", "content": "Second."}), ()),
)
"""Conversations, with tools, on which a family's renderer has to agree with the folder's template."""


class TemplateTokenizer:
    """Tokenizer interface that ``renderers`` needs; text of templates may contain control tokens."""

    def __init__(self, tokenizer: Any, published: PublishedTokenizer, *, thinking: bool) -> None:
        self._tokenizer = tokenizer
        self._published = published
        self._options = {
            "enable_thinking": thinking,
            "reasoning_effort": "medium" if thinking else "low",
            "date_string": _DATE.strftime("%d %b %Y"),
            "strftime_now": _DATE.strftime,
        }
        self._has_failed = False
        """Whether the last call exceeded a limit; a single time may be the machine's fault."""
        self._exceeded = ""
        """Limit that the template exceeded twice in a row; empty otherwise."""
        self.template = published.template
        self.name_or_path: str = tokenizer.name_or_path
        self.unk_token_id: int | None = tokenizer.unk_token_id
        self.eos_token_id: int | None = tokenizer.eos_token_id
        self.all_special_tokens: list[str] = list(published.control.values())

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        """Return the ids of a template's text."""
        return self._published.encode_template(text)

    def decode(self, ids: Any, *_: Any, **__: Any) -> str:
        """Return the text of ids, special tokens spelled out."""
        return self._published.decode(ids)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """Return a token's id; None where the vocabulary lacks it."""
        return self._published.id_of(token)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Any = None,
        **_: Any,
    ) -> list[int]:
        """Return the ids of a conversation by the folder's chat template."""
        text = self.written(messages, add_generation_prompt=add_generation_prompt, tools=tools)
        return self._published.encode_template(text)

    def written(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, tools: Any = None
    ) -> str:
        """Return a conversation as rendered by the chat template.

        Raises:
            TemplateError: the template cannot express it, exceeds the limits, or did so twice in a row.
        """
        return self._write(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, as_parts=self._reads_parts
        )

    @functools.cached_property
    def _reads_parts(self) -> bool:
        """Return whether the template reads contents as lists of parts only.

        Raises:
            TemplateError: it reads neither form, or exceeded a limit.
        """
        loses_text = False
        for as_parts in (False, True):
            try:
                text = self._write(
                    [{"role": "user", "content": _MARK}],
                    add_generation_prompt=True, tools=None, as_parts=as_parts,
                )  # fmt: skip
            except TemplateError:
                if self._has_failed:
                    raise
                continue
            if _MARK in text and not (as_parts and "'type'" in text):  # the repr of a list
                return as_parts
            loses_text = True
        if loses_text:
            raise TemplateError("the chat template omits the user's message, as text and as a list of parts")
        return False

    def _write(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Any,
        as_parts: bool,
    ) -> str:
        if self._exceeded:
            raise TemplateError(self._exceeded)
        if as_parts:
            messages = [
                {**message, "content": [{"type": "text", "text": message.get("content") or ""}]}
                for message in messages
            ]
        variables = {
            **self._tokenizer.special_tokens_map,
            **self._options,
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
        }
        template = self._tokenizer.get_chat_template(None, tools)
        has_failed, self._has_failed = self._has_failed, False
        try:
            return call_isolated(partial(render_template, template, messages, variables), TEMPLATE_LIMITS)
        except HostileInputError as error:
            # Each further call could block the event loop as long, and start another process.
            self._has_failed = True
            if has_failed:
                self._exceeded = str(error)
            raise TemplateError(str(error)) from error
        except ModelError as error:
            raise TemplateError(str(error)) from error


def open_renderer(tokenizer: TemplateTokenizer, name: str | None, *, thinking: bool) -> Renderer:
    """Return the family's renderer, or the one of the chat template.

    Args:
        tokenizer: of the folder.
        name: the family's renderer in ``renderers``; None without one.
        thinking: whether responses may think.

    Raises:
        CheckpointError: there is neither a chat template nor a renderer for this tokenizer.
    """
    own = None if name in (None, "gpt-oss") else _known_renderer(tokenizer, str(name), thinking=thinking)
    if not tokenizer.template:
        if own is None:
            raise CheckpointError(
                f"the tokenizer in {tokenizer.name_or_path} has no chat template; expected "
                "chat_template.jinja, or chat_template in tokenizer_config.json, as instruct models have it"
            )
        return own
    template = DefaultRenderer(tokenizer)
    return own if own is not None and _agree(own, template) else template


def _known_renderer(tokenizer: TemplateTokenizer, name: str, *, thinking: bool) -> Renderer | None:
    """Return the family's renderer; None if the vocabulary lacks one of its tokens."""
    settings = {"name": name, "thinking_retention": "all"}
    adapter: TypeAdapter[Any] = TypeAdapter(RendererConfig)
    try:
        config = adapter.validate_python({**settings, "enable_thinking": thinking})
    except ValidationError:
        config = adapter.validate_python(settings)
    try:
        return create_renderer(tokenizer, config)
    except AssertionError:
        return None


def _agree(known: Renderer, template: Renderer) -> bool:
    """Return whether both write the same tokens for all probes that the template can express."""
    compared = False
    for messages, tools in _PROBES:
        try:
            expected = _render(template, messages, tools)
        except RENDER_ERRORS:
            continue
        if _render(known, messages, tools) != expected:
            return False
        compared = True
    return compared


def _render(renderer: Renderer, messages: Any, tools: Sequence[Mapping[str, Any]]) -> list[int]:
    declared: Any = list(tools) or None
    return list(renderer.render_ids(list(messages), tools=declared, add_generation_prompt=True))
