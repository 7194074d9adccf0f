"""Parsing of untrusted Python sources: beside other parsing, and errors."""

from __future__ import annotations

import ast
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.python_syntax import parse_python, python_literal

SOURCE = "".join(f"def f{n}(a):\n    return [a * ({n} + (a - {n})) for a in (1, 2)]\n" for n in range(200))


@pytest.fixture
def collections_switch_threads() -> Iterator[None]:
    """Switch threads at every garbage collection, which also happens while a tree is being built."""

    def switch(_phase: str, _info: dict[str, int]) -> None:
        time.sleep(0)

    before = gc.get_threshold()
    gc.callbacks.append(switch)
    gc.set_threshold(200)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(switch)


@pytest.mark.usefixtures("collections_switch_threads")
def test_threads_parse_concurrently() -> None:
    start = threading.Barrier(4)

    def parse(_: int) -> int:
        start.wait(timeout=60)
        return sum(len(parse_python(SOURCE).body) for _ in range(10))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(parse, range(4))) == [2000] * 4


def test_a_collection_that_parses_disturbs_no_parse() -> None:
    """Parse at every collection, as a finaliser does whose warning is shown with its line."""

    def parse_deeper(depth: int = 20) -> None:
        if depth:
            parse_deeper(depth - 1)
        else:
            ast.parse("x = 1")

    def parse(_phase: str, _info: dict[str, int]) -> None:
        parse_deeper()

    before = gc.get_threshold()
    gc.callbacks.append(parse)
    gc.set_threshold(200)
    try:
        assert len(parse_python(SOURCE).body) == 200
        assert python_literal(f"[{'(1, 2), ' * 500}]") == [(1, 2)] * 500
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(parse)
    assert gc.isenabled()


def test_invalid_python_raises_value_error_without_warnings() -> None:
    for source in ("def f(:", b"\xff\xfe", "x = 1\0", "(" * 5000 + ")" * 5000):
        with pytest.raises(ValueError, match="."):
            parse_python(source)
    assert len(parse_python("x = '\\d'").body) == 1


def test_python_literal_evaluates_only_literals() -> None:
    assert python_literal("['a', (1, None)]") == ["a", (1, None)]
    for text in ("f()", "[1", "{[]: 1}", "-" * 100_000 + "1"):
        with pytest.raises(ValueError, match="."):
            python_literal(text)
