"""``file_editor``: view, create, str_replace, insert, undo_edit over any ``FileStore``.

Every edit is lossless: bytes outside the edited text never change, whatever their encoding or
line endings. Where most lines of a file end with CRLF, views omit the CR, new lines get it, and multi-line
text is found with either ending. The undo history is kept on the host, one list of earlier contents per file.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.errors import HostileInputError
from engine.isolation import Limits, run_isolated
from engine.tools.base import (
    FileStore,
    ObservationStyle,
    ToolResult,
    printable,
    refusal,
    resolve,
    to_bytes,
    to_text,
)
from engine.tools.elide import elided_lines

_ELIDE_ABOVE_LINES = 110
_LISTED_LINES = 10
_MAX_PLACES = 1000
_MAX_ELIDED_CHARS = 1_000_000
"""Longer files are shown whole: parsing them would take seconds."""
_MAX_COMPARED_CHARS = 1_000_000
"""In longer CRLF files, multi-line text must be given with CRLF: normalizing them would take long."""
_ELIDE_LIMITS = Limits("the file", cpu_s=10.0, memory_bytes=256 << 20)
"""Code of that length takes 200 MB; a table of data takes 440 MB and is shown whole."""
_NUMBER = "{:>5}  {}"
_R2E_GYM_NUMBER = "{:>6} {}"


class _RefusedError(Exception):
    """The command cannot be executed; the message is for the model."""


class FileEditor:
    """Tool that views and edits files, with undo; one per rollout.

    Args:
        store: the files.
        workdir: base of relative paths.
        style: ``compact`` prints bare lines, and answers ``ok`` to edits; the others explain.
        snippet_lines: lines shown around an edit; 0 shows none.
    """

    def __init__(
        self, store: FileStore, *, workdir: str, style: ObservationStyle = "full", snippet_lines: int = 4
    ) -> None:
        self._store = store
        self._workdir = workdir
        self._full = style != "compact"
        self._number = _R2E_GYM_NUMBER if style == "r2e_gym" else _NUMBER
        self._snippet_lines = snippet_lines
        self._history: dict[str, list[bytes | None]] = {}

    async def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Execute a validated call; a refused command is an observation, never an exception."""
        path = resolve(arguments["path"], self._workdir)
        commands: Mapping[str, Callable[[str, Mapping[str, Any]], Awaitable[str]]] = {
            "view": self._view,
            "create": self._create,
            "str_replace": self._str_replace,
            "insert": self._insert,
            "undo_edit": self._undo_edit,
        }
        try:
            text = await commands[arguments["command"]](path, arguments)
        except _RefusedError as error:
            return refusal(str(error))
        except FileNotFoundError:
            return refusal(f"{path} does not exist")
        except IsADirectoryError:
            return refusal(f"{path} is a folder, not a file")
        except (OSError, ValueError) as error:
            return refusal(f"{path}: {error}")
        return ToolResult(observation=printable(text))

    async def _view(self, path: str, arguments: Mapping[str, Any]) -> str:
        view_range = arguments.get("view_range")
        try:
            data = await self._store.read(path)
        except IsADirectoryError:
            if view_range is not None:
                raise _RefusedError(f"{path} is a folder: view_range only makes sense for a file") from None
            return await self._view_folder(path)
        if b"\0" in data:
            raise _RefusedError(f"{path} is a binary file and cannot be shown")
        text = _shown(to_text(data))
        lines = _lines(text)
        first, last = _checked_range(path, view_range, len(lines))
        wanted = arguments.get("concise", self._full and len(lines) > _ELIDE_ABOVE_LINES)
        shown = None
        if wanted and view_range is None and path.endswith(".py") and len(text) <= _MAX_ELIDED_CHARS:
            shown = await _elided(printable(text))
        numbered = shown if shown is not None else list(enumerate(lines[first - 1 : last], first))
        body = self._numbered(numbered)
        if not self._full:
            return body
        note = "" if shown is None else " (long function bodies left out; give view_range to read them)"
        return f"Content of {path}, lines {first}-{last} of {len(lines)}{note}:\n{body}"

    async def _view_folder(self, path: str) -> str:
        entries = "\n".join(await self._store.list_dir(path, depth=2))
        if not self._full:
            return entries
        return f"Files and folders up to two levels below {path}, hidden ones left out:\n{entries}"

    async def _create(self, path: str, arguments: Mapping[str, Any]) -> str:
        text: str = _needed(arguments, "file_text")
        if await self._exists(path):
            raise _RefusedError(f"{path} already exists; use str_replace or insert to change it")
        await self._write(path, None, text)
        return f"Created {path}." if self._full else "ok"

    async def _str_replace(self, path: str, arguments: Mapping[str, Any]) -> str:
        old: str = _needed(arguments, "old_str")
        new: str = arguments.get("new_str", "")
        if not old:
            raise _RefusedError("old_str is empty; use insert to add lines")
        data = await self._store.read(path)
        text = to_text(data)
        match = _find(text, old)
        if match is None:
            raise _RefusedError(_not_found(path, text, old))
        if match.count > 1:
            count = f"at least {_MAX_PLACES}" if match.count == _MAX_PLACES else match.count
            raise _RefusedError(
                f"old_str occurs {count} times in {path}, at lines {_listed(match.lines, match.count)}; "
                "it must occur exactly once: add surrounding lines"
            )
        if old == new:
            raise _RefusedError("old_str and new_str are the same: nothing was changed")
        if "\r" not in old or text[match.start : match.end] != old:
            new = _with_ends(new, _line_end(text))
        edited = text[: match.start] + new + text[match.end :]
        await self._write(path, data, edited)
        return self._edit_answer(path, edited, match.lines[0], new.count("\n") + 1)

    async def _insert(self, path: str, arguments: Mapping[str, Any]) -> str:
        after: int = _needed(arguments, "insert_line")
        new: str = _needed(arguments, "new_str")
        data = await self._store.read(path)
        text = to_text(data)
        lines = _split_keeping_newlines(text)
        if not 0 <= after <= len(lines):
            raise _RefusedError(
                f"insert_line must be between 0 and {len(lines)}, the lines of {path}; got {after}"
            )
        head, tail = "".join(lines[:after]), "".join(lines[after:])
        end = _line_end(text)
        if head and not head.endswith("\n"):
            head += end
        block = _with_ends(new if new.endswith("\n") else f"{new}\n", end)
        edited = head + block + tail
        await self._write(path, data, edited)
        return self._edit_answer(path, edited, after + 1, block.count("\n"))

    async def _undo_edit(self, path: str, _arguments: Mapping[str, Any]) -> str:
        if not self._history.get(path):
            raise _RefusedError(f"no edit of {path} to undo")
        before = self._history[path].pop()
        if before is None:
            await self._store.remove(path)
            return f"Undid the creation of {path}: the file is gone." if self._full else "ok"
        await self._store.write(path, before)
        return f"Undid the last edit of {path}." if self._full else "ok"

    async def _write(self, path: str, before: bytes | None, text: str) -> None:
        await self._store.write(path, to_bytes(text))
        self._history.setdefault(path, []).append(before)

    async def _exists(self, path: str) -> bool:
        try:
            await self._store.read(path)
        except FileNotFoundError:
            return False
        except ValueError:
            return True
        return True

    def _edit_answer(self, path: str, text: str, first: int, count: int) -> str:
        answer = f"Edited {path}." if self._full else "ok"
        if not self._snippet_lines:
            return answer
        lines = _lines(_shown(text))
        start = max(1, first - self._snippet_lines)
        end = min(len(lines), first + count - 1 + self._snippet_lines)
        snippet = self._numbered(list(enumerate(lines[start - 1 : end], start)))
        heading = f" Lines {start}-{end} now read:" if self._full else ""
        return f"{answer}{heading}\n{snippet}"

    def _numbered(self, lines: list[tuple[int, str]]) -> str:
        return "\n".join(self._number.format(number, line) for number, line in lines)


async def _elided(text: str) -> list[tuple[int, str]] | None:
    """Return ``elided_lines``; None where the file cannot be parsed within limits."""
    try:
        return await run_isolated(partial(elided_lines, text), _ELIDE_LIMITS)
    except HostileInputError:
        return None


def _needed(arguments: Mapping[str, Any], name: str) -> Any:
    if name not in arguments:
        raise _RefusedError(f"command {arguments['command']} needs the argument '{name}'")
    return arguments[name]


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _line_end(text: str) -> str:
    """Return the most frequent line ending."""
    return "\r\n" if 2 * text.count("\r\n") > text.count("\n") else "\n"


def _shown(text: str) -> str:
    return text.replace("\r\n", "\n") if _line_end(text) == "\r\n" else text


def _with_ends(text: str, end: str) -> str:
    """Return text with all line endings as CRLF if ``end`` is CRLF, else unchanged."""
    return re.sub("\r?\n", end, text) if end == "\r\n" else text


def _split_keeping_newlines(text: str) -> list[str]:
    parts = text.split("\n")
    lines = [f"{part}\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def _checked_range(path: str, view_range: list[int] | None, total: int) -> tuple[int, int]:
    if view_range is None:
        return 1, total
    first, last = view_range
    if not 1 <= first <= max(total, 1):
        raise _RefusedError(f"view_range must start between 1 and {total}, the lines of {path}; got {first}")
    if last == -1 or last > total:
        return first, total
    if last < first:
        raise _RefusedError(f"view_range ends before it starts: {view_range}")
    return first, last


@dataclass(frozen=True, slots=True)
class _Found:
    """Occurrences of a text."""

    count: int
    lines: tuple[int, ...]
    """Line numbers of the first occurrences."""
    start: int
    end: int
    """End of the first occurrence."""


def _find(text: str, needle: str) -> _Found | None:
    """Find up to 1000 occurrences of a text; return None without any.

    Line endings are ignored where most lines end with CRLF and the needle has no CR, or where there is no
    exact occurrence.
    """
    plain, places = text, _places(text, needle)
    comparable = "\n" in needle and "\r\n" in text and len(text) <= _MAX_COMPARED_CHARS
    if comparable and not (places and ("\r" in needle or _line_end(text) == "\n")):
        plain, needle = text.replace("\r\n", "\n"), needle.replace("\r\n", "\n")
        places = _places(plain, needle)
    if not places:
        return None
    lines = tuple(plain.count("\n", 0, place) + 1 for place in places[:_LISTED_LINES])
    start, end = places[0], places[0] + len(needle)
    if plain is not text:
        start, end = _original(text, start), _original(text, end)
    return _Found(len(places), lines, start, end)


def _original(text: str, place: int) -> int:
    """Map an offset in the text with LF for CRLF to the offset in the text itself."""
    left_out = 0
    while True:
        more = text.count("\r\n", 0, place + left_out)
        inside = place + left_out > 0 and text[place + left_out - 1 : place + left_out + 1] == "\r\n"
        if more + inside == left_out:
            return place + left_out
        left_out = more + inside


def _places(text: str, needle: str) -> list[int]:
    """Return the start of the first 1000 occurrences, overlapping ones included."""
    places: list[int] = []
    start = text.find(needle)
    while start >= 0 and len(places) < _MAX_PLACES:
        places.append(start)
        start = text.find(needle, start + 1)
    return places


def _not_found(path: str, text: str, old: str) -> str:
    message = f"old_str does not occur in {path}; nothing was changed"
    first_line = next((line.strip() for line in old.split("\n") if line.strip()), "")
    near = [n for n, line in enumerate(_lines(text), 1) if first_line and first_line in line]
    if near:
        message += f". Its first line does occur, at lines {_listed(near, len(near))}: compare whitespace"
    return message


def _listed(numbers: Sequence[int], count: int) -> str:
    shown = ", ".join(map(str, numbers[:_LISTED_LINES]))
    more = count - _LISTED_LINES
    return f"{shown} and {more} more" if more > 0 else shown
