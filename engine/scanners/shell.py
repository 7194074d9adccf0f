"""Reading of shell commands as far as scanners need it, in linear time; nothing is executed.

Commands are split at operators outside of quotes, and heredoc bodies are left out. Variables, substitutions
and aliases are not expanded.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise

MOST_CHARS, MOST = 4_000, 50
"""Longest script and most commands that are read; the rest of a longer one is left out."""
_SEPARATORS = frozenset(";|&\n()")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_WRAPPERS = frozenset(
    {"sudo", "time", "env", "nohup", "timeout", "exec", "poetry", "uv", "pipenv", "hatch", "run", "coverage"}
)
"""Programs in front of the command that matters, and ``run`` after some of them."""
_DURATION = re.compile(r"\d+(?:\.\d+)?[smh]?")
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_IN_PLACE = {"sed": re.compile(r"-\w*i|--in-place"), "perl": re.compile(r"-\w*i")}
"""Options with which a program changes its files."""
_FILE_NAME = re.compile(r"(?!-)[\w./+-]*\w\.[A-Za-z]\w{0,7}")
"""A path whose name has an extension."""

Words = tuple[str, ...]


def commands(text: str) -> list[Words]:
    """Return the words of the first ``MOST`` simple commands in the first ``MOST_CHARS`` of a script."""
    text = _without_heredocs(text.replace("\\\n", " "))[:MOST_CHARS]
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";|&\n()<>")
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t\r", "", True
    parsed: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word and set(word) <= _SEPARATORS:
                parsed.append([])
            else:
                parsed[-1].append(word)
    except ValueError:  # a quote without its end: no shell would run the rest either
        pass
    return [tuple(words) for words in parsed if words and not words[0].startswith("#")][:MOST]


def _without_heredocs(text: str) -> str:
    """Return a script without the bodies of its heredocs."""
    kept: list[str] = []
    end = ""
    for line in text.split("\n"):
        if end:
            end = "" if line.strip() == end else end
            continue
        kept.append(line)
        if heredoc := _HEREDOC.search(line):
            end = heredoc[2]
    return "\n".join(kept)


def invocation(words: Words) -> Words:
    """Return a command without assignments and wrappers in front; ``python -m NAME`` becomes ``NAME``.

    Args:
        words: at least one word.
    """
    position = 0
    while position < len(words) - 1 and _is_prefix(words[position], first=position == 0):
        position += 1
    words = words[position:]
    if len(words) > 1 and _PYTHON.fullmatch(words[0]) and words[1] == "-m":
        words = words[1:]
    if len(words) > 1 and words[0] == "-m":
        return words[1:]
    return (words[0].rpartition("/")[2], *words[1:])


def _is_prefix(word: str, *, first: bool) -> bool:
    """Return whether a word is an assignment, a wrapper, or an argument of the wrapper before it."""
    name, equals, _ = word.partition("=")
    if word in _WRAPPERS or (equals and name.isidentifier()):
        return True
    return not first and word != "-m" and (word.startswith("-") or _DURATION.fullmatch(word) is not None)


def written_files(script: Sequence[Words]) -> Iterator[tuple[str, bool]]:
    """Yield the files that commands write, and whether they write them whole (else in place)."""
    for words in script:
        for operator, name in pairwise(words):
            if operator in (">", ">>", ">|") and _FILE_NAME.fullmatch(name):
                yield name, operator != ">>"
        program, *rest = invocation(words)
        whole = program == "tee" and "-a" not in rest
        in_place = _IN_PLACE.get(program)
        if program == "tee" or (in_place and any(map(in_place.match, rest))):
            yield from ((name, whole) for name in rest if _FILE_NAME.fullmatch(name))


def mentioned_files(words: Words) -> list[str]:
    """Return the arguments that name a file, without the part of a test after ``::``."""
    names = (word.partition("::")[0] for word in words)
    return [name for name in names if _FILE_NAME.fullmatch(name)]
