"""Readers for parts of rendered pages: the inner HTML of an element, links, forms, the chart data."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"}


class _Regions(HTMLParser):
    """Parser that records the spans of elements with an id, and the targets of links and forms."""

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
    """Remove the insignificant white space between tags."""
    return re.sub(r">\s+<", "><", html).strip()


def inner_html(page: str, element_id: str) -> str:
    """Return the HTML inside the element with this id."""
    start, end = _Regions(page).spans[element_id]
    return page[start:end]


def links(page: str) -> list[str]:
    """Return every href of the page."""
    return _Regions(page).links


def form_targets(page: str) -> list[str]:
    """Return every action and formaction of the page."""
    return _Regions(page).forms


def chart_data(page: str) -> dict[str, Any]:
    """Return the ChartSet in a run's page."""
    data: dict[str, Any] = json.loads(inner_html(page, "run-charts"))
    return data


class _Fields(HTMLParser):
    """Parser for the values of a form's fields as a browser posts them unchanged."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self._select = self._textarea = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        name, value = values.get("name") or "", values.get("value") or ""
        if tag == "select":
            self._select = name
        elif tag == "option" and self._select and ("selected" in values or self._select not in self.values):
            self.values[self._select] = value
        elif tag == "textarea":
            self._textarea, self.values[name] = name, ""
        elif tag == "input" and name:
            self.values[name] = value

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            self._select = ""
        elif tag == "textarea":
            self.values[self._textarea] = self.values[self._textarea].removeprefix("\n")
            self._textarea = ""

    def handle_data(self, data: str) -> None:
        if self._textarea:
            self.values[self._textarea] += data


def form_values(page: str, form_id: str) -> dict[str, str]:
    """Return the values of the fields of the form with this id."""
    return _Fields(inner_html(page, form_id)).values
