"""False versions of Rust assertions.

``assert_eq!`` and ``assert_ne!`` both call ``==``, so each is the exact opposite of the other. Constants
inside of types that a solution may define are left alone: their equality may ignore them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tree_sitter import Node

from engine.grading.counterfactual.base import MutantKind
from engine.grading.counterfactual.rust.functions import certain_expressions
from engine.grading.counterfactual.rust.macros import Fragment, macro_arguments
from engine.grading.counterfactual.syntax.bindings import ExpectedNames, declared
from engine.grading.counterfactual.syntax.literals import Edit, is_literal, literal_edit
from engine.grading.counterfactual.syntax.mutator import Candidate, SyntaxTest
from engine.grading.counterfactual.syntax.source import SyntaxSource, text_of

_CRATES = frozenset({"", "std", "core", "pretty_assertions", "similar_asserts"})
_OWN = re.compile(
    rb"^[ \t]*(?:pub\b\S*[ \t]+)?use\s+(?!(?:::)?(?:std|core|alloc|pretty_assertions|similar_asserts)\b)"
    rb"([\w\s:{},*]+);|macro_rules!\s*(\w+)",
    re.MULTILINE,
)
"""Names that other crates or the file define: they may take the place of the standard library's."""
_WRAPPERS = frozenset({"Some", "Ok", "Err", "String::from", "Box::new", "Vec::from"})
_CONVERSIONS = frozenset({"to_string", "to_owned", "to_vec", "as_bytes", "as_str", "as_slice"})
"""Methods of literals with results of a known type: those of ``into`` and ``as_ref`` may be a solution's."""
_OPPOSITES = {"is_some": "is_none", "is_none": "is_some", "is_ok": "is_err", "is_err": "is_ok"}
_TESTED = frozenset({
    "call_expression", "identifier", "field_expression", "macro_invocation", "index_expression",
    "parenthesized_expression",
})  # fmt: skip


def changed_candidates(source: SyntaxSource, test: SyntaxTest) -> Iterator[Candidate]:
    """Yield candidates of the assertions that every passing run executes: values first, then opposites."""
    own = {
        name.decode()
        for found in _OWN.findall(source.content)
        for name in re.findall(rb"\w+", b" ".join(found))
    }
    macros = [
        (name, node, macro_arguments(Fragment(node, 0)))
        for node in certain_expressions(test.body)
        if node.type == "macro_invocation"
        for crate, _, name in (text_of(node.child_by_field_name("macro")).rpartition("::"),)
        if crate in _CRATES and name not in own
    ]
    if own & {"String", "Box", "Vec", "Some", "Ok", "Err"}:
        return
    equalities = [
        (node, sides, messages)
        for name, node, arguments in macros
        for sides, messages in _equalities(name, arguments)
    ]
    expected = _expected_names(test, equalities)
    for node, sides, messages in equalities:
        for side in sides:
            name = side.text.lstrip("&")
            is_formatted = re.search(rf"\{{{re.escape(name)}\b", text_of(test.body)) is not None
            same = sides[0].text == sides[1].text
            bound = None if same or is_formatted else expected.value_of(name)
            value = side if bound is None else Fragment(bound, 0)
            within = node if bound is None else bound.parent or bound
            for leaf in leaves(value):
                edit = literal_edit(leaf.node, source.words, leaf.shift)
                if edit is not None:
                    yield _candidate(MutantKind.VALUE, within, edit, messages if bound is None else ())
    for name, node, arguments in macros:
        yield from _opposites(name, node, arguments)


def _equalities(
    name: str, arguments: Sequence[Fragment]
) -> Iterator[tuple[tuple[Fragment, Fragment], Sequence[Fragment]]]:
    """Yield the two sides of ``assert_eq!(a, b)`` and ``assert!(a == b)``, and the messages."""
    if name == "assert_eq" and len(arguments) >= 2:
        yield (arguments[0], arguments[1]), arguments[2:]
    elif name == "assert" and arguments and arguments[0].node.type == "binary_expression":
        condition = arguments[0]
        if text_of(condition.node.child_by_field_name("operator")) == "==":
            left, right = (condition.node.child_by_field_name(side) for side in ("left", "right"))
            if left is not None and right is not None:
                yield (condition.of(left), condition.of(right)), arguments[1:]


def _expected_names(
    test: SyntaxTest, equalities: Sequence[tuple[Node, tuple[Fragment, Fragment], Sequence[Fragment]]]
) -> ExpectedNames:
    expected = ExpectedNames(test.body, declared("let_declaration", "pattern"))
    for _, sides, messages in equalities:
        for side in sides:
            start = side.end - len(side.text.lstrip("&").encode())
            expected.compared((start, side.end), (start, side.end))
        for message in messages:
            expected.shown(message.start, message.end)
    return expected


def leaves(value: Fragment) -> Iterator[Fragment]:
    """Yield the literals of a value, each of which decides alone whether the whole is equal."""
    node = value.node
    children = [child for child in node.named_children if "comment" not in child.type]
    if is_literal(node):
        yield value
    elif (node.type == "unary_expression" and value.text.startswith("-")) or node.type in (
        "reference_expression", "parenthesized_expression",
    ):  # fmt: skip
        yield from leaves(value.of(children[-1]))
    elif node.type in ("array_expression", "tuple_expression") and ";" not in [
        one.type for one in node.children
    ]:
        for child in children:
            yield from leaves(value.of(child))
    elif node.type == "macro_invocation" and text_of(node.child_by_field_name("macro")) == "vec":
        for argument in macro_arguments(value):
            yield from leaves(argument)
    elif node.type == "call_expression":
        yield from _wrapped(value)


def _wrapped(call: Fragment) -> Iterator[Fragment]:
    """Yield the literals in ``Some(3)`` and ``"text".to_string()``."""
    function = call.node.child_by_field_name("function")
    arguments = call.node.child_by_field_name("arguments")
    if function is None or arguments is None:
        return
    if text_of(function) in _WRAPPERS and len(arguments.named_children) == 1:
        yield from leaves(call.of(arguments.named_children[0]))
    elif function.type == "field_expression" and not arguments.named_children:
        owner = function.child_by_field_name("value")
        if owner is not None and text_of(function.child_by_field_name("field")) in _CONVERSIONS:
            yield from leaves(call.of(owner))


def _opposites(name: str, node: Node, arguments: Sequence[Fragment]) -> Iterator[Candidate]:
    macro = node.child_by_field_name("macro")
    if macro is None or not arguments:
        return
    if name in ("assert_eq", "assert_ne") and len(arguments) >= 2:
        if name == "assert_ne" or not any(True for one in arguments[:2] for _ in leaves(one)):
            other = "assert_ne" if name == "assert_eq" else "assert_eq"
            yield _candidate(MutantKind.VALUE, node, Edit(macro.end_byte - len(name), macro.end_byte, other))
    elif name == "assert":
        yield from _other_condition(node, arguments[0])


def _other_condition(node: Node, condition: Fragment) -> Iterator[Candidate]:
    inner = condition.node
    function = inner.child_by_field_name("function")
    field = function.child_by_field_name("field") if function is not None else None
    if field is not None and text_of(field) in _OPPOSITES:
        edit = Edit(
            field.start_byte + condition.shift, field.end_byte + condition.shift, _OPPOSITES[text_of(field)]
        )
        yield _candidate(MutantKind.VALUE, node, edit)
    elif inner.type == "unary_expression" and condition.text.startswith("!"):
        first = condition.of(inner.named_children[0])
        yield _candidate(MutantKind.VALUE, node, Edit(condition.start, first.start, ""))
    elif inner.type in _TESTED:
        yield _candidate(MutantKind.VALUE, node, Edit(condition.start, condition.start, "!"))
    elif inner.type == "binary_expression":
        edit = Edit(condition.start, condition.end, f"!({condition.text})")
        yield _candidate(MutantKind.CHANGED, node, edit)


def _candidate(kind: MutantKind, within: Node, edit: Edit, messages: Sequence[Fragment] = ()) -> Candidate:
    return Candidate(
        kind=kind,
        within=within.byte_range,
        edits=(edit,),
        messages=tuple((one.start, one.text) for one in messages if is_literal(one.node)),
    )
