"""Python sources of others are read in any thread."""

from __future__ import annotations

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
    """Let other threads go on whenever garbage is collected, as it is in the midst of making a tree."""

    def switch(_phase: str, _info: dict[str, int]) -> None:
        time.sleep(0)

    before = gc.get_threshold()
    gc.callbacks.append(switch)
    gc.set_threshold(200)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(switch)


@pytest.mark.usefixtures("collections_switch_threads")
def test_threads_parse_at_once() -> None:
    start = threading.Barrier(4)

    def parse(_: int) -> int:
        start.wait(timeout=60)
        return sum(len(parse_python(SOURCE).body) for _ in range(10))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(parse, range(4))) == [2000] * 4


def test_what_is_not_python_is_a_value_error_without_warnings() -> None:
    for source in ("def f(:", b"\xff\xfe", "x = 1\0", "(" * 5000 + ")" * 5000):
        with pytest.raises(ValueError, match="."):
            parse_python(source)
    assert len(parse_python("x = '\\d'").body) == 1


def test_literals() -> None:
    assert python_literal("['a', (1, None)]") == ["a", (1, None)]
    for text in ("f()", "[1", "{[]: 1}", "-" * 100_000 + "1"):
        with pytest.raises(ValueError, match="."):
            python_literal(text)
