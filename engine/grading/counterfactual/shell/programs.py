"""Python programs that a script runs, and how the row's verdict depends on each."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from enum import StrEnum

from tree_sitter import Node

from engine.grading.counterfactual.shell.conditions import Condition, decisive_conditions
from engine.grading.counterfactual.shell.nodes import (
    GRAMMAR,
    arguments_of,
    commands_in,
    enclosing,
    name_of,
    plain_text,
    without_redirects,
)
from engine.grading.counterfactual.syntax.source import SyntaxSource, all_nodes, text_of

_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_FLAGS = re.compile(r"-[uBsS]+")
_REWARD = re.compile(r"(?i)reward")
_ZERO = re.compile(r"0(?:\.0*)?(?:\\n)?")
_SHOWING = frozenset({"mkdir", "rm", "touch", "cat", "ls", "test", "chmod"})
_OPAQUE = frozenset({"trap", "eval", "source", ".", "alias"})
_STATUS = re.compile(r"\"?\$(?:\?|\{\?\})\"?")
_VARIABLE = re.compile(r"\"?\$\{?(\w+)\}?\"?")


class Decides(StrEnum):
    """Part of a program on which the verdict depends."""

    STATUS = "status"
    """The script passes only if the program ends with 0."""
    REWARD = "reward"
    """Nothing but the program writes a reward."""


def deciding_programs(content: bytes, path: str, beside: Collection[str]) -> dict[str, set[Decides]]:
    """Return path → what may decide, of the Python programs on which all passing runs of a script depend.

    Args:
        path: the script's.
        beside: paths of the programs that it may run.

    Raises:
        ValueError: the script is not UTF-8 or too long.
    """
    root = SyntaxSource(content, path, GRAMMAR).root
    called = [(command, found) for command in commands_in(root) if (found := _program(command, beside))]
    if root.has_error or _OPAQUE & {name_of(command) for command in commands_in(root)}:
        return {}
    deciding = list(_checked_commands(root))
    counts = [found for _, found in called]
    roles = defaultdict[str, set[Decides]](set)
    for command, program in called:
        if command in deciding and not _REWARD.search(text_of(command)):
            roles[program].add(Decides.STATUS)
        if counts.count(program) == 1 and _writes_no_reward(root, command):
            roles[program].add(Decides.REWARD)
    return dict(roles)


def _program(command: Node, beside: Collection[str]) -> str:
    """Return the path of the Python program that a command runs; empty for other commands."""
    words = [text_of(command.child_by_field_name("name")), *map(text_of, arguments_of(command))]
    if words[:1] == ["timeout"]:
        words = words[2:]
    if words and _PYTHON.fullmatch(words[0]):
        words = words[1:]
        while words and _FLAGS.fullmatch(words[0]):
            words = words[1:]
    if not words or not words[0].strip("\"'").endswith(".py"):
        return ""
    text = re.sub(r"^.*[}$)]\w*/", "/", words[0].replace('"', "").replace("'", ""))
    if set("$`*?[\\").intersection(text):
        return ""
    tail = "/" + posixpath.normpath(text).lstrip("./")
    found = [path for path in beside if f"/{path.lstrip('/')}".endswith(tail)]
    return found[0] if len(found) == 1 else ""


def _checked_commands(root: Node) -> Iterator[Node]:
    """Yield the commands that end with 0 in every passing run."""
    for condition in decisive_conditions(root):
        yield from _commands(condition.node, wanted=condition.wanted)
        if (status := _compared_status(condition)) and (
            before := _command_before(condition.node, status, root)
        ):
            yield before


def _commands(node: Node, *, wanted: bool) -> Iterator[Node]:
    node = without_redirects(node)
    if node.type == "negated_command":
        yield from _commands(node.named_children[0], wanted=not wanted)
    elif node.type == "list" and wanted and node.children[1].type == "&&":
        for side in (node.children[0], node.children[-1]):
            yield from _commands(side, wanted=True)
    elif node.type == "command" and wanted:
        yield node


def _compared_status(condition: Condition) -> str:
    """Return the text of what a condition wants to be 0; empty for other conditions."""
    node = without_redirects(condition.node)
    if node.type == "test_command" and node.named_children:
        (inner, *_) = node.named_children
        parts = [text_of(inner.child_by_field_name(field)) for field in ("left", "operator", "right")]
    elif name_of(node) == "test":
        parts = [text_of(one) for one in arguments_of(node)]
    else:
        return ""
    operators = ("-eq", "=", "==") if condition.wanted else ("-ne", "!=", "-gt")
    if len(parts) == 3 and parts[1] in operators and parts[2].strip("\"'") == "0":
        return parts[0]
    return ""


def _command_before(condition: Node, status: str, root: Node) -> Node | None:
    """Return the command whose exit code a condition compares: the one before it or ``name=$?``."""
    if _STATUS.fullmatch(status):
        statement: Node | None = enclosing(condition, "if_statement", "list") or condition
    else:
        found = _VARIABLE.fullmatch(status)
        given = [
            node
            for node in all_nodes(root)
            if node.type == "variable_assignment"
            and found is not None
            and text_of(node.child_by_field_name("name")) == found[1]
        ]
        if len(given) != 1 or not _STATUS.fullmatch(text_of(given[0].child_by_field_name("value"))):
            return None
        statement = given[0]
    before = statement.prev_named_sibling if statement is not None else None
    while before is not None and before.type == "comment":
        before = before.prev_named_sibling
    command = without_redirects(before) if before is not None else None
    return command if command is not None and command.type == "command" else None


def _writes_no_reward(root: Node, program: Node) -> bool:
    """Return whether nothing but a program may write a reward above 0."""
    for node in all_nodes(root):
        if node.named_children or node.type == "comment" or not _REWARD.search(text_of(node)):
            continue
        if enclosing(node, "test_command", "variable_assignment") is not None:
            continue
        statement = enclosing(node, "redirected_statement", "command")
        command = without_redirects(statement) if statement is not None else None
        while command is not None and command.type == "list":  # a redirect is that of its last command
            command = without_redirects(command.children[-1])
        if command is None or command.type != "command":
            return False
        words = [plain_text(one) for one in arguments_of(command)]
        is_zero = name_of(command) in ("echo", "printf") and all(
            word is not None and (_ZERO.fullmatch(word) or word.startswith("-")) for word in words
        )
        if command != program and not is_zero and name_of(command) not in _SHOWING:
            return False
    return True
