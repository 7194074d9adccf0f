"""Markdown of task statements as safe HTML.

Statements come from repositories and models. They are rendered in a separate process with a limit of
processor time, and the result is reduced to a fixed list of tags. Links keep only addresses of the web, and
images become links, so that a page never loads remote content.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from functools import lru_cache, partial
from typing import Any

import nh3
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.token import Token

from engine.errors import HostileInputError
from engine.isolation import Limits, call_isolated
from engine.terminal import visible_text

LIMITS = Limits("Markdown", cpu_s=1.0, memory_bytes=512 << 20)
MAX_CHARS = 50_000
"""Longest text that is rendered."""
MAX_HTML_CHARS = 400_000
_TAGS = {
    "a", "blockquote", "br", "code", "em", "hr", "li", "ol", "p", "pre", "s", "strong", "table", "tbody",
    "td", "th", "thead", "tr", "ul",
}  # fmt: skip
_SCHEMES = ("https://", "http://", "mailto:")


@lru_cache(maxsize=64)
def markdown_html(text: str) -> SafeString | None:
    """Return Markdown as safe HTML; None for empty, very long or costly text, which is shown as it is."""
    if not text.strip() or len(text) > MAX_CHARS:
        return None
    try:
        html = call_isolated(partial(sanitised, text), LIMITS)
    except HostileInputError:
        return None
    return mark_safe(html) if html.strip() and len(html) <= MAX_HTML_CHARS else None  # noqa: S308


def sanitised(text: str) -> str:
    """Render in this process, without limits."""
    return nh3.clean(
        _renderer().render(visible_text(text)),
        tags=_TAGS,
        attributes={"a": {"href"}},
        attribute_filter=_web_address,
        link_rel="nofollow noreferrer",
    )


def _web_address(_tag: str, attribute: str, value: str) -> str | None:
    return value if attribute != "href" or value.lower().startswith(_SCHEMES) else None


def _renderer() -> MarkdownIt:
    # Line breaks count, as in issues on GitHub. HTML stays text: a statement may well speak of List<int>.
    renderer = MarkdownIt("commonmark", {"breaks": True, "html": False}).enable(["table", "strikethrough"])
    renderer.add_render_rule("image", _image)
    # Headings of a statement are no part of the page's outline.
    renderer.add_render_rule("heading_open", lambda *_: "<p><strong>")
    renderer.add_render_rule("heading_close", lambda *_: "</strong></p>\n")
    return renderer


def _image(
    renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: MutableMapping[str, Any]
) -> str:
    """Return a link to an image."""
    label = renderer.renderInlineAsText(tokens[index].children or [], options, env)
    anchor = Token("link_open", "a", 1, attrs={"href": str(tokens[index].attrs["src"])})
    text = Token("text", "", 0, content=f"image: {label}" if label else "image")
    return str(renderer.renderInline([anchor, text, Token("link_close", "a", -1)], options, env))
