"""Calls recorded while a real pytest runs, repeated, and turned into tests of the same project."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from engine.grading.hardening import literals
from engine.grading.hardening.generated_tests import generated_name, is_comparable, write_test_file
from engine.grading.hardening.inputs import Call, Observation, compared_results, parse_calls, parse_results

SHELF = """
import functools


class ShelfError(ValueError):
    pass


class Book:
    def __init__(self, title):
        self.title = title
        self.key = object()
        self.pages = 3

    def rename(self, title):
        self.title = title
        return self

    def __add__(self, title):
        return NotImplemented if isinstance(title, int) else self.title + title


class Row:
    __slots__ = "books"

    def __init__(self, title):
        self.books = [Book(title)]


def rows(titles):
    return tuple(map(Row, titles))


class Label:
    def text(self, mark="-"):
        return mark * 2

    @property
    def width(self):
        return 4

    @staticmethod
    def of(size):
        return size * 2

    @classmethod
    def named(cls, name):
        return f"{cls.__name__} {name}"


class Shelf:
    def __init__(self, size, *, name="shelf"):
        if size < 0:
            raise ShelfError(size)
        self.size, self._books = size, []

    def add(self, title):
        if len(self._books) == self.size:
            raise ShelfError(title)
        self._books.append(Book(title))

    def first(self):
        return self._books[0]

    def titles(self):
        return (book.title for book in self._books)

    @functools.lru_cache(maxsize=4)
    def area(self, width):
        return width * self.size

    def visit(self, call):
        call(self)

    def __getitem__(self, index):
        return self._books[index].title

    def __repr__(self):
        return f"Shelf({self.size}, {[book.title for book in self._books]})"


_shared = Shelf(9)
total = _shared.area


def parts(text, *, upper=False):
    text = text.upper() if upper else text
    return text.split("-")[1]
"""
TESTS = """
import pytest
from shelves import Label, Shelf, ShelfError, parts, rows, total


@pytest.fixture
def shelf():
    return Shelf(2, name="a")


def test_shelf(shelf):
    shelf.add("x")
    shelf.add("y")
    pytest.raises(ShelfError, shelf.add, "z")
    assert shelf[1] == "y"
    assert shelf.first().rename("w").title == "w"
    assert list(shelf.titles()) == ["w", "y"]
    assert shelf.area(3) == 6
    shelf.visit(print)
    assert shelf[0] == "w"


def test_rest():
    label = Label()
    assert (label.text(), label.width, Label.of(3), Label.named("n")) == ("--", 4, 6, "Label n")
    assert (total(2), parts("a-b")) == (18, "b")


def test_parts_of_results():
    book = rows("ab")[1].books[0]
    assert book + "c" == "bc"
    with pytest.raises(TypeError):
        book + 1
    assert book.rename("d").title == "d"
"""


def repeated(folder: Path, calls: list[dict[str, Any]], *words: str) -> bytes:
    """Return the results of calls in a process of their own."""
    (folder / "calls.jsonl").write_text("\n".join(map(json.dumps, calls)))
    command = [sys.executable, "trainyard_repeat.py", "60", *words]
    subprocess.run(command, cwd=folder, check=True, timeout=60)
    return (folder / "results.jsonl").read_bytes()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a project, its recorded calls and the programs."""
    folder = tmp_path_factory.mktemp("project")
    here = Path(literals.__file__).parent
    programs = {
        "calls": "call_recorder", "repeat": "call_repeater", "literals": "literals", "names": "public_names",
    }  # fmt: skip
    for name, source in programs.items():
        (folder / f"trainyard_{name}.py").write_bytes((here / f"{source}.py").read_bytes())
    (folder / "shelves.py").write_text(SHELF)
    (folder / "test_shelves.py").write_text(TESTS)
    settings = {
        "workdir": str(folder), "roots": ["."], "tests": ["test_shelves.py"], "changed": {},
        "calls": "calls.jsonl", "results": "results.jsonl",
    }  # fmt: skip
    (folder / "trainyard_calls.json").write_text(json.dumps(settings))
    done = run_pytest(folder, "-p", "trainyard_calls", "test_shelves.py")
    assert "3 passed" in done, done
    return folder


def run_pytest(folder: Path, *words: str) -> str:
    """Return what pytest prints."""
    # The environment of these tests names Django settings, which its plugin would import from the folder.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:django", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def recorded(project: Path) -> list[Call]:
    """Return the recorded calls and nearby ones."""
    return parse_calls((project / "calls.jsonl").read_bytes())


@pytest.fixture(scope="module")
def observations(project: Path, recorded: list[Call]) -> list[Observation]:
    """Return results that two processes agree on."""
    lines = lines_of(recorded)
    first, again = (parse_results(repeated(project, lines, *words), recorded) for words in ((), ("later",)))
    return [each for each in first if each in again and is_comparable(each)]


def lines_of(calls: list[Call]) -> list[dict[str, Any]]:
    """Return calls as the recorder writes them."""
    return [{"module": call.module, "steps": list(map(astuple, call.steps))} for call in calls]


def texts(calls: list[Call]) -> set[str]:
    """Return the steps of calls, joined by arrows; ``!`` marks steps whose result is the next object."""
    return {
        " ".join(f"{step.name}{step.arguments}{'!' if step.returns else ''}" for step in call.steps)
        for call in calls
    }


def test_objects_are_recorded_as_tests_build_them(recorded: list[Call]) -> None:
    made = texts([call for call in recorded if not call.nearby])
    added = "Shelf(2,)! add('x',) add('y',)"
    assert made == {
        "Shelf(2,)!", "Shelf(2,)! add('x',)!", f"{added.removesuffix(',)')},)!", f"{added} add('z',)!",
        f"{added} __getitem__(1,)!", f"{added} first()!", f"{added} first()! rename('w',)!",
        f"{added} first() titles()!", f"{added} first() titles() area(3,)!", "Label()! text()!",
        "Label()! text() width!",
        "Label.of(3,)!", "Label.named('n',)!", "total(2,)!", "parts('a-b',)!",
        "rows('ab',)!", *(f"rows('ab',)! __getitem__(1,)! books! __getitem__(0,)! {step}" for step in (
            "__add__('c',)!", "__add__(1,)!", "rename('d',)!",
        )),
    }  # fmt: skip


def test_generated_tests_of_objects_and_exceptions_pass(
    project: Path, observations: list[Observation]
) -> None:
    observations = observations[:200]
    text = write_test_file(observations)
    (project / "test_hardened.py").write_text(text)
    done = run_pytest(project, "test_hardened.py")
    assert f"{len(observations)} passed" in done, done
    lines = {line.strip() for line in text.splitlines()}
    assert {
        "from shelves import ShelfError as Expected", "assert repr(value) == \"Shelf(2, ['x'])\"",
        "assert value.title == 'w'", "value.add('z')", "assert value.__getitem__(1) == 'y'",
        "assert value.width == 4", "assert Label.named('n') == 'Label n'", "value = value.first()",
    } <= lines  # fmt: skip
    assert "pages" not in text, "tests do not read this attribute"
    assert not re.search("IndexError|key", text), "failed operations and addresses are no results"
    assert any(each.form == "raises" and each.call.nearby for each in observations)


def test_observations_that_differ_are_those_whose_tests_fail(
    project: Path, observations: list[Observation]
) -> None:
    some = observations[:60]
    (project / "test_hardened.py").write_text(write_test_file(some))
    try:
        (project / "shelves.py").write_text(SHELF.replace("== self.size", "> self.size"))
        data = repeated(project, lines_of([each.call for each in some]))
        failed = run_pytest(project, "-rf", "--tb=no", "test_hardened.py")
    finally:
        (project / "shelves.py").write_text(SHELF)
    differing = {generated_name(some[position]) for position in compared_results(data, some)[0]}
    assert differing
    assert differing == set(re.findall(r"^FAILED test_hardened.py::(\w+)", failed, re.MULTILINE))


def test_nearby_calls_change_defaults_and_pairs_of_arguments(recorded: list[Call]) -> None:
    changed = {(call.steps[0].arguments, call.steps[0].keywords) for call in recorded if call.name == "parts"}
    assert ("('a-b',)", "{'upper': True}") in changed
    assert any(arguments != "('a-b',)" and keywords != "{}" for arguments, keywords in changed)
