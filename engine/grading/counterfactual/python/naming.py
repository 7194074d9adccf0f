"""Matching of test names in reports and logs to Python functions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence


def tests_by_function(
    functions: Collection[tuple[str, str]], tests: Sequence[str]
) -> Mapping[tuple[str, str], Sequence[str]]:
    """Return the tests that certainly run each function, given by path and dotted name.

    A test runs the function that shares the most words with its name, in its file if it names one. A test
    with several such functions is left out.
    """
    by_name: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for function in functions:
        by_name[function[1].rpartition(".")[2]].append(function)
    matches: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for test in tests:
        name = test.partition("[")[0]
        # Without the path: a file may have the same name.
        words = frozenset(re.findall(r"\w+", name.partition("::")[2] or name))
        candidates = [
            function for word in words for function in by_name.get(word, ()) if _may_be_in(test, function[0])
        ]
        # An inherited method may run under the name of a subclass.
        ranks = [len(words & set(name.split("."))) for _, name in candidates]
        best = [function for function, rank in zip(candidates, ranks, strict=True) if rank == max(ranks)]
        if len(best) == 1:
            matches[best[0]].append(test)
    return matches


tests_by_function.__test__ = False  # type: ignore[attr-defined]


def _may_be_in(test: str, path: str) -> bool:
    file, separator, _ = test.partition("::")
    if not separator:
        return True
    file = file.removeprefix("./")
    return path.endswith(file) or file.endswith(path.lstrip("/"))
