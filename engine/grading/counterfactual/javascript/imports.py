"""Names of a JavaScript file that do not stand for the assertions that they name."""

from __future__ import annotations

import functools
import re

from tree_sitter import Node

from engine.grading.counterfactual.javascript import names
from engine.grading.counterfactual.syntax.source import SyntaxSource, all_nodes, text_of

_ASSERTIONS = frozenset({"expect", "assert", "request", *names.BARE_EQUAL})
_MODULE = re.compile(r"(?:\brequire\(|\bimport\(|\bfrom\b|\bimport\b)\s*['\"]([^'\"]+)['\"]")
_PART = re.compile(r"(?:global|globalThis|window|chai|jest|vitest|QUnit|assert|t)\b[\w.]*")
"""Value of a name that is a part of a known library, e.g. ``chai.expect``."""


@functools.lru_cache(maxsize=2)
def own_names(source: SyntaxSource) -> frozenset[str]:
    """Return the names taken from the project, and assertions that the file or unknown packages define."""
    own: set[str] = set()
    for node in all_nodes(source.root):
        if node.type == "import_statement":
            own |= _taken(_identifiers(node), text_of(node))
        elif node.type == "variable_declarator":
            value = text_of(node.child_by_field_name("value"))
            bound = _identifiers(node.child_by_field_name("name"))
            if _MODULE.search(value):
                own |= _taken(bound, value)
            elif not _PART.fullmatch(value):
                own |= bound & _ASSERTIONS
        elif "function_declaration" in node.type:
            own |= {text_of(node.child_by_field_name("name"))} & _ASSERTIONS
    return frozenset(own)


def _taken(bound: set[str], text: str) -> set[str]:
    found = _MODULE.search(text)
    module = found[1] if found else ""
    if module.startswith("."):
        return bound
    return set() if module in names.MODULES else bound & _ASSERTIONS


def _identifiers(node: Node | None) -> set[str]:
    kinds = ("identifier", "shorthand_property_identifier_pattern")
    return {text_of(one) for one in all_nodes(node) if one.type in kinds} if node is not None else set()
