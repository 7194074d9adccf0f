"""Names of assertions in a file, e.g. ``is`` after ``const { equal: is } = require("assert")``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tree_sitter import Node

from engine.grading.counterfactual.javascript import names
from engine.grading.counterfactual.javascript.chains import Chain
from engine.grading.counterfactual.javascript.failures import Names
from engine.grading.counterfactual.syntax.source import all_nodes, text_of

_REQUIRED = re.compile(r"require\(\s*['\"]([^'\"]+)['\"]\s*\)((?:\.\w+)*)")
_WHOLE = frozenset({"", "default", "strict", "assert", "ok"})
"""What of a package stands for its ``assert`` as a whole."""


def assertion_names(file: Names) -> Mapping[str, str]:
    """Return name → ``assert``, ``expect`` or an equality of ``assert``, for names declared once."""
    found: dict[str, str] = {}
    for node in all_nodes(file.root):
        if node.type == "import_statement":
            found.update(_imported(node))
        elif node.type == "variable_declarator":
            found.update(_required(node, found))
    return {
        name: meaning
        for name, meaning in found.items()
        if meaning and file.bound[name] == 1 and not any(map(_is_replaced, file.uses[name]))
    }


def resolved(chain: Chain, known: Mapping[str, str]) -> Chain:
    """Return a chain with its root's own name; without a root where it is none of the known ones."""
    meaning = known.get(chain.root, "")
    if meaning in names.ASSERT_EQUAL:
        # ``equal`` by itself may be anything elsewhere; here it compares its first two arguments.
        return replace(chain, root="strictEqual" if not chain.links else "")
    return replace(chain, root=meaning)


def _imported(statement: Node) -> dict[str, str]:
    source = statement.child_by_field_name("source")
    if text_of(source).strip("'\"") not in names.MODULES:
        return {}
    found: dict[str, str] = {}
    for node in all_nodes(statement):
        parent = node.parent
        if node.type == "import_specifier":
            name = text_of(node.child_by_field_name("name"))
            found[text_of(node.child_by_field_name("alias")) or name] = _meaning(name)
        elif parent is not None and parent.type in ("import_clause", "namespace_import"):
            found[text_of(node)] = _meaning("default", text_of(source).strip("'\""))
    return found


def _required(declarator: Node, known: Mapping[str, str]) -> dict[str, str]:
    target, value = declarator.child_by_field_name("name"), declarator.child_by_field_name("value")
    matched = _REQUIRED.fullmatch(text_of(value))
    if matched is not None and matched[1] in names.MODULES:
        module, parts = matched[1], matched[2].split(".")[1:]
    else:
        root, *parts = text_of(value).split(".")
        if not parts or known.get(root) != "assert":
            return {}
        module = "assert"
    if len([part for part in parts if part not in ("strict", "default")]) > 1 or target is None:
        return {}
    part = next((part for part in parts if part not in ("strict", "default")), "default")
    if target.type == "identifier":
        return {text_of(target): _meaning(part, module)}
    if target.type != "object_pattern" or part not in _WHOLE:
        return {}
    found: dict[str, str] = {}
    for child in target.named_children:
        if child.type == "shorthand_property_identifier_pattern":
            found[text_of(child)] = _meaning(text_of(child))
        elif child.type == "pair_pattern":
            name = child.child_by_field_name("value")
            if name is not None and name.type == "identifier":
                found[text_of(name)] = _meaning(text_of(child.child_by_field_name("key")))
    return found


def _meaning(part: str, module: str = "assert") -> str:
    """Return what a part of a package stands for; empty where it is not known."""
    if part == "default" and not re.fullmatch(r"(?:node:|power-|uvu/)?assert(?:/strict)?", module):
        return "expect" if module in ("expect", "expect.js") else ""
    if part in _WHOLE:
        return "assert"
    return part if part in names.ASSERT_EQUAL or part == "expect" else ""


def _is_replaced(use: Node) -> bool:
    """Return whether a name or one of its members gets another value at a place."""
    node = use
    while node.parent is not None and node.parent.type == "member_expression":
        node = node.parent
    parent = node.parent
    return (
        parent is not None
        and parent.type == "assignment_expression"
        and node == parent.child_by_field_name("left")
    )
