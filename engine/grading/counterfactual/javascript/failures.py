"""Statements of a script that end it badly: at once, or by a variable that decides its exit code later.

``let failures = 0; …; failures++; …; process.exit(failures ? 1 : 0)``
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tree_sitter import Node

from engine.grading.counterfactual.javascript.chains import chain_of
from engine.grading.counterfactual.javascript.functions import FUNCTIONS, SCOPES, certain_statements
from engine.grading.counterfactual.syntax.source import all_nodes, own_nodes, statements_of, text_of

AT_ONCE = ""
"""Mark of what ends a script badly by itself."""
EXIT_CODE = "process.exitCode"
_MAX_DEPTH = 4
_NAMES = frozenset(("identifier", "shorthand_property_identifier", "shorthand_property_identifier_pattern"))
_READ_OF_LIST = frozenset({"push", "length", "join", "map", "forEach", "slice", "entries"})
_FAILING = {"0": frozenset({"++", "+="}), "false": frozenset({"true"}), "true": frozenset({"false"})}
"""First value of a variable → operators or values by which it keeps a failure."""


@dataclass(slots=True)
class Names:
    """Names of a file.

    Args:
        root: the file's syntax tree.
    """

    root: Node
    uses: defaultdict[str, list[Node]] = field(init=False)
    bound: Counter[str] = field(init=False)
    """How often each name is declared: as a variable, function, class, parameter or import."""
    functions: Mapping[str, Node] = field(init=False)
    """Functions of the top level whose name is declared once and never assigned."""

    def __post_init__(self) -> None:
        self.uses, self.bound = defaultdict(list), Counter()
        functions: dict[str, Node] = {}
        for node in all_nodes(self.root):
            if node.type in _NAMES:
                self.uses[text_of(node)].append(node)
                if _is_declared(node):
                    self.bound[text_of(node)] += 1
        for statement in statements_of(self.root):
            functions.update(_declared_functions(statement))
        self.functions = {
            name: node
            for name, node in functions.items()
            if self.bound[name] == 1 and not any(map(_is_written, self.uses[name]))
        }


def _is_declared(name: Node) -> bool:
    """Return whether a name stands where it is declared."""
    if name.type == "shorthand_property_identifier_pattern":
        return True
    node, parent = name, name.parent
    while parent is not None and parent.type.endswith("_pattern"):
        if node in (parent.child_by_field_name("right"), parent.child_by_field_name("key")):
            return False
        node, parent = parent, parent.parent
    if parent is None:
        return False
    if parent.type in ("formal_parameters", "import_clause", "namespace_import", "catch_clause"):
        return True
    if parent.type in ("required_parameter", "optional_parameter"):
        return node == parent.child_by_field_name("pattern")
    if parent.type == "import_specifier":
        return node == (parent.child_by_field_name("alias") or parent.child_by_field_name("name"))
    if parent.type == "for_in_statement":
        return node == parent.child_by_field_name("left")
    if parent.type == "arrow_function":
        return node == parent.child_by_field_name("parameter")
    declares = parent.type == "variable_declarator" or parent.type in SCOPES
    return declares and node == parent.child_by_field_name("name")


def _declared_functions(statement: Node) -> dict[str, Node]:
    if statement.type == "function_declaration":
        return {text_of(statement.child_by_field_name("name")): statement}
    found: dict[str, Node] = {}
    for node in (
        statement.named_children if statement.type in ("lexical_declaration", "variable_declaration") else ()
    ):
        value = node.child_by_field_name("value")
        if value is not None and value.type in FUNCTIONS:
            found[text_of(node.child_by_field_name("name"))] = value
    return found


def _is_written(name: Node) -> bool:
    """Return whether a name stands where it gets another value."""
    node, parent = name, name.parent
    while parent is not None and ("pattern" in parent.type or parent.type == "parenthesized_expression"):
        node, parent = parent, parent.parent
    if parent is None:
        return False
    if parent.type in ("assignment_expression", "augmented_assignment_expression", "for_in_statement"):
        return node == parent.child_by_field_name("left")
    return parent.type == "update_expression"


class Failures:
    """Ways in which a script ends badly.

    Args:
        names: the names of its file.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._kept: dict[str, str | None] = {}

    def marks(self, statements: Sequence[Node], depth: int = 0) -> set[str]:
        """Return how statements end a script badly: ``AT_ONCE``, or variables that keep the failure."""
        found: set[str] = set()
        for node in certain_statements(statements):
            if node.type == "throw_statement":
                found.add(AT_ONCE)
            elif node.type == "expression_statement" and node.named_children:
                found |= self.marks_of(node.named_children[0], depth)
        return found

    def marks_of(self, expression: Node, depth: int = 0) -> set[str]:
        """Return how an expression certainly ends a script badly, as ``marks`` does."""
        name = changed_name(expression)
        if name == EXIT_CODE:
            return {EXIT_CODE} if is_failure(expression.child_by_field_name("right")) else set()
        if name and self.first_value(name) is not None:
            return {name}
        code = exit_argument(expression)
        if code is not None:
            return {AT_ONCE} if is_failure(code[0] if code else None) else set()
        if expression.type != "call_expression" or depth == _MAX_DEPTH:
            return set()
        called = expression.child_by_field_name("function")
        if called is not None and called.type == "member_expression":
            owner = text_of(called.child_by_field_name("object"))
            is_pushed = text_of(called.child_by_field_name("property")) == "push"
            return {owner} if is_pushed and self.first_value(owner) == "[]" else set()
        function = self._names.functions.get(text_of(called))
        body = function.child_by_field_name("body") if function is not None else None
        if function is None or body is None or is_async(function) or body.type != "statement_block":
            return set()
        return self.marks(statements_of(body), depth + 1)

    def first_value(self, name: str) -> str | None:
        """Return the first value of a variable that keeps failures: ``0``, ``false``, ``true`` or ``[]``.

        None for variables that may get it back.
        """
        if name not in self._kept:
            self._kept[name] = self._first_value(name)
        return self._kept[name]

    def _first_value(self, name: str) -> str | None:
        if self._names.bound[name] != 1:
            return None
        first, others = None, []
        for use in self._names.uses[name]:
            parent = use.parent
            if parent is not None and parent.type == "variable_declarator" and _is_declared(use):
                is_top = parent.parent is not None and parent.parent.parent == self._names.root
                first = text_of(parent.child_by_field_name("value")) if is_top else None
            else:
                others.append(use)
        if first == "[]":
            return first if all(map(_only_grows, others)) else None
        if first not in _FAILING:
            return None
        return first if all(not _is_written(use) or _keeps(use, first) for use in others) else None

    def decided(self, statement: Node) -> set[str]:
        """Return the variables whose failure certainly makes a script end badly, by a statement."""
        if statement.type == "if_statement":
            condition = statement.child_by_field_name("condition")
            then, otherwise = branches_of(statement)
            found: set[str] = set()
            for branch, wanted in ((then, True), (otherwise, False)):
                if condition is not None and {AT_ONCE, EXIT_CODE} & self.marks(branch):
                    found |= self._names_with(condition, wanted)
            return found
        if statement.type != "expression_statement" or not statement.named_children:
            return set()
        expression = statement.named_children[0]
        code = exit_argument(expression)
        if code is None and changed_name(expression) == EXIT_CODE:
            code = [one for one in [expression.child_by_field_name("right")] if one is not None]
        return self._decided_by_code(code[0]) if code else set()

    def _decided_by_code(self, code: Node) -> set[str]:
        code = _plain(code)
        if code.type == "ternary_expression":
            condition = code.child_by_field_name("condition")
            found: set[str] = set()
            for side, wanted in (("consequence", True), ("alternative", False)):
                if condition is not None and is_failure(code.child_by_field_name(side)):
                    found |= self._names_with(condition, wanted)
            return found
        text = text_of(code)
        name = text.removesuffix(".length")
        return {name} if self.first_value(name) == ("0" if name == text else "[]") else set()

    def _names_with(self, condition: Node, wanted: bool) -> set[str]:
        """Return the variables that make a condition ``wanted`` once they keep a failure."""
        node = _plain(condition)
        if node.type == "unary_expression" and text_of(node).startswith("!"):
            return self._names_with(node.named_children[-1], not wanted)
        if node.type == "binary_expression":
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            operator = text_of(node.child_by_field_name("operator"))
            if left is None or right is None:
                return set()
            if operator == ("||" if wanted else "&&"):
                return self._names_with(left, wanted) | self._names_with(right, wanted)
            failing = {("0", "==="): False, ("0", "=="): False, ("0", "!=="): True, ("0", "!="): True,
                       ("0", ">"): True, ("1", ">="): True, ("1", "<"): False}  # fmt: skip
            known = failing.get((text_of(right), operator))
            counted = self.first_value(text_of(left).removesuffix(".length")) in ("0", "[]")
            return self._names_with(left, True) if known is wanted and counted else set()
        text = text_of(node)
        name = text.removesuffix(".length")
        first = self.first_value(name)
        if first is None or (first == "[]") != (name != text):
            return set()
        return {name} if wanted is (first != "true") else set()


def branches_of(statement: Node) -> tuple[list[Node], list[Node]]:
    """Return the statements of both branches of a condition."""
    then = statement.child_by_field_name("consequence")
    clause = statement.child_by_field_name("alternative")
    return (
        statements_in(then) if then is not None else [],
        statements_in(clause.named_children[-1]) if clause is not None and clause.named_children else [],
    )


def statements_in(node: Node) -> list[Node]:
    """Return the statements of a block, or the statement itself."""
    return statements_of(node) if node.type == "statement_block" else [node]


def is_async(function: Node) -> bool:
    """Return whether a function returns before its body has run: async ones and generators."""
    return "generator" in function.type or any(child.type in ("async", "*") for child in function.children)


def exit_argument(expression: Node) -> Sequence[Node] | None:
    """Return the arguments of ``process.exit(…)``; None for other expressions."""
    chain = chain_of(expression)
    is_exit = chain.root == "process" and [link.name for link in chain.links] == ["exit"]
    return chain.links[0].arguments if is_exit else None


def is_failure(code: Node | None) -> bool:
    """Return whether an exit code is a constant other than 0."""
    return (
        code is not None
        and code.type == "number"
        and text_of(code).isdigit()
        and int(text_of(code)) % 256 > 0
    )


def changed_name(expression: Node) -> str:
    """Return what an assignment or ``++`` changes, as text; empty for other expressions."""
    if expression.type in ("assignment_expression", "augmented_assignment_expression"):
        return text_of(expression.child_by_field_name("left"))
    if expression.type == "update_expression":
        return text_of(expression.child_by_field_name("argument"))
    return ""


def may_exit_well(node: Node, *, deep: bool) -> list[Node]:
    """Return the calls of ``process.exit`` below a node that may end a script with 0.

    Args:
        deep: whether to look into functions.
    """
    nodes = all_nodes(node) if deep else own_nodes([node], SCOPES)
    return [
        one
        for one in nodes
        if one.type == "call_expression"
        and (code := exit_argument(one)) is not None
        and not is_failure(code[0] if code else None)
    ]


def _keeps(use: Node, first: str) -> bool:
    """Return whether a variable keeps a failure after it was written at a place."""
    statement = use.parent
    if statement is None:
        return False
    right = statement.child_by_field_name("right")
    if statement.type == "update_expression":
        return "++" in _FAILING[first] and "++" in text_of(statement)
    if statement.type == "augmented_assignment_expression":
        operator = text_of(statement.child_by_field_name("operator"))
        return operator in _FAILING[first] and text_of(right).isdigit() and int(text_of(right)) > 0
    if statement.type != "assignment_expression" or right is None:
        return False
    if first == "0":
        return text_of(right).replace(" ", "") == f"{text_of(use)}+1"
    return text_of(right) in _FAILING[first]


def _only_grows(use: Node) -> bool:
    """Return whether a list keeps its elements at a place."""
    parent = use.parent
    if parent is None:
        return False
    if parent.type == "member_expression":
        name = text_of(parent.child_by_field_name("property"))
        return name in _READ_OF_LIST and not _is_written(parent)
    if parent.type == "for_in_statement":
        return use == parent.child_by_field_name("right")
    return parent.type == "template_substitution" or (parent.type == "arguments" and _is_printed(use))


def _is_printed(node: Node) -> bool:
    """Return whether a node stands in the arguments of a method of ``console``."""
    while node.parent is not None and node.type not in SCOPES and not node.type.endswith("_statement"):
        node = node.parent
        if node.type == "call_expression" and chain_of(node).root == "console":
            return True
    return False


def _plain(node: Node) -> Node:
    """Return an expression without parentheses and conversions to a number."""
    while True:
        if node.type == "parenthesized_expression" and node.named_children:
            node = node.named_children[0]
        elif node.type == "call_expression" and text_of(node.child_by_field_name("function")) == "Number":
            arguments = node.child_by_field_name("arguments")
            if arguments is None or len(arguments.named_children) != 1:
                return node
            node = arguments.named_children[0]
        else:
            return node
