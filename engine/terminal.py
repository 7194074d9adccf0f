"""Text for terminals: characters that control, hide or reorder output are shown as escapes.

Names, reasons and logs come from people, models and sandboxes. Unescaped, an escape sequence could set the
window's title or hide a line, and a line end could forge another entry of a list.
"""

from __future__ import annotations

import json
import re

HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200c\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e007f"
)
"""Characters that control, hide or reorder text, for a character class of a regular expression; without tab,
line end and joiner."""
_ACTIVE = re.compile(f"[{HIDDEN}\u200d\ud800-\udfff]")


def visible_text(text: str) -> str:
    """Return text of several lines with active characters escaped as in JSON; line ends and tabs stay."""
    return _ACTIVE.sub(lambda match: json.dumps(match[0])[1:-1], text.replace("\r\n", "\n"))


def visible_line(text: str) -> str:
    """Return text as one line: like ``visible_text``, with line ends and tabs escaped too."""
    return visible_text(text).replace("\n", "\\n").replace("\t", "\\t")
