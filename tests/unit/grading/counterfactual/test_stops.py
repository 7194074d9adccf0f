"""Lines at which tests stop without a solution, and the mutants that are there."""

from __future__ import annotations

import pytest

from engine.grading.counterfactual.base import Mutant, MutantKind
from engine.grading.counterfactual.stops import at_stops, of_whole_tables, stops

FILES = ("tests/test_a.py", "pkg/tests/test_a.py", "/opt/checks/test_b.py")
OTHERS = (
    "test/price.test.ts",
    "/checks/check.mjs",
    "pkg/words_test.go",
    "src/test/java/a/WordsTest.java",
    "tests/it.rs",
)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("tests/test_a.py:57: AssertionError", {("tests/test_a.py", 57)}),
        ("/testbed/tests/test_a.py:57: assert 3 == 4", {("tests/test_a.py", 57)}),
        ("E   /testbed/tests/test_a.py:57: AssertionError: no", {("tests/test_a.py", 57)}),
        ("tests/test_a.py:12: ", {("tests/test_a.py", 12)}),
        ("./tests/test_a.py:12:", {("tests/test_a.py", 12)}),
        ("pkg/tests/test_a.py:9: KeyError", {("tests/test_a.py", 9), ("pkg/tests/test_a.py", 9)}),
        ('  File "/opt/checks/test_b.py", line 4, in test_it', {("/opt/checks/test_b.py", 4)}),
        ("  /testbed/tests/test_a.py:57: DeprecationWarning: old", set()),
        ("tests/test_a.py::test_it FAILED", set()),
        ("src/test_ab.py:57: AssertionError", set()),
        ("other_tests/test_b.py:57: AssertionError", set()),
    ],
)
def test_stops_are_read_from_tracebacks(line: str, found: set[tuple[str, int]]) -> None:
    assert stops(f"before\n{line}\nafter", FILES) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("      at Object.<anonymous> (test/price.test.ts:5:18)", ("test/price.test.ts", 5)),
        ("    at TestContext.<anonymous> (/testbed/test/price.test.ts:5:10)", ("test/price.test.ts", 5)),
        ("    TestContext.<anonymous> (/testbed/test/price.test.ts:5:10)", ("test/price.test.ts", 5)),  # TAP
        ("  location: '/testbed/test/price.test.ts:2:1'", None),
        (" ❯ test/price.test.ts:12:19", ("test/price.test.ts", 12)),
        ("    at file:///checks/check.mjs:3:8", ("/checks/check.mjs", 3)),
        ("    words_test.go:31: got 3, want 4", ("pkg/words_test.go", 31)),
        ("        \tError Trace:\t/testbed/pkg/words_test.go:31", ("pkg/words_test.go", 31)),
        ("\tat a.WordsTest.joins(WordsTest.java:44)", ("src/test/java/a/WordsTest.java", 44)),
        ("\tat java.base/java.lang.Thread.run(Thread.java:840)", None),
        ("thread 'joins' panicked at tests/it.rs:7:5:", ("tests/it.rs", 7)),
        ("thread 'joins' panicked at 'left, right', tests/it.rs:7:5", ("tests/it.rs", 7)),
        ("    at Object.<anonymous> (/testbed/lib/price.ts:5:18)", None),
    ],
)
def test_stops_of_other_languages(line: str, found: tuple[str, int] | None) -> None:
    assert stops(line, OTHERS) == ({found} if found is not None else set())


def mutant(
    function: str,
    line: int,
    kind: MutantKind = MutantKind.VALUE,
    asserted: int = 0,
    row: int | None = None,
) -> Mutant:
    return Mutant(
        path="t.py", function=function, line=line, kind=kind, asserted=asserted, row=row,
        before="", after="", start=line, end=line, replacement="",
    )  # fmt: skip


FIRST = [mutant("test_1", line) for line in (12, 10, 11)]
SECOND = [mutant("test_2", 1, asserted=20), mutant("test_2", 22), mutant("test_2", 22, MutantKind.CHANGED)]
CHOICE = {("t.py", "test_1"): FIRST, ("t.py", "test_2"): SECOND}
ALL = ({10, 11, 12}, {1, 22})


@pytest.mark.parametrize(
    ("found", "first", "second"),
    [
        (set(), *ALL),
        ({("t.py", 11)}, {11}, ALL[1]),
        ({("t.py", 10), ("t.py", 12)}, {10, 12}, ALL[1]),
        ({("t.py", 20)}, ALL[0], {1}),
        ({("t.py", 21)}, *ALL),
        ({("t.py", 22), ("t.py", 15)}, {12}, {22}),
        ({("t.py", 3), ("u.py", 11)}, *ALL),
    ],
    ids=["none", "at one", "at two", "value elsewhere", "between", "after the last", "elsewhere"],
)
def test_mutants_are_those_where_the_unfixed_code_stops(
    found: set[tuple[str, int]], first: set[int], second: set[int]
) -> None:
    kept = at_stops(CHOICE, dict.fromkeys(found, ()))
    assert {one.line for one in kept["t.py", "test_1"]} == first
    assert {one.line for one in kept["t.py", "test_2"]} == second


def test_order_and_kinds_stay_and_quiet_mutants_are_not_given_up() -> None:
    assert at_stops(CHOICE, {("t.py", 22): ()})["t.py", "test_2"] == SECOND[1:]
    loud = [mutant("test_3", 30), mutant("test_3", 31, MutantKind.CHANGED)]
    for own in (loud, loud[1:], []):
        assert at_stops({("t.py", "test_3"): own}, {("t.py", 31): ()}) == {("t.py", "test_3"): own}


TABLE = [mutant("test_4", 40, asserted=45)]
ROWS = [mutant("test_4", 40 + row, asserted=45, row=row) for row in range(3)]
LOUD = [mutant("test_4", 45, MutantKind.CHANGED)]


@pytest.mark.parametrize(
    ("own", "rows", "kept"),
    [
        ([*TABLE, *ROWS, *LOUD], [1], ROWS[1:2]),
        ([*TABLE, *ROWS, *LOUD], [0, 2], [ROWS[0], ROWS[2]]),
        ([*TABLE, *ROWS, *LOUD], [], [*TABLE, *LOUD]),
        ([*TABLE, *ROWS[:2], *LOUD], [2], [*TABLE, *LOUD]),
        (ROWS, [], ROWS),
    ],
    ids=["one row", "two rows", "unknown row", "row without a mutant", "rows alone"],
)
def test_of_a_table_the_row_that_stops_is_false_alone(
    own: list[Mutant], rows: list[int], kept: list[Mutant]
) -> None:
    assert at_stops({("t.py", "test_4"): own}, {("t.py", 45): rows}) == {("t.py", "test_4"): kept}


def test_without_a_stop_whole_tables_are_false() -> None:
    assert of_whole_tables([*TABLE, *ROWS, *LOUD]) == [*TABLE, *LOUD]
    assert at_stops({("t.py", "test_4"): [*TABLE, *ROWS]}, {}) == {("t.py", "test_4"): TABLE}
