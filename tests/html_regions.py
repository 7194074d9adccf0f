"""Reads parts out of rendered pages: the inner HTML of an element, every link, the chart data."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"}


class _Regions(HTMLParser):
    """Remembers where elements with an id begin and end."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._stack: list[tuple[str, str, int]] = []
        self.spans: dict[str, tuple[int, int]] = {}
        self.links: list[str] = []
        self.forms: list[str] = []
        self.feed(text)

    def _offset(self) -> int:
        line, column = self.getpos()
        return self._lines[line - 1] + column

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a" and values.get("href"):
            self.links.append(values["href"] or "")
        for name in ("action", "formaction"):
            if values.get(name):
                self.forms.append(values[name] or "")
        if tag not in VOID:
            start = self._offset() + len(self.get_starttag_text() or "")
            self._stack.append((tag, values.get("id") or "", start))

    def handle_endtag(self, tag: str) -> None:
        if tag not in {name for name, _, _ in self._stack}:
            return
        while self._stack:
            name, element_id, start = self._stack.pop()
            if name == tag:
                if element_id:
                    self.spans[element_id] = (start, self._offset())
                return


def tight(html: str) -> str:
    """HTML without the white space between tags, which means nothing."""
    return re.sub(r">\s+<", "><", html).strip()


def inner_html(page: str, element_id: str) -> str:
    """The HTML inside the element with this id."""
    start, end = _Regions(page).spans[element_id]
    return page[start:end]


def links(page: str) -> list[str]:
    """Every href of the page."""
    return _Regions(page).links


def form_targets(page: str) -> list[str]:
    """Every action and formaction of the page."""
    return _Regions(page).forms


def chart_data(page: str) -> dict[str, Any]:
    """The ChartSet a run's page carries."""
    data: dict[str, Any] = json.loads(inner_html(page, "run-charts"))
    return data
