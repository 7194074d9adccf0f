"""Source text of a test file with its tree-sitter syntax tree; positions are byte offsets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tree_sitter import Language, Node, Parser

from engine.grading.counterfactual.base import Mutant, MutantKind
from engine.grading.counterfactual.syntax.literals import Edit, words_of

_MAX_TEXT = 300
_MAX_BYTES = 2 << 20


class SyntaxSource:
    """A parsed test file.

    Args:
        content: bytes of the file.
        path: path that its mutants name.

    Raises:
        ValueError: the file is not UTF-8 or too long.
    """

    def __init__(self, content: bytes, path: str, language: Language) -> None:
        if len(content) > _MAX_BYTES:
            raise ValueError(f"{path} has {len(content)} bytes; at most {_MAX_BYTES} are parsed")
        content.decode("utf-8")
        self.content = content
        self.path = path
        self.root = Parser(language).parse(content).root_node
        self.words = words_of(content)

    def mutant(
        self, function: str, kind: MutantKind, evidence: tuple[int, int], edits: Sequence[Edit]
    ) -> Mutant:
        """Return the mutant that makes all edits, see ``mutant_of``."""
        return mutant_of(self.content, self.path, function, kind, evidence, edits)


def mutant_of(
    content: bytes,
    path: str,
    function: str,
    kind: MutantKind,
    evidence: tuple[int, int],
    edits: Sequence[Edit],
) -> Mutant:
    """Return the mutant that makes all edits in a file.

    Args:
        evidence: first byte and byte after the last of the statement to show.
    """
    start, end = min(edit.start for edit in edits), max(edit.end for edit in edits)
    first, last = min(evidence[0], start), max(evidence[1], end)
    return Mutant(
        path=path,
        function=function,
        line=content.count(b"\n", 0, start) + 1,
        kind=kind,
        before="" if kind is MutantKind.ADDED else _shown(content[first:last]),
        after=_shown(_edited(content, first, last, edits)).strip(),
        start=start,
        end=end,
        replacement=_edited(content, start, end, edits).decode(),
    )


def _edited(content: bytes, first: int, last: int, edits: Sequence[Edit]) -> bytes:
    parts: list[bytes] = []
    for edit in sorted(edits, key=lambda one: one.start):
        parts += [content[first : edit.start], edit.text.encode()]
        first = edit.end
    return b"".join([*parts, content[first:last]])


def _shown(text: bytes) -> str:
    return text.decode("utf-8", "replace")[:_MAX_TEXT]


def text_of(node: Node | None) -> str:
    """Return the source text of a node; empty for None."""
    return node.text.decode() if node is not None and node.text is not None else ""


def own_nodes(nodes: Sequence[Node], scopes: Collection[str]) -> Iterator[Node]:
    """Yield the nodes and those below them that belong to the same function."""
    stack = list(reversed(nodes))
    while stack:
        node = stack.pop()
        yield node
        if node.type not in scopes:
            stack += reversed(node.children)


def all_nodes(node: Node) -> Iterator[Node]:
    """Yield a node and all below it."""
    return own_nodes([node], ())


def statements_of(block: Node) -> list[Node]:
    """Return the named children of a block that are no comments."""
    return [child for child in block.named_children if "comment" not in child.type]


def is_comparison(node: Node, *operators: str) -> bool:
    """Return whether a node compares two expressions by one of the operators."""
    return node.type == "binary_expression" and text_of(node.child_by_field_name("operator")) in operators
