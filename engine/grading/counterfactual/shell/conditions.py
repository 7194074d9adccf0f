"""Conditions on which the success of a shell script depends, whoever's work it tests.

A condition is decisive where every passing run tests it, and where a run that finds it otherwise cannot pass:
it ends at once by a constant failure, keeps one until its end (``status``), or does nothing but fail from
there on. So nothing counts that stands in a loop, in a branch that a passing run may leave out, or behind a
command that may end the script well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from engine.grading.counterfactual.shell.nodes import (
    arguments_of,
    commands_in,
    name_of,
    plain_text,
    without_redirects,
    written_files,
)
from engine.grading.counterfactual.shell.status import (
    exit_variable,
    is_assignment,
    keeps_failure,
    unchanged_variable,
)
from engine.grading.counterfactual.syntax.source import all_nodes, text_of

_HARMLESS = frozenset({
    "echo", "printf", "cat", "mkdir", "touch", "rm", "chmod", "sleep", "date", "true", ":", "sync",
    "diff", "cmp", "head", "tail", "wc", "ls",
})  # fmt: skip
"""Commands that decide nothing."""
_TRUSTED = _HARMLESS | {"exit", "test", "[", "diff", "cmp", "grep", "sort", "set", "exec", "return"}
"""Commands that mean what they are called, unless a script defines them."""
_OPAQUE = frozenset({"trap", "eval", "alias", "source", ".", "enable", "shopt", "unalias", "hash"})
"""Commands after which a script may mean anything."""
_ENDS = frozenset({"exit", "exec", "return"})
_ZERO = re.compile(r"0(?:\.0*)?(?:\\n)?")
_ONE = re.compile(r"1(?:\.0*)?(?:\\n)?")
_PARAMETERS = re.compile(r'"?(?:[^\\\\$`"\'*?\[]|\$[1-9]|\$\{[1-9]\})*"?')
_STATEMENTS_END = frozenset({"elif_clause", "else_clause", "fi"})


@dataclass(frozen=True, slots=True)
class Condition:
    """A command whose exit code decides."""

    node: Node
    wanted: bool
    """Whether it succeeds in every passing run."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """A condition and what follows on it."""

    condition: Node
    then: Sequence[Node] | None = None
    otherwise: Sequence[Node] | None = None


def decisive_conditions(root: Node) -> list[Condition]:
    """Return the decisive conditions of a script, in its order."""
    statements = statements_in(root)
    script = _Script(root)
    if script.is_opaque or not statements:
        return []
    status = exit_variable(statements[-1])
    ending = script.conditions(statements[:-1] if status else statements, is_last=True)
    names = {status, *(unchanged_variable(root, one.node, wanted=one.wanted) for one in ending)} - {""}
    kept = frozenset(name for name in names if keeps_failure(root, name))
    return list(_Script(root, kept).conditions(statements, is_last=True))


def statements_in(block: Node) -> list[Node]:
    """Return the statements of a block; those in the background are left out."""
    found = []
    for child in block.named_children:
        following = child.next_sibling
        if child.type != "comment" and (following is None or following.type != "&"):
            found.append(child)
    return found


class _Script:
    """A script.

    Args:
        kept: variables that keep a failure until the script's end.
    """

    def __init__(self, root: Node, kept: Collection[str] = ()) -> None:
        self._kept = kept
        self._functions = {
            text_of(node.child_by_field_name("name")): body
            for node in all_nodes(root)
            if node.type == "function_definition" and (body := node.child_by_field_name("body")) is not None
        }
        names = {name_of(command) for command in commands_in(root)}
        defined = _TRUSTED.intersection(self._functions)
        self.is_opaque = root.has_error or bool(names & _OPAQUE or defined)
        self._stops = False
        """Whether a command that fails ends the script."""
        self._passed = False
        """Whether an earlier statement may have written a reward."""

    def conditions(self, statements: Sequence[Node], *, is_last: bool) -> Iterator[Condition]:
        """Yield the decisive conditions of statements that every passing run executes.

        Args:
            is_last: whether nothing but constant statements without success follows.
        """
        for at, node in enumerate(statements):
            if node.type == "function_definition":
                continue
            self._note_settings(node)
            rest = statements[at + 1 :]
            last = is_last and self._is_constant(rest) and not self._passes(rest)
            choice = self._choice(node, is_final=is_last and not rest)
            if choice is not None:
                yield from self._decided(choice, is_last=last)
            if self._may_end_well(node):
                return
            tees = any(name_of(command) == "tee" for command in commands_in(node))
            self._passed = self._passed or tees or self._writes(node, _ONE)

    def _decided(self, choice: _Choice, *, is_last: bool) -> Iterator[Condition]:
        for wanted, taken, other in (
            (True, choice.then, choice.otherwise),
            (False, choice.otherwise, choice.then),
        ):
            fails = other is not None and self._fails(other) and (is_last or self._ends(other))
            if not fails and is_last and not self._passed and taken is not None:
                # Success can only come from the other branch.
                fails = self._passes(taken) and (
                    other is None or (self._is_constant(other) and not self._passes(other))
                )
            if fails:
                yield Condition(choice.condition, wanted)
                yield from self.conditions(taken or (), is_last=is_last)
                return

    def _note_settings(self, node: Node) -> None:
        for command in commands_in(node):
            if name_of(command) == "set":
                words = " ".join(text_of(one) for one in arguments_of(command))
                if re.search(r"(?:^|\s)-\w*e|-o errexit", words):
                    self._stops = command.parent is not None and command.parent.type == "program"
                if re.search(r"(?:^|\s)\+\w*e|\+o errexit", words):
                    self._stops = False

    def _choice(self, node: Node, *, is_final: bool) -> _Choice | None:
        inner = without_redirects(node)
        if inner.type == "if_statement":
            return _choice_of_if(inner)
        if inner.type == "list":
            left, operator, right = inner.children[0], inner.children[1], inner.children[-1]
            if operator.type == "||":
                return _Choice(left, otherwise=_block(right))
            return _Choice(left, then=_block(right))
        if inner.type in ("test_command", "command", "pipeline") and (self._stops or is_final):
            return _Choice(node, otherwise=())
        return None

    def _fails(self, statements: Sequence[Node]) -> bool:
        """Return whether statements do nothing but fail; none at all stand for the end of a script."""
        if not statements:
            return True
        if not self._is_constant(statements) or self._passes(statements):
            return False
        exits = [command for command in self._exits(statements) if _is_failing(command)]
        return bool(exits) or any(self._writes(node, _ZERO) or self._keeps(node) for node in statements)

    def _ends(self, statements: Sequence[Node]) -> bool:
        """Return whether statements end the script in any case, or decide how it ends."""
        return not statements or any(
            name_of(node) == "exit"
            or self._keeps(node)
            or (name_of(node) in self._functions and self._ends(self._called(node)))
            for node in map(without_redirects, statements)
        )

    def _keeps(self, node: Node) -> bool:
        """Return whether a statement sets a variable that keeps a failure, directly or by a function."""
        command = without_redirects(node)
        body = self._called(command) if name_of(command) in self._functions else [command]
        return any(is_assignment(one, self._kept) for one in body)

    def _passes(self, statements: Sequence[Node]) -> bool:
        """Return whether statements may write a reward or end well."""
        return any(self._may_end_well(node) or self._writes(node, _ONE) for node in statements)

    def _exits(self, statements: Sequence[Node]) -> Iterator[Node]:
        for node in statements:
            for command in commands_in(node):
                if name_of(command) in _ENDS:
                    yield command
                elif name_of(command) in self._functions:
                    yield from self._exits(self._called(command))

    def _called(self, command: Node) -> list[Node]:
        """Return the statements of a called function; none where it calls others."""
        body = self._functions[name_of(command)]
        calls = {name_of(one) for one in commands_in(body)} & set(self._functions)
        return [] if calls else statements_in(body)

    def _may_end_well(self, node: Node) -> bool:
        if node.type == "function_definition":
            return False
        for command in commands_in(node):
            name = name_of(command)
            if name in _ENDS and not _is_failing(command) and not self._follows_zero(command):
                return True
            if name in self._functions and not (self._writes(command, _ZERO) or self._always_fails(command)):
                return True
        return False

    def _always_fails(self, command: Node) -> bool:
        """Return whether a called function ends the script by failures alone, if at all."""
        body = self._functions[name_of(command)]
        inner = list(commands_in(body))
        if any(name_of(one) in self._functions for one in inner):
            return False
        ends = [one for one in inner if name_of(one) in ("exit", "exec")]
        return all(_is_failing(one) or self._follows_zero(one) for one in ends)

    def _follows_zero(self, command: Node) -> bool:
        """Return whether a reward of 0 is written right before, in the same block."""
        node: Node | None = command
        while node is not None and node.parent is not None and node.parent.type == "redirected_statement":
            node = node.parent
        before = node.prev_named_sibling if node is not None else None
        while before is not None:
            if self._writes(before, _ZERO):
                return True
            before = before.prev_named_sibling
        return False

    def _writes(self, node: Node, number: re.Pattern[str]) -> bool:
        """Return whether a number may be written to a file, directly or by a function."""
        for command in commands_in(node):
            given = _has(arguments_of(command), number)
            if given and name_of(command) in ("echo", "printf") and written_files(command):
                return True
            if name_of(command) in self._functions:
                body = self._called(command)
                if any(self._writes(inner, number) for inner in body):
                    return True
                if given and any(map(_writes_parameter, body)):
                    return True
        return False

    def _is_constant(self, statements: Sequence[Node]) -> bool:
        """Return whether statements do the same in every run: they show something, write a number, exit."""
        return all(self._is_constant_statement(node) for node in statements)

    def _is_constant_statement(self, node: Node) -> bool:
        if node.type == "function_definition" or is_assignment(node, self._kept):
            return True
        command = without_redirects(node)
        name = name_of(command)
        if name in self._functions:
            called = self._called(command)
            written = any(map(_writes_parameter, called))
            given = all(map(_is_constant_word, arguments_of(command)))
            return bool(called) and (given or not written) and self._is_constant(called)
        if name == "exit":
            return all(map(_is_constant_word, arguments_of(command)))
        if name not in _HARMLESS:
            return False
        return not written_files(command) or all(map(_is_constant_word, arguments_of(command)))


def _choice_of_if(node: Node) -> _Choice | None:
    condition = [one for one in node.children_by_field_name("condition") if one.is_named]
    parts = {child.type: child for child in node.children}
    if len(condition) != 1 or "elif_clause" in parts or "then" not in parts:
        return None
    after = parts["then"].end_byte
    before = min(child.start_byte for child in node.children if child.type in _STATEMENTS_END)
    then = [one for one in statements_in(node) if after <= one.start_byte < before]
    clause = parts.get("else_clause")
    return _Choice(condition[0], then, statements_in(clause) if clause is not None else None)


def _block(node: Node) -> list[Node]:
    return statements_in(node) if node.type == "compound_statement" else [node]


def _is_failing(command: Node) -> bool:
    """Return whether a command ends the script with a constant exit code other than 0."""
    codes = [plain_text(one) for one in arguments_of(command)]
    return (
        name_of(command) == "exit"
        and len(codes) == 1
        and re.fullmatch(r"[1-9]\d*", codes[0] or "") is not None
    )


def _has(words: Sequence[Node], number: re.Pattern[str]) -> bool:
    texts = map(plain_text, words)
    return any(text is not None and number.fullmatch(text) for text in texts)


def _is_constant_word(node: Node) -> bool:
    """Return whether a word is the same in every run; parameters are what a constant call gives."""
    return plain_text(node) is not None or _PARAMETERS.fullmatch(text_of(node)) is not None


def _writes_parameter(node: Node) -> bool:
    command = without_redirects(node)
    return bool(written_files(command)) and any(
        plain_text(one) is None and _is_constant_word(one) for one in arguments_of(command)
    )
