"""Run ``unittest`` like ``python -m unittest``, and record the outcomes. A plain script for Python ≥ 3.6.

In foreign test commands its path replaces ``-m unittest``. Each outcome is sent immediately to
``pytest_witness``, like those of ``pytest_recorder``. Tests have their own ids as names, such as
``tests.test_money.MoneyTest.test_split``; of a test's and its subtests' outcomes, the worst counts.
"""

import os
import sys
import unittest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from engine.testing.pytest_guard import UNITTEST
    from engine.testing.pytest_recorder import begin
else:
    _FOLDER = os.path.dirname(os.path.realpath(__file__))
    _IS_ISOLATED = os.path.realpath(sys.path[0]) != _FOLDER  # python -I
    if _IS_ISOLATED:
        sys.path.insert(0, _FOLDER)
    from trainyard_guard import UNITTEST
    from trainyard_recorder import begin

    sys.path[:1] = [] if _IS_ISOLATED else [os.getcwd()]

__unittest = True  # frames of this file are left out of tracebacks


class Result(unittest.TextTestResult):
    """Result that prints like ``unittest``'s and reports each outcome to the recorder."""

    def _note(self, test: "Any", outcome: str) -> None:
        if RECORDER is not None:
            RECORDER.guard.check()
            RECORDER.note(getattr(test, "test_case", test).id(), outcome)

    def addSuccess(self, test: "Any") -> None:  # noqa: N802
        """Report a test that passed."""
        super().addSuccess(test)
        self._note(test, "PASSED")

    def addFailure(self, test: "Any", err: "Any") -> None:  # noqa: N802
        """Report a test that failed."""
        super().addFailure(test, err)
        self._note(test, "FAILED")

    def addError(self, test: "Any", err: "Any") -> None:  # noqa: N802
        """Report a test, a module or a fixture that ended with an exception."""
        super().addError(test, err)
        self._note(test, "ERROR")

    def addSkip(self, test: "Any", reason: str) -> None:  # noqa: N802
        """Report a skipped test."""
        super().addSkip(test, reason)
        self._note(test, "SKIPPED")

    def addExpectedFailure(self, test: "Any", err: "Any") -> None:  # noqa: N802
        """Report a test that failed as expected."""
        super().addExpectedFailure(test, err)
        self._note(test, "XFAIL")

    def addUnexpectedSuccess(self, test: "Any") -> None:  # noqa: N802
        """Report a test that should have failed, which makes the run unsuccessful."""
        super().addUnexpectedSuccess(test)
        self._note(test, "FAILED")

    def addSubTest(self, test: "Any", subtest: "Any", err: "Any") -> None:  # noqa: N802
        """Report a subtest that did not pass."""
        super().addSubTest(test, subtest, err)
        if err is not None:
            failed = issubclass(err[0], test.failureException)
            self._note(test, "FAILED" if failed else "ERROR")


class Runner(unittest.TextTestRunner):
    """``unittest``'s own runner, with recorded results."""

    resultclass: "Any" = Result


def cases(suite: "Any") -> "Iterator[unittest.TestCase]":
    """Yield the tests of a suite and of the suites in it."""
    for item in suite:
        if isinstance(item, unittest.TestCase):
            yield item
        else:
            yield from cases(item)


class Program(unittest.TestProgram):
    """``python -m unittest`` that informs the recorder when its tests have ended."""

    test: "Any"

    def runTests(self) -> None:  # noqa: N802
        """Run the tests; exit with ``unittest``'s exit code."""
        self.testRunner = Runner
        if RECORDER is not None:
            RECORDER.guard.expect(
                [(getattr(type(case), case._testMethodName, None), type(case)) for case in cases(self.test)]
            )
        try:
            super().runTests()
        except SystemExit as end:
            if RECORDER is not None and getattr(self, "result", None) is not None:
                RECORDER.finish(int(end.code or 0))
            raise


# Created here because the guard also watches the classes above.
RECORDER = begin((*UNITTEST, "__main__", "trainyard_recorder", "trainyard_guard"))

if __name__ == "__main__":
    sys.argv[0] = "%s -m unittest" % sys.executable.rpartition("/")[2]
    Program(module=None)
