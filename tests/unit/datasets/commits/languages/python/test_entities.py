"""Changed functions, classes and methods of a file."""

from __future__ import annotations

import pytest

from engine.datasets.commits.languages.base import EntityChange
from engine.datasets.commits.languages.python.entities import changed_entities
from engine.errors import HostileInputError

OLD = '''"""Numbers."""
LIMIT = 3

def double(x):
    """Return twice x."""
    return x + x

class Counter:
    def add(self, n):
        self.total += n
'''


def test_changed_added_and_removed_entities_are_named() -> None:
    new = (
        OLD.replace("x + x", "2 * x").replace("def add", "def increase")
        + "\ndef half(x):\n    return x / 2\n"
    )
    change = changed_entities(OLD, new)
    assert change == EntityChange(
        added=("Counter.increase", "half"), removed=("Counter.add",), changed=("double",)
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return x + x", "return (x  +  x)  # twice"),
        ('"""Return twice x."""', '"""Return the double of x."""'),
        ('"""Numbers."""', '"""Arithmetic."""'),
        ('    """Return twice x."""\n', ""),
    ],
)
def test_comments_docstrings_and_formatting_are_no_change(old: str, new: str) -> None:
    assert not changed_entities(OLD, OLD.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("LIMIT = 3", "LIMIT = 4", "<module>"),
        ("class Counter:", "class Counter(dict):", "Counter"),
        ("self.total += n", "self.total -= n", "Counter.add"),
    ],
)
def test_statements_outside_of_functions_belong_to_their_scope(old: str, new: str, name: str) -> None:
    assert changed_entities(OLD, OLD.replace(old, new)).changed == (name,)


def test_a_new_file_adds_its_entities() -> None:
    assert changed_entities("", OLD).added == ("double", "Counter.add", "Counter")


def test_files_of_another_language_version_are_refused() -> None:
    with pytest.raises(SyntaxError):
        changed_entities("print 'hello'\n", OLD)


def test_hostile_sources_end_their_own_process() -> None:
    with pytest.raises((HostileInputError, SyntaxError)):
        changed_entities("", "(" * 200_000)


def test_entities_of_one_name_do_not_hide_each_other() -> None:
    getter = "class A:\n    @property\n    def x(self):\n        return 1\n"
    old = f"{getter}\n    @x.setter\n    def x(self, v):\n        pass\n"
    assert changed_entities(old, old.replace("return 1", "return 2")).changed == ("A.x",)
