"""Names of failed tests in the output of test runners, for rows whose rule knows no tests by name."""

from __future__ import annotations

import re

_MAX_LINES = 50_000
_MAX_CHARS = 500
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_TIME = r"(?:\s+[\[(]?\d+(?:\.\d+)?\s?m?s[\])]?)?"
_FAILED = tuple(
    map(
        re.compile,
        (
            rf"not ok \d+(?: -)? (?P<name>[^#]+?){_TIME}",  # TAP
            rf"(?:[✗✘✕✖×●]|\d+\)) (?P<name>.+?){_TIME}:?",  # mocha, jest, vitest, AVA, node:test
            r"--- FAIL: (?P<name>\S+).*",  # Go
            r"test (?P<name>\S+) \.\.\. FAILED",  # Rust
            r"\[ERROR\]\s+(?P<name>[\w$]+(?:[.#][\w$]+)+).*",  # Maven
            r'File ".*", line \d+, in (?P<name>test\w*)',  # traceback of Python
            r"(?:FAIL|FAILED|ERROR)(?::|\s)\s*(?P<name>[^:\s].*?)(?: - .*)?",  # unittest, pytest
            rf"(?P<name>\S.*?)(?:\s*(?:\.\.\.|:|-)|\s)\s*(?:FAIL|FAILED|ERROR|failed){_TIME}",  # Gradle
        ),
    )
)
"""Lines that tell of a failed test, by runner."""
_FILE = re.compile(r"\S*[\w-]\.\w{1,4}")


def failed_tests(log: str) -> list[str]:
    """Return the names of tests that a runner's output calls failed, each once; files are none."""
    found: dict[str, None] = {}
    for line in _COLOUR.sub("", log).splitlines()[:_MAX_LINES]:
        text = line.strip()[:_MAX_CHARS]
        for pattern in _FAILED:
            matched = pattern.fullmatch(text)
            if matched is not None:
                name = matched["name"].strip()
                if re.search(r"[A-Za-z]", name) and not _FILE.fullmatch(name):
                    found[name] = None
                break
    return list(found)
