"""Reading of shell commands as far as scanners need it, in linear time; nothing is executed.

Commands are split at operators outside of quotes; comments and heredoc bodies are left out. Variables,
substitutions and aliases are not expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

MOST, MOST_WORDS = 50, 500
"""Most commands and words of a script that are read; the rest of a longer one is left out."""
_TOKEN = re.compile(
    r"(?P<space>(?:[ \t\r\f\v]|\\\n)+)"
    r"|(?P<comment>\#[^\n]*)"
    r"|(?P<line>\n)"
    r"|(?P<end>[;|()]|&(?!>))"
    r"|(?:\d{1,4}|&)?(?P<redirect><<<|<<-?|<>|>>|>\||[<>]&?)"
    r"|(?P<word>(?:'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\[^\n]|\$\(\([^()\n]{0,200}\)\)"
    r"|[^ \t\r\f\v\n;|&()<>'\"\\])+)",
    re.DOTALL,
)
"""A word ends before a quote without its end, which no token matches."""
_QUOTED = re.compile(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|\\(.)", re.DOTALL)
_ESCAPED = re.compile(r"\\([\"\\$`])")
_REDIRECTS = frozenset({"<", ">", ">>", ">|", "<>", "<&", ">&", "<<<"})
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
_INTERPRETERS = re.compile(
    r"i?python[\d.]*|pdb|(?:ba|z|da|k)?sh|source|\.|node|deno|bun|tsx|ts-node|ruby|perl|php|go|java"
)
"""Programs that run their first file."""
_TEST_RUNNERS = frozenset({"pytest", "py.test", "unittest", "jest", "mocha", "rspec"})
"""Programs that run all their files."""

Words = tuple[str, ...]


def commands(text: str) -> list[Words]:
    """Return the words of the first ``MOST`` simple commands of a script, with redirections.

    Operators of redirections are words of their own, without the number in front; an equal word in quotes
    keeps its quotes. Reading ends after ``MOST_WORDS`` words, and at a quote without its end.
    """
    parsed: list[list[str]] = [[]]
    ends: list[str] = []  # of the heredocs whose bodies begin at the next line
    position = count = 0
    names_end = False
    while count < MOST_WORDS and len(parsed) <= MOST and (token := _TOKEN.match(text, position)):
        position = token.end()
        if token.lastgroup == "word":
            word = _QUOTED.sub(_unquoted, token["word"])
            if names_end:
                ends.append(word)
            else:
                parsed[-1].append(f"'{word}'" if word in _REDIRECTS else word)
                count += 1
            names_end = False
        elif token.lastgroup == "redirect":
            names_end = token["redirect"] in ("<<", "<<-")
            if not names_end:
                parsed[-1].append(token["redirect"])
                count += 1
        elif token.lastgroup in ("line", "end") and parsed[-1]:
            parsed.append([])
        if token.lastgroup == "line":
            for end in ends:
                position = _after_heredoc(text, position, end)
            ends, names_end = [], False
    return [tuple(words) for words in parsed if words][:MOST]


def _unquoted(quoted: re.Match[str]) -> str:
    single, double, escaped = quoted.groups()
    if double is not None:
        return _ESCAPED.sub(r"\1", double)
    return single if single is not None else escaped


def _after_heredoc(text: str, position: int, end: str) -> int:
    """Return the position after a heredoc's body, which begins at ``position``, and the line of its end."""
    while position < len(text):
        stop = text.find("\n", position)
        stop = len(text) if stop < 0 else stop
        line, position = text[position:stop], stop + 1
        if line.strip() == end:
            break
    return min(position, len(text))


def invocation(words: Words) -> Words:
    """Return a command without redirections, and without assignments and wrappers in front.

    ``python -m NAME`` becomes ``NAME``. The result is empty if there are only redirections.
    """
    words = tuple(
        word for before, word in pairwise(("", *words)) if word not in _REDIRECTS and before not in _REDIRECTS
    )
    if not words:
        return ()
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
        program, *rest = invocation(words) or ("",)
        whole = program == "tee" and "-a" not in rest
        in_place = _IN_PLACE.get(program)
        if program == "tee" or (in_place and any(map(in_place.match, rest))):
            yield from ((name, whole) for name in rest if _FILE_NAME.fullmatch(name))


def mentioned_files(words: Words) -> list[str]:
    """Return the arguments that name a file, without the part of a test after ``::``."""
    names = (word.partition("::")[0] for word in words)
    return [name for name in names if _FILE_NAME.fullmatch(name)]


def run_files(words: Words) -> list[str]:
    """Return the files that an invocation runs: as the program, or by an interpreter or test runner."""
    program, *rest = words
    if program in _TEST_RUNNERS:
        return mentioned_files(tuple(rest))
    if not _INTERPRETERS.fullmatch(program):
        return mentioned_files((program,))
    if "-c" in rest or "-e" in rest or (program == "go" and rest[:1] != ["run"]):
        return []
    return mentioned_files(tuple(rest))[:1]
