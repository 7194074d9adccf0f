"""Markdown of statements: sanitised, without remote content, within limits."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest

from webapp.core.contexts import markdown
from webapp.core.contexts.markdown import MAX_CHARS, markdown_html, sanitised


def attributes(tag: str) -> set[tuple[str, str]]:
    return set(re.findall(r'([^\s=]+)="([^"]*)"', tag))


def test_markdown_is_rendered_without_headings_and_images() -> None:
    rendered = sanitised(
        "# Bug\n\nIt *fails*:\n\n```python\nx < 1\n```\n\n| a | b |\n|---|---|\n| 1 | ~~2~~ |\n\n"
        "![a picture](https://example.org/x.png)"
    )
    assert "<p><strong>Bug</strong></p>" in rendered
    assert "<pre><code>x &lt; 1\n</code></pre>" in rendered
    assert "<td><s>2</s></td>" in rendered
    (link,) = re.findall("<a ([^>]*)>image: a picture</a>", rendered)
    assert attributes(link) == {("href", "https://example.org/x.png"), ("rel", "nofollow noreferrer")}


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "![x](https://evil.test/track.png)",
        "[x](javascript:alert(1))", "[x](data:text/html,x)", '<a href="JaVaScRiPt:alert(1)">x</a>',
        "[x](/logout/)", "<iframe src=https://evil.test></iframe>", "<svg onload=alert(1)>",
        '<p style="position:fixed" id="help" class="notice">x</p>', "<a href='//evil.test'>x</a>",
        "<form action=/runs/1/stop/><button>x</button></form>", "</div></main><h1>x</h1>",
        "<math><style><img src=x onerror=alert(1)>", "<link rel=stylesheet href=https://evil.test>",
        "<!-- x --!><img src=x>",
    ],
)  # fmt: skip
def test_hostile_markdown_has_no_scripts_styles_or_loaded_content(text: str) -> None:
    rendered = sanitised(f"before {text} after\n\n{text}")
    assert set(re.findall(r"<\s*/?\s*([a-zA-Z0-9]+)", rendered)) <= markdown._TAGS
    for found in re.findall(r"<[a-z]+\s+([^>]*)>", rendered):
        for name, value in attributes(found):
            assert (name, value) == ("rel", "nofollow noreferrer") or (name, value[:8]) == (
                "href",
                "https://",
            )


@pytest.mark.parametrize(
    "text", ["Dict[str, List<int>] and more", "foo<T> b", "x <script> y\n\nz", "<title> b\n\nnext"]
)
def test_html_in_a_statement_stays_text(text: str) -> None:
    shown = html.unescape(re.sub("<[^>]*>", "", sanitised(text)))
    assert shown.split() == text.split()


def test_hidden_characters_are_visible_also_in_addresses() -> None:
    rendered = sanitised('a\u202eb <a href="https://x.test/\u202e">c</a> \x1b[31m')
    assert not re.search("[\u202e\x1b]", rendered)
    assert "a\\u202eb" in rendered


def test_costly_long_and_deep_markdown_falls_back_to_text(monkeypatch: pytest.MonkeyPatch) -> None:
    markdown_html.cache_clear()
    assert markdown_html("") is None
    assert markdown_html("x" * (MAX_CHARS + 1)) is None
    # Output of many times the input's length.
    assert markdown_html("|a" * 2_500 + "\n" + "|-" * 2_500 + "\n" + "|\n" * 10_000) is None
    for hostile in (
        "- " * 25_000,
        "[" * 50_000,
        "> " * 25_000,
        "![[]()" * 8_000,
        "<details>" * 5_000,
        "*a_ " * 12_500,
    ):
        rendered = markdown_html(hostile)
        assert rendered is None or len(rendered) < markdown.MAX_HTML_CHARS
    monkeypatch.setattr(markdown, "LIMITS", replace(markdown.LIMITS, cpu_s=0.01))
    assert markdown_html("[" * 49_999) is None
    monkeypatch.undo()
    assert markdown_html("**x**") == "<p><strong>x</strong></p>\n"
