"""Bounds of literals, nearby inputs, and generated test files."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.grading.hardening.generated_tests import generated_name, is_comparable, write_test_file
from engine.grading.hardening.inputs import (
    Call,
    Observation,
    Step,
    compared_results,
    nearby_values,
    parse_calls,
    parse_results,
)
from engine.grading.hardening.literals import MAX_BITS, MAX_CHARS, NotLiteralError, render
from engine.grading.hardening.public_names import PublicNames
from engine.grading.hardening.recording import Observed, changed_functions, constants_of
from engine.grading.hardening.trial import (
    Hardening,
    choose_candidates,
    choose_tests,
    hardened_row,
    preferences,
)
from engine.patches.trees import FileState
from tests.builders.rollout_builders import make_row

ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


class Forged(str):
    """Text whose representation is code."""

    def __repr__(self) -> str:
        return "__import__('os').system('true')"


def observation(value: str, *, nearby: bool = False, arguments: str = "(1,)") -> Observation:
    call = Call("pkg.mod", (Step("func", arguments, "{'key': 'x'}"),), nearby)
    return Observation(call, value)


@pytest.mark.parametrize(
    "value",
    [None, True, -3, 1.5, -0.0, "a'\"\\\n\ud800é", b"\x00", [], (), (1,), {1, 2}, set(), {"a": [(None,)]}],
)
def test_literals_are_read_back_as_they_were(value: object) -> None:
    text = render(value)
    assert text.isascii()
    assert ast.literal_eval(text) == value


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), float("inf"), [float("-inf")], Forged("x"), [Forged("x")], {"k": Forged("x")}, object(),
        2**MAX_BITS, "x" * (MAX_CHARS + 1), ["x" * 900] * 4, [0] * 300, [[[[[[[1]]]]]]], ENDLESS, range(3),
        frozenset({1}), 1j, sys, "\u0416" * (MAX_CHARS // 2),
    ],
)  # fmt: skip
def test_other_and_huge_values_have_no_literal(value: object) -> None:
    with pytest.raises(NotLiteralError):
        render(value)


def test_equal_sets_have_equal_literals() -> None:
    assert render({str(number) for number in range(50)}) == render(
        {str(number) for number in range(49, -1, -1)}
    )


def line(*steps: object, module: object = "pkg.mod") -> bytes:
    return json.dumps({"module": module, "steps": steps, "defaults": "{}"}).encode()


def test_hostile_records_are_left_out() -> None:
    good = ["func", "(1,)", "{'key': 'x'}", True]
    odd: list[object] = [[], 3, {}, {"module": "m", "steps": {}}]
    bad = [
        json.dumps(value).encode() for value in odd
    ] + [
        line(), line(good, module="pkg; import os"), line(good, module="__main__"), line(good, module=3),
        line([5, *good[1:]]), line("abcd"), line([*good, 1]), line(*[good] * 9),
        line(good, ["a.b", *good[1:]]),
        line(good, ["__class__", *good[1:]]), line(["__call__", *good[1:]]),
        *(line([name, *good[1:]]) for name in ("f()", "f\n", "a.b.c", "list", "pytest", "value", "_f")),
        *(line(["func", text, "{}", True]) for text in ("(open('x'),)", "[1]", "(" * 5000, "(1e999,)")),
        *(line(["func", "()", text, True]) for text in (
            "{'class': 1}", "{1: 1}", "{'a b': 1}", "{'__debug__': 1}", "{'__\uff44ebug__': 1}", "",
        )),
    ]  # fmt: skip
    calls = parse_calls(b"\n".join([b"\xff{", *bad, line(good), line(good), b"[" * 100_000]))
    step = Step("func", "(1,)", "{'key': 'x'}")
    assert [call for call in calls if not call.nearby] == [Call("pkg.mod", (step,))]
    assert any(call.steps[0].arguments == "(2,)" for call in calls)


def test_hostile_results_are_left_out() -> None:
    calls = parse_calls(line(["func", "(1,)", "{}", True]))
    good = {"number": 0, "value": "{3, 1}", "form": "value", "of_object": True}
    bad = [
        {**good, "value": "f()"}, {**good, "number": -1}, {**good, "number": 10**9}, {**good, "number": True},
        {**good, "form": "code"}, {**good, "form": []}, {**good, "form": "repr"},
        *({**good, "form": "raises", "value": repr(name)} for name in (
            "os", "a b:C", "builtins:C()", "builtins:__import__('os')", "m:a.b", "m:\nC", 3,
        )),
        *({**good, "form": "attributes", "value": text} for text in ("{}", "[]", "{'a.b': 1}", "{'a()': 1}")),
    ]  # fmt: skip
    results = [*bad, good, {**good, "value": "2"}]
    data = b"\n".join(json.dumps(item).encode() for item in results)
    assert parse_results(data, calls) == [Observation(calls[0], "{1, 3}")]


def test_nearby_inputs_take_arguments_of_other_calls() -> None:
    calls = [("('a',)", "{}"), ("('b',)", "{'mode': 'php'}")]
    data = b"\n".join(line(["f", arguments, keywords, True], module="m") for arguments, keywords in calls)
    found = {(call.steps[0].arguments, call.steps[0].keywords) for call in parse_calls(data)}
    assert {("('a',)", "{'mode': 'php'}"), ("('b',)", "{}")} & found
    assert ("('',)", "{}") in found
    assert nearby_values(None) == []
    assert nearby_values([3]) == [[3, 3], [], [], [3], [4], [2]]


def test_generated_tests_have_literals_only() -> None:
    hostile = observation(render('"""\n\nimport os\n'))
    tested = [hostile, observation("None", arguments="()"), observation("0.1", arguments="(2,)")]
    tree = ast.parse(write_test_file(tested))
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert names == [generated_name(each) for each in tested]
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"pkg.mod"}
    texts = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert texts[1:] == ["assert func(key='x') is None", "assert func(2, key='x') == pytest.approx(0.1)"]
    assert [is_comparable(observation(value)) for value in ("0.1", "[0.1]", "[1]")] == [True, False, True]
    described = [replace(observation(repr(text)), form="repr") for text in ("<A at 0x7f>", "A(0.5)", "A(5)")]
    assert list(map(is_comparable, described)) == [False, False, True]


def test_few_tests_of_recorded_inputs_are_chosen() -> None:
    observations = [observation("1", arguments=f"({number},)", nearby=number > 2) for number in range(5)]
    zero, one, two, near, other = observations

    def chosen(
        *differing: set[Observation], changed: Sequence[Observation], limit: int = 9
    ) -> list[Observation]:
        ranks = preferences(Observed(3, observations, changed))
        return choose_tests(choose_candidates(ranks, differing, 9), ranks, differing, limit)

    assert chosen({near, other}, {near}, changed=[near, other]) == [near]
    assert chosen({near, other}, {near}, changed=[near]) == [other, near]
    assert chosen({near, one}, {near}, set(), changed=[]) == [one, near]
    assert chosen({zero, one, two}, changed=[], limit=2) == [zero, one]
    assert chosen(set(), changed=[]) == []
    ranks = preferences(Observed(3, observations))
    assert choose_candidates(ranks, [{near, other}, {two}], 2) == [near, two]


def test_exceptions_of_nearby_inputs_are_chosen_where_one_is_recorded() -> None:
    def raising(number: int, error: str, *, nearby: bool = True) -> Observation:
        return replace(observation(repr(error), arguments=f"({number},)", nearby=nearby), form="raises")

    seen = raising(1, "builtins:ValueError", nearby=False)
    same, other = raising(2, "builtins:ValueError"), raising(3, "builtins:KeyError")
    observations = [seen, same, other]
    assert preferences(Observed(1, observations, changed=observations)) == {seen: 0, same: 2}
    assert preferences(Observed(1, observations, changed=[seen])) == {seen: 0, same: 1, other: 1}


def test_changed_functions_include_their_decorators() -> None:
    before = {
        "m.py": FileState(0o100644, b"A = 1\n\n\n@deco\ndef f():\n    return 1\n\n\ndef g():\n    return 2\n")
    }
    after = {
        "m.py": FileState(0o100644, before["m.py"].data.replace(b"return 1", b"return 3")),
        "n.py": FileState(0o100644, b"def (:"),
        "same.py": FileState(0o100644, b""),
    }
    assert changed_functions({**before, "same.py": after["same.py"]}, after) == {"m.py": [(4, 6)], "n.py": []}


def test_constants_of_changed_functions_become_arguments() -> None:
    source = (
        b'def f(x):\n    """Text."""\n    return x + 7 if x > "mark" else True\n\n\ndef g():\n    return 9\n'
    )
    constants = constants_of(
        {"m.py": FileState(0o100644, source), "n.py": FileState(0, b"(")}, {"m.py": [(1, 3)], "n.py": []}
    )
    assert sorted(map(str, constants)) == ["7", "mark"]
    calls = parse_calls(line(["f", "('a', 1)", "{}", True]), constants)
    arguments = {call.steps[0].arguments for call in calls}
    assert {"('mark', 1)", "('amark', 1)", "('a', 7)", "('a', 8)", "('a', 6)"} <= arguments


def test_floats_within_the_tolerance_of_tests_do_not_differ() -> None:
    expected = [observation("0.1"), observation("2.5"), observation("[1]"), observation("'x'")]
    values = ["0.10000000001", "2.6", "[1]"]
    data = b"\n".join(
        json.dumps({"number": number, "form": "value", "value": value, "of_object": False}).encode()
        for number, value in enumerate(values)
    )
    assert compared_results(data, expected)[0] == [1]
    assert compared_results(data + b'\n{"number": 3}', expected)[0] == [1, 3]


def test_earlier_hardening_is_kept_in_the_metadata() -> None:
    first = hardened_row(make_row(), Hardening(path="a.py", text="", pass_to_pass=("a.py::a",)))
    second = hardened_row(first, Hardening(path="b.py", text="", pass_to_pass=("b.py::b",)))
    record = second.answer.metadata["hardening"]
    assert (record["of"], record["pass_to_pass"]) == (first.task.id, ["b.py::b"])
    assert record["earlier"] == first.answer.metadata["hardening"]


def test_public_names_survive_attributes_that_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lazily.py").write_text(
        "class Lazy:\n    def __getattr__(self, name):\n        raise RuntimeError(name)\n\n\n"
        "lazy = Lazy()\n\n\ndef double(value):\n    return value * 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    lazily = importlib.import_module("lazily")
    try:
        names = PublicNames(f"{tmp_path}/", [])
        names.update()
    finally:
        sys.modules.pop("lazily")
    assert names.functions[lazily.double.__code__][:2] == ("lazily", "double")
