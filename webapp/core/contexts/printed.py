"""Output of models and sandboxes as safe HTML: colours as CSS classes, hidden characters marked.

All input is hostile. Text is escaped. Terminal sequences for colours and weights become CSS classes of a
fixed list. All other sequences, and characters that reorder, hide or overwrite text, are replaced by a
visible mark with their name.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field

from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe

from engine.terminal import HIDDEN

# A joiner between emoji draws one picture; anywhere else it is invisible.
_HIDDEN = f"[{HIDDEN}]|(?<![\u2600-\u27bf\ufe0f\U0001f000-\U0001faff])\u200d"
_HIDDEN_RUN = re.compile(f"(?:{_HIDDEN})+")
_MOST_NAMED = 3
"""Number of consecutive hidden characters that a mark names; the others are counted."""
_SEQUENCE = re.compile(
    "\x1b(?:"
    r"\[(?P<sgr>[0-9;:]*)m"
    r"|\[[0-?]*[ -/]*[@-~]"  # other control sequences: cursor, erase, modes
    "|[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)?"  # titles, links, device strings
    r"|[ -/]*[0-~]"
    ")"
)
_MAX_TOLD = 60
_LEVELS = (0, 95, 135, 175, 215, 255)
_BASIC = (
    (0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0), (0, 0, 238), (205, 0, 205), (0, 205, 205),
    (229, 229, 229), (127, 127, 127), (255, 0, 0), (0, 255, 0), (255, 255, 0), (92, 92, 255),
    (255, 0, 255), (0, 255, 255), (255, 255, 255),
)  # fmt: skip
_FLAGS = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike"}
_ENDS = {
    22: ("bold", "dim"),
    23: ("italic",),
    24: ("underline",),
    27: ("inverse",),
    29: ("strike",),
}


def printed(text: str) -> SafeString:
    """Return text as HTML with its terminal colours and with hidden characters marked."""
    text = text.replace("\r\n", "\n")
    if "\x1b" not in text:
        return marked(escape(text))
    style, parts, position = _Style(), [], 0
    for match in _SEQUENCE.finditer(text):
        parts.append(style.wrap(text[position : match.start()]))
        position = match.end()
        if match["sgr"] is not None:
            style.apply(match["sgr"])
        else:
            parts.append(_mark(ascii(match[0])[1:-1][:_MAX_TOLD], "ESC"))
    parts.append(style.wrap(text[position:]))
    return mark_safe("".join(parts))  # noqa: S308  (every part is safe)


def marked(html: SafeString) -> SafeString:
    """Return escaped HTML with hidden characters replaced by marks.

    The caller's markup must not contain such characters itself.
    """
    return mark_safe(_HIDDEN_RUN.sub(_mark_run, html))  # noqa: S308  (marks are escaped, the rest was)


def _mark_run(match: re.Match[str]) -> str:
    characters = match[0]
    shown, rest = characters[:_MOST_NAMED], len(characters) - _MOST_NAMED
    names = ", ".join(f"U+{ord(c):04X} {unicodedata.name(c, 'CONTROL')}" for c in shown)
    label = " ".join(_label(c) for c in shown)
    if rest > 0:
        names, label = f"{names} and {rest} more hidden characters", f"{label} +{rest}"
    return _mark(names, label)


def _label(character: str) -> str:
    code = ord(character)
    # U+2400 … U+241F are the visible pictures of the control characters U+0000 … U+001F.
    return chr(0x2400 + code) if code < 0x20 else f"U+{code:04X}"


def _mark(names: str, label: str) -> SafeString:
    return format_html('<span class="hidden-char" title="{}">{}</span>', names, label)


@dataclass(slots=True)
class _Style:
    """Current colours and weights."""

    foreground: int | None = None
    background: int | None = None
    flags: set[str] = field(default_factory=set)

    def wrap(self, text: str) -> SafeString:
        """Return text in this style."""
        if not text:
            return SafeString("")
        html = marked(escape(text))
        names = [f"a-{name}" for name in sorted(self.flags)]
        if self.foreground is not None:
            names.append(f"a-fg{self.foreground}")
        if self.background is not None:
            names.append(f"a-bg{self.background}")
        return format_html('<span class="{}">{}</span>', " ".join(names), html) if names else html

    def apply(self, parameters: str) -> None:
        """Apply the parameters of one SGR sequence."""
        codes = iter([int(code or 0) for code in parameters.replace(":", ";").split(";") if len(code) < 6])
        for code in codes:
            if code == 0:
                self.foreground = self.background = None
                self.flags.clear()
            elif code in _FLAGS:
                self.flags.add(_FLAGS[code])
            elif code in _ENDS:
                self.flags.difference_update(_ENDS[code])
            elif 30 <= code <= 38 or 90 <= code <= 97:
                self.foreground = _colour(code, codes)
            elif 40 <= code <= 48 or 100 <= code <= 107:
                self.background = _colour(code - 10, codes)
            elif code == 39:
                self.foreground = None
            elif code == 49:
                self.background = None


def _colour(code: int, rest: Iterator[int]) -> int | None:
    """Return one of 16 colours; colours of a larger palette are mapped to the nearest one."""
    if code >= 90:
        return code - 82
    if code < 38:
        return code - 30
    kind = next(rest, 0)
    if kind == 5:
        return _of_palette(next(rest, 0))
    return _nearest(next(rest, 0), next(rest, 0), next(rest, 0)) if kind == 2 else None


def _of_palette(index: int) -> int | None:
    # xterm's 256 colours: 16 basic ones, a 6 x 6 x 6 cube, 24 greys.
    if index < 16:
        return index
    if index < 232:
        cube = index - 16
        return _nearest(_LEVELS[cube // 36], _LEVELS[cube // 6 % 6], _LEVELS[cube % 6])
    return _nearest(*[8 + 10 * (index - 232)] * 3) if index < 256 else None


def _nearest(red: int, green: int, blue: int) -> int:
    wanted = (red, green, blue)
    return min(range(16), key=lambda i: sum((a - b) ** 2 for a, b in zip(_BASIC[i], wanted, strict=True)))
