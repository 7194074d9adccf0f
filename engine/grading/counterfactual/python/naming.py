"""Names of Python tests in reports and logs, compared with functions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence


def tests_by_function(
    functions: Collection[tuple[str, str]], tests: Sequence[str]
) -> Mapping[tuple[str, str], Sequence[str]]:
    """Return the tests that certainly run each function, given by path and dotted name.

    A test runs the function with the most words of its name, in its file where it names one; a test that
    several functions may stand for belongs to none.
    """
    by_name: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for function in functions:
        by_name[function[1].rpartition(".")[2]].append(function)
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for test in tests:
        name = test.partition("[")[0]
        words = frozenset(re.findall(r"\w+", name.partition("::")[2] or name))  # a file may be named so, too
        known = [
            function for word in words for function in by_name.get(word, ()) if _may_be_in(test, function[0])
        ]
        # A method may run as that of a subclass, whose name the test has instead.
        ranks = [len(words & set(name.split("."))) for _, name in known]
        best = [function for function, rank in zip(known, ranks, strict=True) if rank == max(ranks)]
        if len(best) == 1:
            found[best[0]].append(test)
    return found


tests_by_function.__test__ = False  # type: ignore[attr-defined]


def _may_be_in(test: str, path: str) -> bool:
    file, separator, _ = test.partition("::")
    if not separator:
        return True
    file = file.removeprefix("./")
    return path.endswith(file) or file.endswith(path.lstrip("/"))
