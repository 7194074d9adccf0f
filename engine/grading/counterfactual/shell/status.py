"""Variables that keep a failure until the end of a script: ``ok=1; check || ok=0; …; [ $ok = 1 ] && …``."""

from __future__ import annotations

import re
from collections.abc import Collection

from tree_sitter import Node

from engine.grading.counterfactual.shell.nodes import (
    arguments_of,
    is_read,
    name_of,
    plain_text,
    without_redirects,
)
from engine.grading.counterfactual.syntax.source import all_nodes, text_of

_EXPANDED = re.compile(r"\"?\$\{?(\w+)\}?\"?")
_EQUAL, _UNEQUAL = frozenset({"=", "==", "-eq"}), frozenset({"!=", "-ne", "-gt"})


def keeps_failure(root: Node, name: str) -> bool:
    """Return whether a variable gets one value, then nothing but one other, or ever greater numbers."""
    assignments = [
        node
        for node in all_nodes(root)
        if node.type == "variable_assignment" and text_of(node.child_by_field_name("name")) == name
    ]
    others = {text_of(node.child_by_field_name("value")) for node in assignments[1:]}
    first = first_value(root, name)
    is_counted = first == "0" and all(_is_increment(text, name) for text in others)
    return (
        first is not None
        and bool(others)
        and (is_counted or (len(others) == 1 and all(re.fullmatch(r"\"?\w+\"?", text) for text in others)))
        and first not in {text.strip('"') for text in others}
        and all(
            node.type == "variable_name" and is_read(node)
            for node in all_nodes(root)
            if node.type in ("variable_name", "word") and text_of(node) == name
        )
    )


def first_value(root: Node, name: str) -> str | None:
    """Return the constant that a variable is at first, at the top of the script; None without one."""
    for node in all_nodes(root):
        if node.type == "variable_assignment" and text_of(node.child_by_field_name("name")) == name:
            value = node.child_by_field_name("value")
            is_top = node.parent is not None and node.parent.type == "program"
            return plain_text(value) if value is not None and is_top else None
    return None


def is_assignment(node: Node, names: Collection[str]) -> bool:
    """Return whether a statement sets one of the variables."""
    return node.type == "variable_assignment" and text_of(node.child_by_field_name("name")) in names


def exit_variable(node: Node) -> str:
    """Return the variable that a statement exits with; empty for other statements."""
    words = [text_of(one) for one in arguments_of(node)] if name_of(node) == "exit" else []
    found = _EXPANDED.fullmatch(words[0]) if len(words) == 1 else None
    return found[1] if found else ""


def unchanged_variable(root: Node, condition: Node, *, wanted: bool) -> str:
    """Return the variable that a condition wants to be what it was at first; empty for other conditions."""
    node = without_redirects(condition)
    while wanted and node.type == "list" and node.children[1].type == "&&":
        node = without_redirects(node.children[0])
    if node.type == "test_command" and node.named_children:
        (inner, *_) = node.named_children
        parts = [inner.child_by_field_name(field) for field in ("left", "operator", "right")]
    elif name_of(node) == "test":
        parts = [*arguments_of(node)]
    else:
        return ""
    if len(parts) != 3 or None in parts:
        return ""
    left, operator, right = map(text_of, parts)
    found = _EXPANDED.fullmatch(left)
    if found is None or operator not in (_EQUAL if wanted else _UNEQUAL):
        return ""
    return found[1] if first_value(root, found[1]) == right.strip("\"'") else ""


def _is_increment(value: str, name: str) -> bool:
    return re.fullmatch(rf"\$\(\(\s*\$?{re.escape(name)}\s*\+\s*1\s*\)\)", value) is not None
