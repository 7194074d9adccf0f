"""Messages before a trajectory's first response, and fields of the file of an imported trajectory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.safestring import SafeString

from webapp.core.contexts.markdown import markdown_html
from webapp.rollouts.contexts.steps import STATEMENT_CHARS, STATEMENT_LINES, CutText, cut_text

_LABELS = {"system": "system message", "user": "user message", "tools": "declared functions"}
_INLINE_CHARS = 120


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """A message with its label on the page."""

    label: str
    text: CutText


@dataclass(frozen=True, slots=True)
class ImportedField:
    """A field of an imported file; ``name`` is its dotted path."""

    name: str
    text: CutText

    @property
    def long(self) -> bool:
        """Return whether the text is folded."""
        return self.text.num_chars > _INLINE_CHARS or self.text.num_lines > 1


def statement_text(text: str) -> CutText:
    """Truncate a problem statement to the length that a page shows."""
    return cut_text(text, lines=STATEMENT_LINES, chars=STATEMENT_CHARS)


def statement_html(statement: CutText) -> SafeString | None:
    """Return a problem statement's Markdown as safe HTML; None where its text is shown instead."""
    return None if statement.cut else markdown_html(statement.text)


def opening_messages(messages: Iterable[Mapping[str, str]]) -> tuple[PromptMessage, ...]:
    """Return the messages of an opening in their order."""
    return tuple(
        PromptMessage(
            _LABELS.get(message["role"], f"{message['role']} message"), statement_text(message["content"])
        )
        for message in messages
    )


def imported_fields(fields: Mapping[str, Any] | None) -> tuple[ImportedField, ...] | None:
    """Return the fields of an imported file, objects flattened by one level; None without fields."""
    return None if fields is None else tuple(_flat(fields))


def _flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[ImportedField]:
    for name in sorted(fields):
        value = fields[name]
        if isinstance(value, Mapping) and value and not prefix:
            yield from _flat(value, f"{name}.")
        elif value is None or value in ({}, [], ""):
            yield ImportedField(f"{prefix}{name}", statement_text(""))
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield ImportedField(f"{prefix}{name}", statement_text(text))
