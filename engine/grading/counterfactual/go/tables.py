"""Tables of cases in Go tests: the expected values of their rows made false.

tests := []struct{ in, want int }{{1, 2}, {in: 3, want: 4}}
for _, tt := range tests { if got := f(tt.in); got != tt.want { t.Errorf(…) } }
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tree_sitter import Node

from engine.grading.counterfactual.base import MutantKind
from engine.grading.counterfactual.go.assertions import Equality, Scope, equalities, scope_of
from engine.grading.counterfactual.go.functions import GoTest, certain_statements, loop_statements
from engine.grading.counterfactual.go.values import leaves
from engine.grading.counterfactual.syntax.literals import Edit, literal_edit
from engine.grading.counterfactual.syntax.mutator import Candidate
from engine.grading.counterfactual.syntax.source import SyntaxSource, all_nodes, text_of

_MAX_LEAVES = 2


@dataclass(frozen=True, slots=True)
class _Table:
    """A loop over a literal table."""

    loop: Node
    literal: Node
    row: str
    """Name of the loop's variable."""


def table_candidates(source: SyntaxSource, test: GoTest) -> Iterator[Candidate]:
    """Yield candidates that change the expected value of every row."""
    scope = scope_of(source, test)
    for table in _tables(test):
        for field in _expected_fields(table, scope):
            for number in range(_MAX_LEAVES):
                edits = [edit for edit in _edits(source, table, field, number) if edit is not None]
                if edits:
                    yield Candidate(
                        kind=MutantKind.VALUE,
                        within=(edits[0].start, edits[-1].end),
                        edits=tuple(replace(edit, before="", after="") for edit in edits),
                    )


def _tables(test: GoTest) -> Iterator[_Table]:
    for statement in certain_statements(test.body, test.context):
        clause = next((one for one in statement.named_children if one.type == "range_clause"), None)
        if statement.type != "for_statement" or clause is None:
            continue
        left, right = clause.child_by_field_name("left"), clause.child_by_field_name("right")
        variables = [text_of(one) for one in left.named_children] if left is not None else []
        if right is None or len(variables) != 2 or variables[1] == "_":
            continue
        literal = _bound_once(test, text_of(right)) if right.type == "identifier" else right
        if literal is not None and literal.type == "composite_literal":
            yield _Table(statement, literal, variables[1])


def _bound_once(test: GoTest, name: str) -> Node | None:
    """Return the literal that a variable stands for; None where it is used for more than one loop."""
    uses = [one for one in all_nodes(test.body) if one.type == "identifier" and text_of(one) == name]
    if len(uses) != 2:
        return None
    statement = uses[0].parent.parent if uses[0].parent is not None else None
    if statement is None or statement.type not in ("short_var_declaration", "var_spec", "var_declaration"):
        statement = uses[0].parent
    if statement is None or statement.type not in ("short_var_declaration", "var_spec"):
        return None
    value = statement.child_by_field_name("right") or statement.child_by_field_name("value")
    return value.named_children[0] if value is not None and len(value.named_children) == 1 else None


def _expected_fields(table: _Table, scope: Scope) -> Iterator[str]:
    """Yield the fields that serve as expected values alone."""
    body = table.loop.child_by_field_name("body")
    if body is None or not _is_used_by_fields(table, body):
        return
    certain: dict[str, list[Equality]] = {}
    for statement, context in loop_statements(body, scope.context):
        for equality in equalities(statement, replace(scope, context=context)):
            for side in (equality.left, equality.right):
                owner, _, field = text_of(side).rpartition(".")
                if owner == table.row and field:
                    certain.setdefault(field, []).append(equality)
    for field, found in certain.items():
        uses = [one for one in all_nodes(body)
                if one.type == "selector_expression" and text_of(one) == f"{table.row}.{field}"]  # fmt: skip
        if all(any(_is_shown_by(use, equality) for equality in found) for use in uses):
            yield field


def _is_used_by_fields(table: _Table, body: Node) -> bool:
    """Return whether nothing but fields of a row is used: who is given a row sees all of it."""
    for node in all_nodes(body):
        if node.type != "identifier" or text_of(node) != table.row or node.parent is None:
            continue
        selector = node.parent
        if selector.type != "selector_expression":
            if not _is_copied(selector, table.row):
                return False
        elif selector.parent is not None and selector.parent.type == "call_expression":
            called = selector.parent.child_by_field_name("function")
            field = text_of(selector.child_by_field_name("field"))
            if called is not None and called.id == selector.id and _place_of(table.literal, field) is None:
                return False
    return True


def _is_copied(names: Node, row: str) -> bool:
    """Return whether a list of names is a side of ``row := row``."""
    statement = names.parent
    return (
        statement is not None
        and statement.type == "short_var_declaration"
        and text_of(statement.child_by_field_name("left")) == row
        and text_of(statement.child_by_field_name("right")) == row
    )


def _is_shown_by(use: Node, equality: Equality) -> bool:
    """Return whether an expression is a side of an equality, or part of its message."""
    if use.id in (equality.left.id, equality.right.id):
        return True
    block = equality.within.child_by_field_name("consequence")
    if block is not None:
        return block.start_byte <= use.start_byte < block.end_byte
    last = max(equality.left.end_byte, equality.right.end_byte)
    return last <= use.start_byte < equality.within.end_byte


def _edits(source: SyntaxSource, table: _Table, field: str, number: int) -> Iterator[Edit | None]:
    body = table.literal.child_by_field_name("body")
    place = _place_of(table.literal, field)
    for element in body.named_children if body is not None else ():
        row = _row_of(element)
        value = _value_in(row, field, place) if row is not None else None
        if value is None:
            continue
        found = list(leaves(value)) if value.type != "literal_value" else []
        if found:
            yield literal_edit(found[min(number, len(found) - 1)], source.words)


def _row_of(element: Node) -> Node | None:
    """Return the fields of a table's element: ``{…}``, ``T{…}`` or the value of a map's key."""
    if element.type == "keyed_element":
        value = element.child_by_field_name("value")
    else:
        value = element if element.type == "literal_element" else None
    if value is not None and value.type == "literal_element" and value.named_children:
        value = value.named_children[0]
    if value is not None and value.type == "unary_expression":
        value = value.named_children[0]
    if value is not None and value.type == "composite_literal":
        value = value.child_by_field_name("body")
    return value if value is not None and value.type == "literal_value" else None


def _value_in(row: Node, field: str, place: int | None) -> Node | None:
    elements = [one for one in row.named_children if one.type != "comment"]
    for element in elements:
        if element.type == "keyed_element" and text_of(element.child_by_field_name("key")) == field:
            return _unwrapped(element.child_by_field_name("value"))
    if place is not None and place < len(elements) and elements[place].type == "literal_element":
        return _unwrapped(elements[place])
    return None


def _unwrapped(node: Node | None) -> Node | None:
    return node.named_children[0] if node is not None and node.type == "literal_element" else node


def _place_of(literal: Node, field: str) -> int | None:
    """Return the place of a field in the anonymous struct of a table's rows."""
    kind = literal.child_by_field_name("type")
    struct = (
        next((one for one in all_nodes(kind) if one.type == "field_declaration_list"), None) if kind else None
    )
    fields: list[str] = []
    for declaration in struct.named_children if struct is not None else ():
        fields += _names_of(declaration)
    return fields.index(field) if field in fields else None


def _names_of(declaration: Node) -> Sequence[str]:
    return [text_of(one) for one in declaration.named_children if one.type == "field_identifier"]
