"""Functions for a model's faults, and the faults read from its answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.datasets.cached_model import NoAnswerError
from engine.datasets.curation.baseline import Baseline
from engine.datasets.curation.candidates import Candidate
from engine.datasets.curation.written.faults import prompt
from engine.datasets.curation.written.functions import find_functions, is_unwritten, read_fault
from engine.datasets.sources.fetch import Source

METHOD = """    @property
    # kept
    def size(self, step: int = 1) -> int:
        \"\"\"Count them,
        in steps.\"\"\"

        total = 0  # default
        for _ in self.items:
            total += step

        return total
"""
MODULE = f"""import os


class Box:
    items = ()

{METHOD}
    async def text(self):
        value = \"\"\"left
of the margin\"\"\"
        return value


def short(): return os.sep


def cached(limit):
    @functools.cache
    def inner(value):
        return value + limit

    return inner


def wide(
    left,
    right,
):
    return left
"""
SHOWN = """@property
# kept
def size(self, step: int = 1) -> int:
    \"\"\"Count them,
    in steps.\"\"\"

    total = 0  # default
    for _ in self.items:
        total += step

    return total
"""


@pytest.fixture
def candidates(tmp_path: Path) -> list[Candidate]:
    (tmp_path / "box.py").write_text(MODULE)
    source = Source(
        spec="toy", name="toy", revision="1", tree=tmp_path, packages=(), roots=(".",), tests=(),
        requirements=(),
    )  # fmt: skip
    lines = dict.fromkeys(range(1, 99), ("t.py::test",))
    baseline = Baseline(
        source=source, image="toy-1", toolchain=tmp_path, seconds={"t.py::test": 0.1},
        executed_by={"box.py": lines},
    )  # fmt: skip
    return find_functions(baseline, max_function_lines=9)


@pytest.fixture
def candidate(candidates: list[Candidate]) -> Candidate:
    return next(item for item in candidates if item.fault.function == "Box.size")


def block(code: str) -> str:
    return f"Sure:\n```python\n{code}```\nDone."


def test_only_functions_whose_body_can_be_replaced_are_shown(
    candidates: list[Candidate], candidate: Candidate
) -> None:
    assert [item.fault.function for item in candidates] == ["cached", "wide", "Box.size"]
    assert all(is_unwritten(item) and item.mutated == MODULE for item in candidates)
    question = prompt(candidate, "", 10_000)[-1]["content"]
    assert f"```python\n{SHOWN}```" in question
    assert "Box.size in box.py" in question
    assert "t.py::test" in question


@pytest.mark.parametrize("size", [3000, 6000])
def test_a_prompt_keeps_to_its_size(candidate: Candidate, size: int) -> None:
    fault = replace(candidate.fault, function="ü" * 5000, original="é = 1\n" * 5000)
    tests = tuple("ö" * 500 + str(number) for number in range(40))
    long = replace(candidate, faults=(fault,), path="ä" * 5000, tests=tests)
    question = prompt(long, "no " * 5000, size)
    assert sum(len(message["content"].encode()) for message in question) <= size


@pytest.mark.parametrize(
    ("old", "new", "line", "original", "mutated"),
    [
        ("total = 0", "total = 1", 13, "        total = 0  # default", "        total = 1  # default"),
        (
            "        total += step\n",
            "        if _:\n            total += step\n",
            15,
            "            total += step",
            "            if _:\n                total += step",
        ),
        (
            "    for _ in self.items:\n        total += step\n\n",
            "",
            14,
            "        for _ in self.items:\n            total += step\n\n        return total",
            "        return total",
        ),
        (
            "    return total\n",
            "    total -= 1\n    return total\n",
            17,
            "        return total",
            "        total -= 1\n        return total",
        ),
    ],
)
def test_a_fault_is_the_changed_lines_in_the_place_of_the_function(
    candidate: Candidate, old: str, new: str, line: int, original: str, mutated: str
) -> None:
    fault = read_fault(block(SHOWN.replace(old, new)), candidate).fault
    assert fault is not None
    assert (fault.line, fault.original, fault.mutated) == (line, original, mutated)
    assert (fault.kind, fault.function, fault.function_first_line) == ("written", "Box.size", 9)
    broken = replace(candidate, faults=(fault,)).mutated
    assert broken == MODULE.replace(original, mutated)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [("@functools.cache", "@functools.lru_cache(1)", 33), ("value + limit", "value - limit", 35)],
)
def test_decorators_of_the_first_statement_belong_to_the_body(
    candidates: list[Candidate], old: str, new: str, line: int
) -> None:
    candidate = next(item for item in candidates if item.fault.function == "cached")
    # Other indentation than the original's.
    answer = "\n".join(
        text.replace("    ", "  ") for text in candidate.fault.original.replace(old, new).split("\n")
    )
    for code in (candidate.fault.original.replace(old, new), answer):
        fault = read_fault(block(code + "\n"), candidate).fault
        assert fault is not None
        assert fault.line <= line
        assert new in fault.mutated


def test_indentation_and_white_space_at_ends_of_lines_are_no_change(candidate: Candidate) -> None:
    answer = METHOD.replace("in steps", "in steps").replace("total = 0  # default", "total = 1")
    fault = read_fault(block(answer.replace("step\n", "step  \n")), candidate).fault
    assert fault is not None
    assert (fault.line, fault.mutated.split("\n")[0]) == (13, "        total = 1")
    assert "        return total" not in fault.original


@pytest.mark.parametrize(
    ("answer", "reason", "detail"),
    [
        (block(SHOWN), "unchanged", "the same as before"),
        (block(SHOWN.replace("# default", "")), "unchanged", "the same as before"),
        (block(SHOWN.replace("step: int = 1", "step: int = 2")), "other_function", "parameters"),
        (block(SHOWN.replace("size", "length")), "other_function", "the same name"),
        (block(SHOWN.replace("@property\n", "")), "other_function", "decorators"),
        (block(SHOWN.replace("in steps", "wrongly")), "other_function", "docstring"),
        (block(SHOWN.replace("def size", "async def size")), "other_function", "the same name"),
        (block("import sys\n\n" + SHOWN), "other_function", "nothing else"),
        (block(SHOWN + "\n\ndef more():\n    pass\n"), "other_function", "nothing else"),
        (block("total = 1\n"), "other_function", "nothing else"),
        (block(""), "other_function", "nothing else"),
        (block(SHOWN.replace("0  # default", "1  # the bug")), "reveals", "# the bug"),
        (block(SHOWN.replace("total = 0", "wrong_total = 0")), "reveals", "'wrong'"),
        (block(SHOWN.replace("total = 0", "total = (0\n" + "+ 1\n" * 12 + ")")), "too_many_lines", "12"),
        (block("def size(self:\n"), "not_written", "not Python"),
        (block("def size(self):\n    return " + "(" * 900 + "\n"), "not_written", "not Python"),
    ],
)  # fmt: skip
def test_other_answers_are_refused_with_the_reason(
    candidate: Candidate, answer: str, reason: str, detail: str
) -> None:
    reading = read_fault(answer, candidate)
    assert reading.fault is None
    assert reading.reason == reason
    assert detail in reading.detail


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("I would rather not.", "no block"),
        (block(SHOWN + "    # x\n" * 1000), "expected at most"),
    ],
)
def test_answers_without_code_of_this_size_are_no_answers(
    candidate: Candidate, answer: str, problem: str
) -> None:
    with pytest.raises(NoAnswerError, match=problem):
        read_fault(answer, candidate)


def test_a_default_is_no_telltale_word(candidate: Candidate) -> None:
    answer = block(SHOWN.replace("total = 0", "default = total = 0"))
    assert read_fault(answer, candidate).fault is not None
