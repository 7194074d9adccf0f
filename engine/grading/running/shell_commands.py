"""Parsing of shell scripts into simple commands, as far as needed to find the programs that a line runs."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator
from itertools import pairwise

from engine.grading.running.placement import commands

_TOKEN = re.compile(
    r"(?P<space>\s+|[<>]+&?)|(?P<open>\$?\()|(?P<close>\))|(?P<tick>`)|(?P<end>&&|\|\|?&?|;+|(?<![<>&])&(?!>))"
    r"|(?P<quoted>'[^']*'|\"(?:\\.|[^\"\\])*\")|(?P<comment>(?<!\S)#.*)|(?P<text>\\.|[^\s()`&|;<>'\"\\#]+|.)",
    re.DOTALL,
)
_LABEL = re.compile(r"^[\w.*-]+(?:\s*\|\s*[\w.*-]+)*\)(?=\s|$)")
_RESERVED = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "time"})
_ASSIGNMENT = re.compile(r"(?:export|local|declare|readonly)$|(\w+)\+?=(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"\$\{?(\w+)")
_PYTHON = re.compile(r"(?:^|/)(?:python|pypy)[\w.]*$|^\$|(?:^|/)(?:coverage|kernprof|memray)$")
_GIVEN = re.compile(r"-\w*c$")
"""Option with which a shell takes its commands from the next word."""
_SHELLS = frozenset({"bash", "sh", "dash", "zsh"})
_WRAPPERS = frozenset(
    {
        "env", "timeout", "gtimeout", "nice", "ionice", "nohup", "exec", "command", "builtin", "stdbuf",
        "setsid", "taskset", "catchsegv", "unbuffer", "xvfb-run", "dbus-run-session", "dbus-launch", "xargs",
        "find", "uv", "uvx", "poetry", "pipenv", "pdm", "hatch", "rye", "pixi",
        "conda", "mamba", "micromamba",
    }
)  # fmt: skip
"""Programs that run the command given to them, in their own environment."""
_NOT_RUN = frozenset(
    {
        "install", "add", "show", "list", "remove", "uninstall", "update", "upgrade", "download", "search",
        "pip", "pip3", "echo", "printf", "which", "type", "hash", "grep", "test", "ls", "cat", "rm", "cp",
    }
)  # fmt: skip
"""Words after which a wrapper's program is only named."""
_TAKES_NAME = frozenset({"--with", "-w", "--from", "--group", "--extra", "-n", "--name", "-G", "-name"})
"""Options of wrappers with a value that is no command."""


def runs(script: str, programs: Collection[str]) -> bool:
    """Return whether a script calls one of the programs, directly, by a wrapper or as a module of Python.

    A program that is only printed, searched for, installed or assigned is not called. An assigned command
    counts where it is called.
    """
    variables: dict[str, str] = {}
    return any(
        _calls(words, programs, variables)
        for _, _, command in commands(script)
        for words in simple_commands(command)
    )


def simple_commands(text: str) -> Iterator[list[str]]:
    """Yield the words, without quotes, of every simple command of a line, those of substitutions included."""
    outer: list[tuple[str, list[str]]] = []
    words, word = list[str](), ""
    for match in _TOKEN.finditer(_LABEL.sub("", text.replace("\\\n", " "))):
        kind, token = match.lastgroup, match[0]
        if kind == "comment":
            break
        if kind == "quoted":
            word += token[1:-1]
            if token[0] == '"':
                for opened, closed in (("$(", ")"), ("`", "`")):
                    yield from simple_commands(token.partition(opened)[2].rpartition(closed)[0])
        elif kind == "text":
            word += "" if token in ("'", '"') else token
        else:
            closes = kind == "close" or (kind == "tick" and bool(outer) and outer[-1][0] == "`")
            if word:
                words.append(word)
            word = ""
            if closes:
                if outer or (len(words) > 1 and words[0] != "case"):  # else the label of a case
                    yield words
                words = outer.pop()[1] if outer else []
            elif kind in ("open", "tick"):
                outer.append((token, words))
                words = []
            elif kind == "end":
                yield words
                words = []
    yield [*words, *([word] if word else [])]
    yield from (rest for _, rest in outer)


def _calls(words: list[str], programs: Collection[str], variables: dict[str, str], depth: int = 8) -> bool:
    at = len(words) - words[::-1].index("{") if "{" in words else 0
    while at < len(words) and (words[at] in _RESERVED or (assignment := _ASSIGNMENT.match(words[at]))):
        if words[at] not in _RESERVED and assignment and assignment[1]:
            variables[assignment[1]] = assignment[2]
        at += 1
    words = words[at:]
    if not words or not depth:
        return False
    first, text = posixpath.basename(words[0]), ""
    if first in programs:
        return True
    if (variable := _VARIABLE.match(words[0])) and variable[1] in variables:
        text = " ".join([variables.pop(variable[1]), *words[1:]])
    elif first == "eval":
        text = " ".join(words[1:])
    elif first in _SHELLS:
        text = next((text for option, text in pairwise(words) if _GIVEN.match(option)), "")
    if any(_calls(inner, programs, variables, depth - 1) for inner in simple_commands(text)):
        return True
    if first == "command" and words[1:2] in (["-v"], ["-V"]):
        return False
    is_wrapper = first in _WRAPPERS or words[0].startswith("$")
    if not is_wrapper and not _PYTHON.search(words[0]):
        return False
    for at, (before, word) in enumerate(pairwise(words), 1):
        if word in _NOT_RUN:
            return False
        if before == "-m" and word in programs:
            return True
        if is_wrapper and (posixpath.basename(word) in _SHELLS or _PYTHON.search(word)):
            return _calls(words[at:], programs, variables, depth - 1)
        if posixpath.basename(word) in programs and before not in _TAKES_NAME and (is_wrapper or "/" in word):
            return True
    return False
