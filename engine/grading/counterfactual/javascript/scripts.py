"""Scripts whose exit code is the verdict: ``node test.js`` with assertions outside of any test.

Counted are the statements that every run executes that ends with 0, in their order, also in functions that
they call. What a promise delays counts only where the module itself awaits it: a script ends with 0 once
nothing is left to do, and so does one whose promise never settles.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tree_sitter import Node

from engine.grading.counterfactual.base import SCRIPT
from engine.grading.counterfactual.javascript.aliases import assertion_names, resolved
from engine.grading.counterfactual.javascript.chains import Chain, after_should, chain_of
from engine.grading.counterfactual.javascript.failures import (
    AT_ONCE,
    EXIT_CODE,
    Failures,
    Names,
    changed_name,
    exit_argument,
    is_async,
    is_failure,
    may_exit_well,
)
from engine.grading.counterfactual.javascript.functions import (
    FUNCTIONS,
    SCOPES,
    followed,
    is_not_empty,
    may_leave,
    registers,
)
from engine.grading.counterfactual.javascript.helpers import ClaimKind, Helpers, claimed_by
from engine.grading.counterfactual.syntax.mutator import SyntaxTest
from engine.grading.counterfactual.syntax.source import SyntaxSource, all_nodes, statements_of, text_of

_MAX_DEPTH = 6
_NO_TESTS = re.compile(r"(?:^|/)(?:fixtures?|__fixtures__|node_modules|snapshots?)/")
"""Folders of files that tests read or convert rather than run."""
_OPAQUE = frozenset({"eval", "domain", "vm", "cluster"})
_READ = frozenset({
    "argv", "env", "cwd", "platform", "stdout", "stderr", "version", "versions", "nextTick", "hrtime", "pid",
    "memoryUsage", "uptime", "arch", "execPath", "execArgv", "release", "chdir",
})  # fmt: skip
"""Members of ``process`` that leave the exit code alone."""
_MAIN = frozenset({"require.main === module", "require.main == module", "module === require.main"})
_AT_ONCE = frozenset({AT_ONCE})


@dataclass(frozen=True, slots=True)
class Step:
    """An expression that every passing run evaluates."""

    order: int
    expression: Node
    awaited: bool
    needs: tuple[frozenset[str], ...]
    """How each handler around it fails, outside in: all must decide for the expression to do so."""


class _EndedError(Exception):
    """The script may end well at a statement."""


@dataclass(slots=True)
class Script:
    """A script with its certain steps.

    Args:
        source: the file.
    """

    source: SyntaxSource
    test: SyntaxTest = field(init=False)
    steps: list[Step] = field(init=False, default_factory=list)
    statements: list[Node] = field(init=False, default_factory=list)
    """Statements of the top level after which others may be added."""
    _names: Names = field(init=False)
    _failures: Failures = field(init=False)
    _helpers: Helpers = field(init=False)
    _assertions: dict[str, str] = field(init=False)
    _decided: list[tuple[int, set[str]]] = field(init=False, default_factory=list)
    _entered: Counter[int] = field(init=False, default_factory=Counter)
    """How often a function's body was noted, by the identity of its node."""
    _exits: set[int] = field(init=False, default_factory=set)
    """Calls of ``process.exit`` at which the steps end."""
    _keeps_code: bool = field(init=False, default=False)
    """Whether ``process.exitCode`` never becomes 0 again."""

    def __post_init__(self) -> None:
        root = self.source.root
        self.test = SyntaxTest(name=SCRIPT, node=root, body=root, title="")
        self._names = Names(root)
        self._failures = Failures(self._names)
        self._assertions = dict(assertion_names(self._names))
        self._helpers = Helpers(self._names, self._failures, self._assertions)
        try:
            for statement in statements_of(root):
                self._walk([statement], (), in_loop=False, depth=0)
                self.statements.append(statement)
        except _EndedError:
            pass
        if self._is_opaque():
            self.steps.clear()
            self.statements.clear()
            return
        decided = [(step, self._decides(step.needs, step.order)) for step in self.steps]
        self.steps = [step for step, decides in decided if decides]

    def asserts(self, step: Step) -> bool:
        """Return whether a step asserts something, by itself or through a helper."""
        chain = self.chain(step)
        return bool(chain.root or after_should(chain) or [*self.compared(step)])

    def chain(self, step: Step) -> Chain:
        """Return the chain of a step's assertion, its root by its own name; without a root for others."""
        chain = chain_of(step.expression)
        return chain if after_should(chain) else resolved(chain, self._assertions)

    def compared(self, step: Step) -> Iterator[tuple[Node, Sequence[Node]]]:
        """Yield the operands that a step's helper certainly compares, with messages that may name them."""
        for given in self._helpers.given(step.expression):
            if self._decides((*step.needs, given.claim.marks), step.order):
                if given.claim.kind is ClaimKind.EQUAL:
                    yield given.argument, given.messages
                elif given.claim.kind is ClaimKind.TRUE:
                    claimed = claimed_by(given.argument, {}, holds=True)
                    yield from ((one, given.messages) for one, kind in claimed if kind is ClaimKind.EQUAL)

    def _decides(self, needs: Sequence[frozenset[str]], order: int) -> bool:
        later = {name for at, names in self._decided if at > order for name in names}
        later |= {EXIT_CODE} if self._keeps_code else set()
        return all(AT_ONCE in one or one & later for one in needs)

    def _walk(
        self,
        statements: Sequence[Node],
        needs: tuple[frozenset[str], ...],
        *,
        in_loop: bool,
        depth: int,
    ) -> None:
        """Note what statements certainly evaluate.

        Args:
            needs: as in ``Step``.

        Raises:
            _EndedError: nothing after them is certain.
        """
        for node in statements:
            inner, within, loops = self._inside(node, needs)
            self._walk(inner, within, in_loop=in_loop or loops, depth=depth)
            if node.type in ("expression_statement", "return_statement") and node.named_children:
                self._evaluate(node.named_children[0], needs, depth)
            if all(one == _AT_ONCE for one in needs):
                self._decided.append((len(self.steps), self._failures.decided(node)))
            own = may_exit_well(node, deep=False)
            self._exits |= {one.id for one in own}
            if own:
                raise _EndedError
            if may_leave(node, in_loop=in_loop):
                return

    def _inside(
        self, node: Node, needs: tuple[frozenset[str], ...]
    ) -> tuple[list[Node], tuple[frozenset[str], ...], bool]:
        """Return the statements that a compound one executes, what they need, and whether it loops."""
        body = node.child_by_field_name("body")
        match node.type:
            case "statement_block":
                return statements_of(node), needs, False
            case "for_in_statement" if body is not None and "of" in [one.type for one in node.children]:
                if is_not_empty(node.child_by_field_name("right")):
                    return _block(body), needs, True
            case "if_statement":
                condition, then = (node.child_by_field_name(one) for one in ("condition", "consequence"))
                if then is not None and text_of(condition).strip("()") in _MAIN:
                    return _block(then), needs, False
            case "try_statement" if body is not None:
                handler, last = (node.child_by_field_name(one) for one in ("handler", "finalizer"))
                if last is not None and may_leave(last, in_loop=True):
                    return [], needs, False
                if handler is None:
                    return statements_of(body), needs, False
                caught = handler.child_by_field_name("body")
                marks = self._failures.marks(statements_of(caught)) if caught is not None else set()
                if marks:
                    return statements_of(body), (*needs, frozenset(marks)), False
        return [], needs, False

    def _evaluate(self, expression: Node, needs: tuple[frozenset[str], ...], depth: int) -> None:
        """Note an expression and what it calls."""
        for one, awaited in followed(expression, awaited=False):
            self.steps.append(Step(len(self.steps), one, awaited, needs))
            if one.type != "call_expression" or depth == _MAX_DEPTH:
                continue
            called = one.child_by_field_name("function")
            waited = _awaited_in_place(called)
            function = waited or self._function(called)
            if function is not None:
                self._enter(function, needs, awaited=awaited or waited is not None, depth=depth)
            for given in self._helpers.given(one):
                if given.claim.kind is ClaimKind.CALLED and given.argument.type in FUNCTIONS:
                    self._enter(given.argument, (*needs, given.claim.marks), awaited=False, depth=depth)

    def _enter(self, function: Node, needs: tuple[frozenset[str], ...], *, awaited: bool, depth: int) -> None:
        """Note what a called function certainly evaluates, one that is async only where it is awaited."""
        body = function.child_by_field_name("body")
        if body is None or "generator" in function.type or (is_async(function) and not awaited):
            return
        self._entered[function.id] += 1
        if body.type == "statement_block":
            self._walk(statements_of(body), needs, in_loop=False, depth=depth + 1)
        else:
            self._evaluate(body, needs, depth + 1)

    def _function(self, called: Node | None) -> Node | None:
        """Return the function that a call runs: one of the file's top level, or one written in its place."""
        while called is not None and called.type == "parenthesized_expression" and called.named_children:
            called = called.named_children[0]
        if called is None or called.type in FUNCTIONS:
            return called
        return self._names.functions.get(text_of(called))

    def _is_opaque(self) -> bool:
        """Return whether the script may end with 0 although one of its steps failed."""
        root = self.source.root
        if (
            self.source.root.has_error
            or _NO_TESTS.search(self.source.path)
            or _OPAQUE & self._names.uses.keys()
        ):
            return True
        exits = may_exit_well(root, deep=True)
        if not all(map(self._is_expected, exits)):
            return True
        codes = [node for node in all_nodes(root) if changed_name(node) == EXIT_CODE]
        decisions = [one for one in codes if not is_failure(one.child_by_field_name("right"))]
        if codes and any(exit_argument(one) for one in exits):
            return True
        if len(decisions) > 1 or not all(self._is_decision(one) for one in decisions):
            return True
        self._keeps_code = not decisions
        return any(not _is_harmless(use) for use in self._names.uses["process"])

    def _is_expected(self, call: Node) -> bool:
        """Return whether an exit runs at the end of the steps, or behind it, alone."""
        node: Node | None = call
        top = call
        while node is not None and node.parent is not None:
            top = node
            if node.type in SCOPES and not self._is_entered_alone(node):
                return False
            node = node.parent
        return call.id in self._exits or all(top != one for one in self.statements)

    def _is_entered_alone(self, function: Node) -> bool:
        """Return whether nothing calls a function but the steps."""
        entered = self._entered[function.id]
        own = [name for name, one in self._names.functions.items() if one == function]
        return entered > 0 and all(len(self._names.uses[name]) == entered + 1 for name in own)

    def _is_decision(self, assignment: Node) -> bool:
        statement = assignment.parent
        return statement is not None and bool(self._failures.decided(statement))


@functools.lru_cache(maxsize=2)
def script_of(source: SyntaxSource) -> Script | None:
    """Return the script that a file is; None where it registers tests, or asserts nothing that decides."""
    if registers(source.root):
        return None
    script = Script(source)
    return script if any(map(script.asserts, script.steps)) else None


def _awaited_in_place(called: Node | None) -> Node | None:
    """Return the function of ``await (async () => {})()`` at the top level.

    The grammar, which knows ``await`` in functions alone, takes it for a function's name there.
    """
    if called is None or text_of(called.child_by_field_name("function")) != "await":
        return None
    arguments = called.child_by_field_name("arguments")
    parts = arguments.named_children if arguments is not None else []
    return parts[0] if len(parts) == 1 and parts[0].type in FUNCTIONS else None


def _block(node: Node) -> list[Node]:
    return statements_of(node) if node.type == "statement_block" else [node]


def _is_harmless(use: Node) -> bool:
    """Return whether a use of ``process`` leaves exits and errors as they are."""
    member = use.parent
    if member is None or member.type != "member_expression":
        return member is not None and member.type in ("import_clause", "import_specifier")
    name = text_of(member.child_by_field_name("property"))
    if name in _READ | {"exit", "exitCode"}:
        return name != "exit" or (member.parent is not None and member.parent.type == "call_expression")
    call = member.parent
    if name != "on" or call is None or call.type != "call_expression":
        return False
    arguments = call.child_by_field_name("arguments")
    event, handler = (*(arguments.named_children if arguments is not None else ()), None, None)[:2]
    is_end = event is not None and handler is not None and text_of(event).strip("'\"") in ("exit", "warning")
    return is_end and handler is not None and handler.type in FUNCTIONS and "process" not in text_of(handler)
