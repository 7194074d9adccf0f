"""Nodes of bash's grammar: commands with their words, and texts without expansions."""

from __future__ import annotations

from collections.abc import Iterator

import tree_sitter_bash
from tree_sitter import Language, Node

from engine.grading.counterfactual.syntax.source import all_nodes, text_of

GRAMMAR = Language(tree_sitter_bash.language())
_PLAIN = frozenset({"word", "number", "raw_string", "string", "extglob_pattern"})
_ESCAPING = frozenset("\\$`*?[]{}~")


def name_of(node: Node) -> str:
    """Return the name of a command; empty for other nodes."""
    return text_of(node.child_by_field_name("name")) if node.type == "command" else ""


def arguments_of(command: Node) -> list[Node]:
    """Return the arguments of a command."""
    return command.children_by_field_name("argument")


def commands_in(node: Node) -> Iterator[Node]:
    """Yield the commands in a node, itself included."""
    return (one for one in all_nodes(node) if one.type == "command")


def plain_text(node: Node) -> str | None:
    """Return the value of a word without expansions, escapes and patterns; None for other nodes."""
    if node.type not in _PLAIN:
        return None
    text = text_of(node)
    if node.type == "raw_string":
        return text[1:-1]
    if node.type == "string":
        text = text[1:-1]
        return None if set("\\$`").intersection(text) else text
    return None if _ESCAPING.intersection(text) else text


def without_redirects(node: Node) -> Node:
    """Return the statement whose input or output a redirection moves; the node itself without one."""
    while node.type == "redirected_statement" and (body := node.child_by_field_name("body")) is not None:
        node = body
    return node


def written_files(command: Node) -> list[str]:
    """Return the texts of the files to which a command's output goes, ``/dev/null`` left out.

    In the grammar's trees the redirection of a list's last command is the whole list's.
    """
    found: list[str] = []
    node, is_own = command, True
    while (parent := node.parent) is not None and parent.type != "function_definition":
        if parent.type == "redirected_statement":
            found += [
                text for text in map(_target, parent.children_by_field_name("redirect")) if is_own and text
            ]
            is_own = True
        elif parent.type == "list":
            is_own = is_own and parent.children[-1] == node
        else:
            is_own = True
        node = parent
    return found


def _target(redirect: Node) -> str:
    """Return the file that a redirection writes, empty for others."""
    if redirect.type != "file_redirect":
        return ""
    target = text_of(redirect.child_by_field_name("destination"))
    operators = {child.type for child in redirect.children}
    return "" if operators & {"<", "<&", ">&", ">&-"} or target == "/dev/null" else target


def is_read(variable: Node) -> bool:
    """Return whether a variable's name stands where its value is taken or assigned by ``=``."""
    parent = variable.parent
    if parent is not None and parent.type == "binary_expression" and parent.parent is not None:
        return parent.parent.type == "arithmetic_expansion"
    return parent is not None and parent.type in ("simple_expansion", "expansion", "variable_assignment")


def enclosing(node: Node, *types: str) -> Node | None:
    """Return the innermost node of these types that holds a node, or is it; None without one."""
    found: Node | None = node
    while found is not None and found.type not in types:
        found = found.parent
    return found
