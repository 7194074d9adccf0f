"""False versions of Java assertions: other constants, opposite assertions, unrelated exceptions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from engine.grading.counterfactual.base import MutantKind
from engine.grading.counterfactual.java import names
from engine.grading.counterfactual.java.functions import JavaTest, certain_expressions
from engine.grading.counterfactual.syntax.bindings import ExpectedNames, declared
from engine.grading.counterfactual.syntax.literals import (
    Edit,
    is_literal,
    is_text,
    literal_edit,
    number_of,
)
from engine.grading.counterfactual.syntax.mutator import Candidate
from engine.grading.counterfactual.syntax.source import SyntaxSource, text_of

_FOREIGN = re.compile(
    rb"import\s+(?!java\.|com\.google\.common\.)[\w.]+\.(?:%s)\s*;"
    % b"|".join(sorted({one.split(".")[0].encode() for one in names.COLLECTIONS}))
)
"""Classes of other libraries with the names of known collections: nothing is known of their equality."""
_STATIC_IMPORT = re.compile(rb"import\s+static\s+[\w.]*?(\w+)\.(\w+|\*)\s*;")


@dataclass(frozen=True, slots=True)
class _Equality:
    """Expressions that an assertion compares, with what else it is given."""

    sides: tuple[Node, ...]
    within: Node
    messages: tuple[Node, ...] = ()
    delta: Node | None = None


def changed_candidates(source: SyntaxSource, test: JavaTest) -> Iterator[Candidate]:
    """Yield candidates of the assertions that every passing run executes: values first, then opposites."""
    if test.expected is not None:
        yield from _exception(test.expected, test.expected)
        return
    if b"ExpectedException" in source.content and re.search(r"\.\s*expect\w*\(", text_of(test.body)):
        return  # the statements after the one that raises do not run
    if _FOREIGN.search(source.content):
        return
    expressions = [
        one
        for one, group in certain_expressions(test)
        if _is_known_call(source, one) and (group is None or _is_known_call(source, group))
    ]
    equalities = [one for expression in expressions for one in _equalities(source, expression)]
    expected = _expected_names(test, equalities)
    for one in equalities:
        for side in one.sides:
            if len({text_of(other) for other in one.sides}) == len(one.sides):
                yield from _values(source, one, side, expected.value_of(text_of(side)))
    for expression in expressions:
        yield from _thrown(expression)
    for expression in expressions:
        yield from _opposites(source, expression)


def _values(source: SyntaxSource, one: _Equality, side: Node, bound: Node | None) -> Iterator[Candidate]:
    for leaf in leaves(bound or side):
        edit = literal_edit(leaf, source.words)
        if edit is None or not _is_beyond(leaf, edit, one.delta):
            continue
        if bound is not None:
            yield _candidate(bound.parent or bound, edit)
        else:
            yield _candidate(one.within, edit, one.messages)


def _expected_names(test: JavaTest, equalities: Sequence[_Equality]) -> ExpectedNames:
    expected = ExpectedNames(test.body, declared("variable_declarator"))
    for one in equalities:
        for side in one.sides:
            expected.compared(side.byte_range, side.byte_range)
        for message in one.messages:
            expected.shown(*message.byte_range)
    return expected


def _is_beyond(leaf: Node, edit: Edit, delta: Node | None) -> bool:
    """Return whether an edit changes a number by more than an assertion tolerates."""
    if delta is None:
        return True
    tolerated, old = number_of(delta), number_of(leaf)
    try:
        new = float(re.sub(r"[_a-zA-Z]+$", "", edit.text))
    except ValueError:
        return False
    return tolerated is not None and old is not None and abs(new - old) > 2 * tolerated


def _equalities(source: SyntaxSource, expression: Node) -> Iterator[_Equality]:
    name, arguments = _call(expression)
    if name in names.EQUAL:
        yield from _compared(source, expression, arguments)
    elif name == "assertTrue" and arguments:
        for argument in arguments:
            yield from (_Equality(sides, expression) for sides in _equal_condition(argument))
    elif name == "assertThat" and len(arguments) in (2, 3):
        yield from _matched(source, expression, arguments[-1])
    for link, values in _chain(expression):
        if len(values) > 1 and not text_of(link).startswith("contains"):
            return  # the second argument is a tolerance
        if text_of(link) in names.CHAIN_EQUAL:
            yield from (_Equality((value,), expression) for value in values)


def _compared(source: SyntaxSource, expression: Node, arguments: Sequence[Node]) -> Iterator[_Equality]:
    """Yield the compared arguments, with or without a message and a tolerance.

    Three arguments hold a message only where one is a text: else the last may be a tolerance.
    """
    message_last = any(name in source.content for name in (b"org.junit.jupiter", b"org.testng"))
    messages: tuple[Node, ...] = ()
    if len(arguments) == 4 or (len(arguments) == 3 and any(map(_is_message, arguments))):
        if message_last:
            messages, arguments = (arguments[-1],), arguments[:-1]
        else:
            messages, arguments = (arguments[0],), arguments[1:]
    if len(arguments) == 2:
        yield _Equality(tuple(arguments), expression, messages)
    elif len(arguments) == 3 and number_of(arguments[2]) is not None:
        yield _Equality(tuple(arguments[:2]), expression, messages, arguments[2])


def _is_message(argument: Node) -> bool:
    """Return whether an argument is certainly a text, or the supplier of one: ``"a" + x``, ``() -> "a"``."""
    if argument.type == "binary_expression" and text_of(argument.child_by_field_name("operator")) == "+":
        return any(map(_is_message, argument.named_children))
    return is_text(argument) or argument.type == "lambda_expression"


def _equal_condition(condition: Node) -> Iterator[tuple[Node, ...]]:
    """Yield the sides of ``a == 3``, and of ``"b".equals(a)`` the one whose equality is known."""
    if condition.type == "binary_expression" and text_of(condition.child_by_field_name("operator")) == "==":
        sides = tuple(condition.named_children)
        if len(sides) == 2 and not any(map(is_text, sides)):
            yield sides
    name, arguments = _call(condition)
    owner = condition.child_by_field_name("object") if name == "equals" else None
    if owner is not None and len(arguments) == 1:
        yield (owner,)


def _matched(source: SyntaxSource, expression: Node, matcher: Node) -> Iterator[_Equality]:
    if not _is_known_name(source, matcher, names.MATCHER_CLASSES):
        return
    name, arguments = _call(matcher)
    while name == "is" and len(arguments) == 1 and _call(arguments[0])[0] in names.MATCHERS:
        name, arguments = _call(arguments[0])
    if name in names.MATCHERS and len(arguments) == 1:
        yield _Equality((arguments[0],), expression)


def _call(node: Node) -> tuple[str, list[Node]]:
    """Return name and arguments of a method's call; an empty name for other nodes."""
    arguments = node.child_by_field_name("arguments") if node.type == "method_invocation" else None
    if arguments is None:
        return "", []
    children = [child for child in arguments.named_children if "comment" not in child.type]
    return text_of(node.child_by_field_name("name")), children


def _chain(expression: Node) -> list[tuple[Node, list[Node]]]:
    """Return the links behind ``assertThat(x)`` with their arguments; none where the chain is not strict."""
    links: list[tuple[Node, list[Node]]] = []
    node: Node | None = expression
    while node is not None and node.type == "method_invocation":
        name, arguments = _call(node)
        owner = node.child_by_field_name("object")
        if name == "assertThat" and len(arguments) == 1 and (owner is None or owner.type == "identifier"):
            return links[::-1]
        if names.LOOSE.search(name) or (own := node.child_by_field_name("name")) is None:
            return []
        links.append((own, arguments))
        node = owner
    return []


def _thrown(expression: Node) -> Iterator[Candidate]:
    """Yield assertions that expect an unrelated exception."""
    name, arguments = _call(expression)
    if name in ("assertThrows", "assertThrowsExactly") and arguments:
        yield from _exception(arguments[0], expression)
    node: Node | None = expression
    while node is not None and node.type == "method_invocation":
        inner, arguments = _call(node)
        root = text_of(node.child_by_field_name("object"))
        if (
            inner in ("isInstanceOf", "isExactlyInstanceOf")
            and root.startswith("assertThatThrownBy(")
            and arguments
        ):
            yield from _exception(arguments[0], expression)
        node = node.child_by_field_name("object")


def _exception(expected: Node, within: Node) -> Iterator[Candidate]:
    other = names.EXCEPTIONS.get(text_of(expected).removesuffix(".class"))
    if expected.type == "class_literal" and other is not None:
        yield _candidate(within, Edit(expected.start_byte, expected.end_byte, f"{other}.class"))


def _opposites(source: SyntaxSource, expression: Node) -> Iterator[Candidate]:
    name, arguments = _call(expression)
    function = expression.child_by_field_name("name")
    other = names.OPPOSITES.get(name, "")
    if (
        not other
        and name in names.EQUAL
        and len(arguments) == 2
        and b"org.testng" not in source.content  # whose two functions compare iterables differently
        and not any(_is_known(one) for one in arguments)
    ):
        other = names.EQUAL[name]
    if other and function is not None and _is_available(source, expression, name, other):
        yield _candidate(expression, Edit(function.start_byte, function.end_byte, other))
    links = _chain(expression)
    if links:
        link, values = links[-1]
        other = names.CHAIN_OPPOSITES.get(text_of(link), "")
        if text_of(link) == "isEqualTo" and not any(map(_is_known, values)):
            other = "isNotEqualTo"
        is_truth = b"com.google.common.truth" in source.content and text_of(link) in names.NOT_OF_TRUTH
        if other and len(values) <= 1 and not is_truth:
            yield _candidate(expression, Edit(link.start_byte, link.end_byte, other))


def _is_known(value: Node) -> bool:
    return next(leaves(value), None) is not None


def _is_known_call(source: SyntaxSource, expression: Node) -> bool:
    """Return whether the assertion that an expression begins with is one of a known library."""
    call, owner = expression, expression.child_by_field_name("object")
    while owner is not None and owner.type == "method_invocation":
        call, owner = owner, owner.child_by_field_name("object")
    if owner is not None:
        return text_of(owner).rpartition(".")[2] in names.CLASSES
    imported = _imported(source)
    if text_of(call.child_by_field_name("name")) in [what for _, what in imported]:
        return _is_known_name(source, call, names.CLASSES)
    bases = {text_of(one).removeprefix("extends").strip() for one in _bases(call)}
    known = bases <= {"TestCase", "junit.framework.TestCase"}  # others may define assertions of that name
    starred = any(of in names.CLASSES and what == "*" for of, what in imported)
    return known and (starred or bool(bases)) and _is_known_name(source, call, names.CLASSES)


def _is_known_name(source: SyntaxSource, call: Node, classes: Collection[str]) -> bool:
    """Return whether a called function is not one of the file itself or imported from another class."""
    owner = call.child_by_field_name("object")
    if owner is not None:
        return text_of(owner).rpartition(".")[2] in classes
    name = text_of(call.child_by_field_name("name"))
    named = [of for of, what in _imported(source) if what == name]
    if named:
        return set(classes).issuperset(named)
    own = rf"\b\w+\s+{re.escape(name)}\s*\([^)]*\)[^;{{}}]*\{{".encode()
    return re.search(own, source.content) is None


def _imported(source: SyntaxSource) -> list[tuple[str, str]]:
    """Return class and name of each static import."""
    return [(of.decode(), what.decode()) for of, what in _STATIC_IMPORT.findall(source.content)]


def _bases(node: Node) -> Iterator[Node]:
    """Yield the superclasses and interfaces of the classes around a node."""
    above = node.parent
    while above is not None:
        if above.type in ("class_declaration", "record_declaration"):
            yield from (
                one for part in ("superclass", "interfaces") if (one := above.child_by_field_name(part))
            )
        above = above.parent


def _is_available(source: SyntaxSource, call: Node, name: str, other: str) -> bool:
    """Return whether another assertion may be called as this one is."""
    if call.child_by_field_name("object") is not None:
        return True
    imported = {what for _, what in _imported(source)}
    return other in imported or name not in imported


def leaves(node: Node) -> Iterator[Node]:
    """Yield the literals of a value, each of which decides alone whether the whole is equal."""
    if is_literal(node):
        yield node
    elif node.type == "unary_expression" and text_of(node).startswith("-"):
        yield from leaves(node.named_children[0])
    elif node.type in ("parenthesized_expression", "cast_expression"):
        yield from leaves(node.named_children[-1])
    elif node.type == "binary_expression" and text_of(node.child_by_field_name("operator")) == "+":
        yield from (one for part in node.named_children for one in leaves(part) if is_text(one))
    elif node.type == "array_creation_expression":
        body = node.child_by_field_name("value")
        yield from leaves(body) if body is not None else ()
    elif node.type == "array_initializer":
        for child in node.named_children:
            yield from leaves(child)
    elif node.type == "method_invocation":
        name, arguments = _call(node)
        if f"{text_of(node.child_by_field_name('object'))}.{name}" in names.COLLECTIONS:
            for argument in arguments:
                yield from leaves(argument)


def _candidate(within: Node, edit: Edit, messages: Sequence[Node] = ()) -> Candidate:
    return Candidate(
        kind=MutantKind.VALUE,
        within=within.byte_range,
        edits=(edit,),
        messages=tuple((one.start_byte, text_of(one)) for one in messages if is_text(one)),
    )
