"""Expected values of a script's comparisons: in the script, in its variables, or in files beside it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from engine.grading.counterfactual.shell.comparisons import Comparison, is_fixed_text
from engine.grading.counterfactual.shell.nodes import (
    arguments_of,
    commands_in,
    enclosing,
    is_read,
    name_of,
    plain_text,
    written_files,
)
from engine.grading.counterfactual.syntax.literals import Edit, other_content
from engine.grading.counterfactual.syntax.source import all_nodes, text_of

_SHOWING = frozenset({"echo", "printf", "cat", "head", "tail", "diff", "cmp", "wc"})
_ENDING = frozenset({"exit", "return", "local"})
_PASSING_ON = frozenset({"sort", "cat"})
"""Programs whose output differs whenever a letter or digit of their input does."""
_INNER = ("pipeline", "command_substitution", "process_substitution")
_EXPANSION = re.compile(r"\$\{?\w+\}?|\$\([^()]*\)")
_VARIABLE = re.compile(r"\"?\$(?:(\w+)|\{(\w+)\})\"?")
_WORD = re.compile(r"[A-Za-z]{5,}")
_MAX_LINES = 3
_MAX_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class FalseAnswer:
    """Edit that gives a comparison another expected value."""

    path: str
    """Path of the script, or of the file beside it."""
    within: tuple[int, int]
    """First byte and byte after the last of what is shown of it."""
    edit: Edit


class Answers:
    """Expected values of a script.

    Args:
        root: the script's syntax tree.
        path: the script's.
        comparisons: those that certainly decide.
        beside: path → content of other test files.
    """

    def __init__(
        self, root: Node, path: str, comparisons: Sequence[Comparison], beside: Mapping[str, bytes]
    ) -> None:
        self._root = root
        self._path = path
        self._spans = [one.within.byte_range for one in comparisons]
        self._beside = beside
        self._assigned: dict[str, list[Node]] = {}
        self._functions = {
            text_of(node.child_by_field_name("name"))
            for node in all_nodes(root)
            if node.type == "function_definition" and _only_shows(node)
        }
        self._bound: set[str] = set()
        """Variables that other commands than assignments set or take."""
        for node in all_nodes(root):
            if node.type == "variable_assignment":
                name = text_of(node.child_by_field_name("name"))
                self._assigned.setdefault(name, []).append(node)
            elif node.type == "variable_name" and not is_read(node):
                self._bound.add(text_of(node))

    def false(self, comparison: Comparison) -> Iterator[FalseAnswer]:
        """Yield the answers that make a comparison false for whatever it was true."""
        if comparison.is_search:
            yield from self._misspelt(comparison)
            return
        for side, other in (comparison.sides, comparison.sides[::-1]):
            is_file = name_of(comparison.within) in ("diff", "cmp")
            if is_file or self._is_computed(other):
                yield from self._file(side) if is_file else self._value(side, comparison.within)

    def _value(self, side: Node, within: Node) -> Iterator[FalseAnswer]:
        """Yield other values of a text, a variable or the content of a file."""
        text = plain_text(side)
        if text is not None:
            if changed := other_content(text):
                yield self._in_script(side, within, text, changed)
            return
        if (found := _VARIABLE.fullmatch(text_of(side))) is not None:
            name = found[1] or found[2]
            assignment = self._only_assignment(name)
            value = assignment.child_by_field_name("value") if assignment is not None else None
            if assignment is not None and value is not None and self._is_only_compared(name):
                yield from self._value(value, assignment)
            return
        inner = [one for one in side.named_children if one.type == "command_substitution"]
        whole = side if side.type == "command_substitution" else None
        if side.type == "string" and len(side.named_children) == 1 and inner:
            whole = inner[0]
        if whole is not None:
            yield from self._file(whole)

    def _only_assignment(self, name: str) -> Node | None:
        """Return the one assignment of a variable, at the top of the script; None where there are others."""
        found = self._assigned.get(name, [])
        if len(found) != 1 or name in self._bound or re.search(rf"\b{name}\b", self._other_setters()):
            return None
        parent = found[0].parent
        return found[0] if parent is not None and parent.type == "program" else None

    def _other_setters(self) -> str:
        names = ("read", "mapfile", "readarray", "printf", "getopts", "unset", "let")
        return " ".join(
            text_of(node)
            for node in all_nodes(self._root)
            if node.type == "command" and name_of(node) in names
        )

    def _is_only_compared(self, name: str) -> bool:
        """Return whether a variable stands in comparisons that decide, and in messages, alone."""
        return all(
            self._is_in_comparison(node) or self._is_shown(node)
            for node in all_nodes(self._root)
            if node.type == "variable_name"
            and text_of(node) == name
            and node.parent is not None
            and node.parent.type != "variable_assignment"
        )

    def _is_in_comparison(self, node: Node) -> bool:
        return any(start <= node.start_byte and node.end_byte <= end for start, end in self._spans)

    def _is_computed(self, side: Node, above: Collection[str] = ()) -> bool:
        """Return whether a side is the output of a program."""
        for node in all_nodes(side):
            if node.type == "command_substitution" and self._path_in(node) is None:
                return True
            if node.type == "variable_name":
                name = text_of(node)
                if name in above:
                    continue
                given = [one.child_by_field_name("value") for one in self._assigned.get(name, [])]
                known = {*above, name}
                if name in self._bound or any(one and self._is_computed(one, known) for one in given):
                    return True
        return False

    def _in_script(self, node: Node, within: Node, before: str, after: str) -> FalseAnswer:
        quoted = node.type in ("string", "raw_string")
        start, end = node.start_byte + quoted, node.end_byte - quoted
        return FalseAnswer(self._path, within.byte_range, Edit(start, end, after, before, after))

    def _misspelt(self, comparison: Comparison) -> Iterator[FalseAnswer]:
        """Yield texts that no program prints: with a word that is none."""
        (side,) = comparison.sides
        text = plain_text(side)
        word = _WORD.search(text) if text is not None and is_fixed_text(text) else None
        if text is not None and word is not None and (other := other_content(word[0])):
            changed = f"{text[: word.start()]}{other}{text[word.end() :]}"
            yield self._in_script(side, comparison.within, text, changed)

    def _file(self, side: Node) -> Iterator[FalseAnswer]:
        """Yield other contents of the file beside the script that is an operand."""
        path = self._path_in(side)
        if path is None or not self._is_only_answer(path):
            return
        try:
            content = self._beside[path].decode()
        except UnicodeDecodeError:
            return
        if len(content) > _MAX_BYTES:
            return
        lines = content.splitlines(keepends=True)
        found, start = [], 0
        for line in lines:
            bare = line.rstrip()
            if changed := other_content(bare):
                end = start + len(bare.encode())
                found.append(FalseAnswer(path, (start, end), Edit(start, end, changed, bare, changed)))
            start += len(line.encode())
        yield from found[-1:]
        yield from found[: _MAX_LINES - 1][: max(0, len(found) - 1)]

    def _path_in(self, side: Node) -> str | None:
        """Return the path of the file beside the script that a word names, or whose text it stands for."""
        if side.type in ("process_substitution", "command_substitution"):
            (inner,) = side.named_children if len(side.named_children) == 1 else (None,)
            if inner is None:
                return None
            if inner.type == "file_redirect":
                target = inner.child_by_field_name("destination")
                return self._path_in(target) if target is not None else None
            arguments = arguments_of(inner)
            if name_of(inner) not in _PASSING_ON or len(arguments) != 1:
                return None
            return self._path_in(arguments[0])
        text = text_of(side).replace('"', "").replace("'", "")
        tail = _EXPANSION.split(text)[-1]
        if set("$`*?[\\").intersection(tail) or (tail != text and not tail.startswith("/")):
            return None
        if tail == text and text in self._beside:
            return text
        tail = "/" + posixpath.normpath(tail).lstrip("./")
        found = [path for path in self._beside if f"/{path}".endswith(tail)]
        return found[0] if len(found) == 1 and tail != "/" else None

    def _is_only_answer(self, path: str) -> bool:
        """Return whether a file's name stands nowhere but in comparisons that decide, and in messages."""
        name = posixpath.basename(path)
        if any(name.encode() in content for other, content in self._beside.items() if other != path):
            return False
        return all(
            self._is_in_comparison(node) or self._is_shown(node) or self._is_only_text_of(node)
            for node in all_nodes(self._root)
            if not node.named_children and node.type != "comment" and name in text_of(node)
        )

    def _is_shown(self, node: Node) -> bool:
        """Return whether a word goes to the log alone."""
        command = enclosing(node, "command")
        if command is None or enclosing(command, *_INNER) is not None or written_files(command):
            return False
        return name_of(command) in _SHOWING or name_of(command) in self._functions

    def _is_only_text_of(self, node: Node) -> bool:
        """Return whether a word is in the assignment of a variable that is only compared."""
        assignment = enclosing(node, "variable_assignment")
        if assignment is None:
            return False
        name = text_of(assignment.child_by_field_name("name"))
        return self._only_assignment(name) is not None and self._is_only_compared(name)


def _only_shows(function: Node) -> bool:
    """Return whether a function gives its arguments to the log alone."""
    return all(
        name_of(command) in _ENDING or (name_of(command) in _SHOWING and not _passes_on(command))
        for command in commands_in(function)
    )


def _passes_on(command: Node) -> bool:
    """Return whether the arguments of a command may go to a file."""
    given = any("$" in text_of(one) for one in arguments_of(command))
    return given and bool(written_files(command) or enclosing(command, *_INNER))
