"""Arguments of Rust macros, which the grammar leaves as tokens: parsed again as those of a function."""

from __future__ import annotations

from dataclasses import dataclass

import tree_sitter_rust
from tree_sitter import Language, Node, Parser

from engine.grading.counterfactual.syntax.source import text_of

GRAMMAR = Language(tree_sitter_rust.language())
_BEFORE, _AFTER = b"fn f(){g(", b");}"


@dataclass(frozen=True, slots=True)
class Fragment:
    """A node with the distance of its positions from those in the file."""

    node: Node
    shift: int

    @property
    def text(self) -> str:
        """Return the source text."""
        return text_of(self.node)

    @property
    def start(self) -> int:
        """Return the offset of the first byte in the file."""
        return self.node.start_byte + self.shift

    @property
    def end(self) -> int:
        """Return the offset after the last byte in the file."""
        return self.node.end_byte + self.shift

    def of(self, node: Node) -> Fragment:
        """Return another node of the same fragment."""
        return Fragment(node, self.shift)


def macro_arguments(macro: Fragment) -> list[Fragment]:
    """Return the arguments of a macro's call; none where they are no expressions."""
    tokens = next((child for child in macro.node.named_children if child.type == "token_tree"), None)
    content = tokens.text if tokens is not None else None
    if tokens is None or content is None:
        return []
    root = Parser(GRAMMAR).parse(_BEFORE + content[1:-1] + _AFTER).root_node
    if root.has_error:
        return []
    node: Node | None = root.named_children[0].child_by_field_name("body")
    for kind in ("expression_statement", "call_expression"):
        node = next((child for child in node.named_children if child.type == kind), None) if node else None
    arguments = node.child_by_field_name("arguments") if node is not None else None
    shift = macro.shift + tokens.start_byte + 1 - len(_BEFORE)
    children = arguments.named_children if arguments is not None else []
    return [Fragment(child, shift) for child in children if "comment" not in child.type]
