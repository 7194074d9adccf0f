"""Streaming reader of the elements of a JSON list."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

from engine.reading import MAX_LINE, MAX_VALUES, LimitError, check_nesting, check_values

_PIECE = 1 << 20
_SPACE = re.compile(r"\s*")
_TOO_LONG = f"longer than {MAX_LINE >> 20} MiB"


def read_elements(stream: TextIO) -> Iterator[tuple[int, Any, str]]:
    """Yield line (from 1), value and error of each element of the list at the start of a stream.

    An element that exceeds the limits of lines (``engine.reading``) has an error; reading continues after it.
    After damage, or an element without an end, it continues at the next line with the first element's
    indentation.
    """
    window = _Window(stream)
    window.next_character()
    window.skip("[")
    window.next_character()
    indentation = window.indentation
    while window.next_character() != "]":
        line = window.line()
        try:
            value, excess = window.decode()
        except UnicodeDecodeError:
            raise
        except json.JSONDecodeError as error:
            yield line, None, f"not JSON: {error.msg}"
        except (ValueError, RecursionError, MemoryError) as error:
            yield line, None, str(error) or "too large"
        else:
            yield line, value, excess
            following = window.next_character()
            if following == ",":
                window.skip(",")
            if following in (",", "]"):
                continue
            yield line, None, "not JSON: Expecting ',' or ']' behind the element"
            if following == "{" and window.indentation == indentation:
                continue
        if not indentation or not window.skip_to(f"{indentation}{{", len(indentation)):
            return


class _Window:
    """Buffered text of a stream, from the reading position on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._position = 0
        self._line, self._counted = 1, 0
        self.indentation = ""
        """Last skipped line break and the spaces after it; empty without one."""

    def line(self) -> int:
        """Return the line of the reading position."""
        self._line += self._text.count("\n", self._counted, self._position)
        self._counted = self._position
        return self._line

    def next_character(self) -> str:
        """Skip white space; return the next character, empty at the end."""
        self.indentation = ""
        while True:
            space = _SPACE.match(self._text, self._position)
            assert space is not None
            _, line_break, spaces = space[0].rpartition("\n")
            self.indentation = line_break + spaces if line_break else self.indentation + spaces
            self._position = space.end()
            if self._position < len(self._text) or not self._read_on():
                break
        if not self.indentation.startswith("\n"):
            self.indentation = ""
        return self._text[self._position : self._position + 1]

    def skip(self, text: str) -> None:
        """Skip a text at the reading position."""
        self._position += len(text)

    def decode(self) -> tuple[Any, str]:
        """Skip the value at the reading position; return it, or the limit that it exceeds.

        Raises:
            ValueError, RecursionError, MemoryError: it cannot be read.
        """
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._position)
            except json.JSONDecodeError:
                if len(self._text) - self._position > MAX_LINE:
                    raise ValueError(_TOO_LONG) from None
                if not self._read_on():
                    raise
                continue
            if end < len(self._text) or not self._read_on():
                text, self._position = self._text[self._position : end], end
                excess = _excess(text, value)
                return (None if excess else value), excess

    def skip_to(self, text: str, offset: int) -> bool:
        """Skip to ``offset`` after the start of a text's next occurrence; return whether there is one."""
        while (index := self._text.find(text, self._position)) < 0:
            self._position = max(self._position, len(self._text) - len(text) + 1)
            if not self._read_on():
                return False
        self._position = index + offset
        return True

    def _read_on(self) -> bool:
        """Read a piece at least as long as the rest of the buffer; return whether there was one."""
        self.line()
        rest = self._text[self._position :]
        piece = self._stream.read(max(_PIECE, len(rest)))
        self._text, self._position, self._counted = rest + piece, 0, 0
        return bool(piece)


def _excess(text: str, value: Any) -> str:
    """Return the limit that an element exceeds; empty without one."""
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) > MAX_LINE:
        return _TOO_LONG
    try:
        check_values(raw, MAX_VALUES)
        check_nesting(value)
    except LimitError as error:
        return str(error)
    return ""
