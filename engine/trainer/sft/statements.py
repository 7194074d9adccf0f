"""Plausible test names and exceptions for the warm start's statements, for which no tests are run.

They only have to resemble curation's statements, in enough variants that none is memorised.
To add a variant: another branch in ``failing_tests``.
"""

from __future__ import annotations

import random
from pathlib import PurePosixPath

_EXCEPTIONS = (
    ("AssertionError", 10.0),
    ("TypeError", 3.0),
    ("ValueError", 2.0),
    ("IndexError", 1.5),
    ("KeyError", 1.5),
    ("AttributeError", 1.5),
    ("NameError", 0.7),
    ("UnboundLocalError", 0.7),
    ("ZeroDivisionError", 0.4),
    ("StopIteration", 0.3),
    ("RecursionError", 0.3),
    ("RuntimeError", 0.5),
    ("", 1.5),
)
_SUFFIXES = ("", "", "", "_basic", "_empty", "_default", "_simple", "_edge", "_large", "_none", "_order")


def failing_tests(rng: random.Random, path: str, function: str) -> list[str]:
    """Return node ids of tests that could fail; empty for about one statement in eight.

    Args:
        path: path of the broken file, relative to the workdir.
        function: qualified name of the broken function.
    """
    if rng.random() < 0.12:
        return []
    file = PurePosixPath(path)
    stem = file.stem.strip("_") if file.stem != "__init__" else file.parent.name
    folder = rng.choices(("tests", "test", f"{file.parent.name}/tests", ""), (0.75, 0.08, 0.12, 0.05))[0]
    module = "/".join(part for part in (folder, f"test_{stem}.py") if part)
    *owner, name = function.split(".")
    name = name.strip("_").lower() or "call"
    if owner and rng.random() < 0.5:
        name = f"{owner[-1].strip('_').lower()}_{name}"
    test = f"test_{name}{rng.choice(_SUFFIXES)}"
    if rng.random() < 0.1:
        test += f"[{rng.choice(('0', '1', 'a-b', 'x0', 'True', '3-expected2'))}]"
    if rng.random() < 0.35:
        group = "".join(part.title() for part in (owner[-1] if owner else stem).split("_"))
        test = f"{rng.choice(('Test', 'Tests', 'Test'))}{group}::{test}"
    count = 1 if rng.random() < 0.55 else rng.randint(2, 12)
    return [f"{module}::{test}"] * count


def raised_exception(rng: random.Random) -> str:
    """Return the class name of the exception of the first failing test; sometimes unknown."""
    return rng.choices([name for name, _ in _EXCEPTIONS], [weight for _, weight in _EXCEPTIONS])[0]
