"""Enumeration of faults: every kind, and the properties of all faults of real modules."""

from __future__ import annotations

import ast
import bisect
import inspect
import sysconfig
import textwrap
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from engine.config.curation import FaultKind
from engine.config.recipes import resolve
from engine.datasets.curation.fault_rules import FAMILIES
from engine.datasets.curation.faults import Fault, apply_fault, enumerate_faults, functions_of
from engine.errors import ConfigError
from engine.python_syntax import parse_python

EXAMPLES = {
    "compare_flip": ("if a < b: pass", "if a <= b: pass"),
    "equality_flip": ("if a == b: pass", "if a != b: pass"),
    "identity_flip": ("if a is not None: pass", "if a is None: pass"),
    "membership_flip": ("if a in b: pass", "if a not in b: pass"),
    "arithmetic_swap": ("x = a + b  # sum", "x = a - b  # sum"),
    "augmented_swap": ("a += b", "a -= b"),
    "swapped_operands": ("x = a - b", "x = b - a"),
    "dropped_minus": ("x = -a", "x = a"),
    "boolean_swap": ("x = (a) and (b)", "x = (a) or (b)"),
    "bool_literal": ("x = True", "x = False"),
    "constant_off_by_one": ("x = a + 1", "x = a + 2"),
    "dropped_not": ("if not a: pass", "if a: pass"),
    "added_not": ("while a: pass", "while not a: pass"),
    "swapped_branches": ("x = a if b else c", "x = c if b else a"),
    "range_off_by_one": ("for i in range(a): pass", "for i in range(a - 1): pass"),
    "slice_off_by_one": ("x = a[1:]", "x = a[2:]"),
    "swapped_arguments": ("x = f(a, (b))", "x = f(b, (a))"),
    "swapped_return": ("return a, b", "return b, a"),
    "wrong_variable": ("return a", "return b"),
    "wrong_attribute": ("return self.low + self.high", "return self.high + self.high"),
    "paired_name": ("x = a.lstrip()", "x = a.rstrip()"),
}


def function_with(line: str) -> str:
    return f'def f(self, a, b, c):\n    """Adds 1 < 2 and True."""\n    {line}\n'


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_every_kind_makes_its_documented_edit(kind: str) -> None:
    before, after = EXAMPLES[kind]
    edits = {(f.kind, f.original.strip(), f.mutated.strip()) for f in enumerate_faults(function_with(before))}
    assert (kind, before, after) in edits


@pytest.mark.parametrize("module", [bisect, textwrap])
def test_every_fault_parses_and_differs_in_one_line(module: ModuleType) -> None:
    source = inspect.getsource(module)
    reference = ast.dump(parse_python(source))
    faults = enumerate_faults(source, max_function_lines=60)
    assert len(faults) > 20
    for fault in faults[:: max(1, len(faults) // 25)]:
        mutated = apply_fault(source, fault)
        assert ast.dump(parse_python(mutated)) != reference
        changed = [
            number
            for number, (a, b) in enumerate(
                zip(source.split("\n"), mutated.split("\n"), strict=True), start=1
            )
            if a != b
        ]
        assert changed == [fault.line]
        assert fault.function_first_line <= fault.line <= fault.function_last_line
        assert fault.family == FAMILIES[fault.kind]


def test_docstrings_annotations_decorators_and_logging_are_left_alone() -> None:
    source = textwrap.dedent(
        '''
        @decorate(True, 1 + 2)
        def f(a: "Literal[1]" = None, *, b: int | None = None) -> "x < 3":
            """True and 1 < 2."""
            limit: Annotated[int, 1 < 2] = g()
            logger.warning("%s", a < b)
            __all__ = [a, 1]
            raise ValueError(f"{a + 1}", 1 < 2)
        '''
    )
    lines = {fault.line for fault in enumerate_faults(source)}
    assert lines == set()


def test_faults_apply_with_multibyte_characters_and_crlf_newlines() -> None:
    source = 'def f(a, b):\r\n    return "é→" if a < b else "ü"\r\n'
    fault = next(f for f in enumerate_faults(source) if f.kind == "compare_flip")
    assert fault.mutated == '    return "é→" if a <= b else "ü"'
    assert apply_fault(source, fault) == source.replace("a < b", "a <= b")


def test_methods_are_named_by_class_and_nested_functions_belong_to_the_outer_one() -> None:
    source = (
        "class A:\n    def m(self, x):\n        def inner(y):\n            return y < x\n"
        "        return inner\n"
    )
    assert [f.name for f in functions_of(parse_python(source))] == ["A.m"]
    assert {f.function for f in enumerate_faults(source)} == {"A.m"}


def test_wrong_variable_faults_use_only_names_bound_before() -> None:
    source = "def f(a):\n    x = a\n    later = 1\n    return [item for item in x]\n"
    wrong = [f.mutated.strip() for f in enumerate_faults(source) if f.kind == "wrong_variable"]
    assert "x = later" not in wrong
    assert not any(text.endswith("in item]") for text in wrong)


def test_source_that_does_not_parse_has_no_faults() -> None:
    assert enumerate_faults("def f(:\n") == []


def test_long_functions_are_skipped_on_request() -> None:
    source = "def f(a, b):\n    x = 1\n    return a < b\n"
    assert enumerate_faults(source, max_function_lines=3)
    assert enumerate_faults(source, max_function_lines=2) == []


def test_apply_fault_refuses_another_text() -> None:
    fault = Fault(
        kind="compare_flip", family="comparison", function="f", function_first_line=1,
        function_last_line=2, line=2, original="    return a < b", mutated="    return a <= b",
    )  # fmt: skip
    with pytest.raises(ValueError, match="line 2"):
        apply_fault("def f(a, b):\n    return a\n", fault)


def test_faults_of_real_code_have_exactly_the_configurable_kinds() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    kinds: set[str] = set()
    for name in ("textwrap", "fractions", "cmd", "calendar"):
        source = (library / f"{name}.py").read_text(encoding="utf-8")
        kinds |= {fault.kind for fault in enumerate_faults(source)}
    assert kinds == set(get_args(FaultKind))


def test_config_rejects_unknown_fault_kinds() -> None:
    with pytest.raises(ConfigError, match="fault_kinds"):
        resolve("quickstart-dataset", {"curation.fault_kinds": ["typo"]})
