"""Text of models and sandboxes as HTML: colours as classes, hidden characters marked, nothing executed."""

from __future__ import annotations

import re
import time

import pytest

from webapp.core.contexts.printed import printed
from webapp.rollouts.contexts.diffs import EDIT_LINES, LINE_CHARS, added_diff, edit_diff, patch_diff

TAGS = re.compile(r"<[^>]*>")


def without_tags(html: str) -> str:
    return TAGS.sub("", html)


def test_plain_text_is_escaped_and_otherwise_unchanged() -> None:
    assert printed("a < b && \"c\" 'd'\n\tx") == "a &lt; b &amp;&amp; &quot;c&quot; &#x27;d&#x27;\n\tx"
    assert printed("one\r\ntwo") == "one\ntwo"
    assert printed("naïve 日本 שלום 👩\u200d💻") == "naïve 日本 שלום 👩\u200d💻"


def test_colours_become_classes_of_a_fixed_list() -> None:
    assert printed("\x1b[31mred\x1b[0m") == '<span class="a-fg1">red</span>'
    assert printed("\x1b[1;4;97;44mx\x1b[22;39mY\x1b[mz") == (
        '<span class="a-bold a-underline a-fg15 a-bg4">x</span><span class="a-underline a-bg4">Y</span>z'
    )
    assert printed("\x1b[38;5;196mx") == '<span class="a-fg9">x</span>'
    assert printed("\x1b[38:2:0:200:0mx") == '<span class="a-fg2">x</span>'
    assert printed("\x1b[38;5;999m\x1b[48;7m\x1b[38m\x1b[123456mx") == "x"


@pytest.mark.parametrize(
    "hostile",
    [
        "\x1b[31m<script>alert(1)</script>",
        "\x1b]8;;javascript:alert(1)\x07click\x1b]8;;\x07",
        '\x1b["><img src=x onerror=alert(1)>m',
        "\x1b]0;<b>title</b>",
        "\x1bP<svg onload=alert(1)>\x1b\\",
        "<scr\u200bipt>\x00\x1b[8mhidden",
    ],
)
def test_hostile_sequences_are_rendered_as_text(hostile: str) -> None:
    html = printed(hostile)
    tags = TAGS.findall(html)
    assert all(re.fullmatch(r'</span>|<span class="[a-z0-9 -]+"( title="[^"<>]*")?>', tag) for tag in tags), (
        html
    )
    assert "\x1b" not in html
    assert "\x00" not in html


def test_hidden_characters_are_named_and_have_no_effect() -> None:
    html = printed("if access != 'user\u202e \u2066// admin\u2069':\u200b\u200b\u200b\u200b\u200bx")
    for character in "\u202e\u2066\u2069\u200b":
        assert character not in html
    assert 'title="U+202E RIGHT-TO-LEFT OVERRIDE"' in html
    assert "and 2 more hidden characters" in html
    assert "U+200B U+200B U+200B +2" in without_tags(html)
    assert "␍" in without_tags(printed("10%\r20%"))
    assert "␇" in without_tags(printed("\x07"))
    assert 'title="\\x1b[2K"' in printed("\x1b[2K")
    assert "\U000e0041" not in printed("tag\U000e0041")


def test_hidden_characters_are_marked_in_highlighted_code() -> None:
    diff = edit_diff("x = 1", "x = '\u202e<b>'  # \u2066", "a.py")
    assert "U+202E" in without_tags(diff.lines[1].html)
    assert "<b>" not in diff.lines[1].html
    assert "hidden-char" in str(added_diff("a\u200bb", "a.py").lines[0].html)


def test_hostile_sequences_are_rendered_in_linear_time() -> None:
    def cost(text: str) -> float:
        began = time.thread_time()
        printed(text)
        return time.thread_time() - began

    for piece in ("\x1b]x", "\x1b[1", "\x1b[31m\x1b[0m", "a\u200b", "\x1bP\x1b"):
        short, long = (min(cost(piece * n) for _ in range(3)) for n in (250, 4_000))
        assert long < 80 * short + 0.01, repr(piece)


# --- large edits ------------------------------------------------------------------------------------


def test_a_large_edit_is_cut_before_it_is_highlighted(monkeypatch: pytest.MonkeyPatch) -> None:
    highlighted: list[int] = []

    def count(lines: list[str], path: str) -> None:  # noqa: ARG001
        highlighted.append(len(lines))

    monkeypatch.setattr("webapp.rollouts.contexts.diffs.highlighted", count)
    old = "\n".join(f"value_{n} = {n}" for n in range(6_000))
    new = "\n".join(f"value_{n} = {n + 1}" for n in range(6_000))
    diff = edit_diff(old, new, "a.py")
    assert (len(diff.lines), diff.num_lines, diff.num_added, diff.cut) == (EDIT_LINES, 12_000, 6_000, True)
    assert sum(highlighted) <= EDIT_LINES
    added_diff(old, "a.py")
    assert highlighted[-1] == EDIT_LINES


def test_unchanged_parts_of_a_long_edit_are_folded() -> None:
    lines = [f"line {n}" for n in range(1_000)]
    changed = [*lines[:700], "new", *lines[701:]]
    diff = edit_diff("\n".join(lines), "\n".join(changed), "a.txt")
    assert [line.sign for line in diff.lines] == ["", " ", " ", " ", "-", "+", " ", " ", " ", ""]
    assert without_tags(diff.lines[0].html) == "… 697 unchanged lines"
    assert (diff.num_lines, diff.num_shown, diff.cut) == (1_001, 1_001, False)


def test_long_lines_are_cut_and_the_rest_is_counted() -> None:
    diff = added_diff("x" * 5_000, "a.js")
    assert len(without_tags(diff.lines[0].html)) < LINE_CHARS + 40
    assert "4,000 more characters" in diff.lines[0].html
    patch = patch_diff("--- a/x\n+++ b/x\n@@ -0,0 +1,1 @@\n+" + "y" * 5_000)
    assert patch is not None
    assert "4,000 more characters" in patch.lines[3].html
