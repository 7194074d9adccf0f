"""Runs ``unittest`` as ``python -m unittest`` does, and records what it saw. A plain script for Python ≥ 3.6.

In test commands that are not ours its path takes the place of ``-m unittest``. Each outcome goes at once to
``pytest_witness``, as those of ``pytest_recorder`` do. Tests have the names that they give themselves, as
``tests.test_money.MoneyTest.test_split``; of a test's and its subtests' outcomes the worst counts.
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
    """Shows results as ``unittest`` does, and reports each to the recorder."""

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
        """Report a test that was left out."""
        super().addSkip(test, reason)
        self._note(test, "SKIPPED")

    def addExpectedFailure(self, test: "Any", err: "Any") -> None:  # noqa: N802
        """Report a test that failed as expected."""
        super().addExpectedFailure(test, err)
        self._note(test, "XFAIL")

    def addUnexpectedSuccess(self, test: "Any") -> None:  # noqa: N802
        """Report a test that should have failed: the run is no success then."""
        super().addUnexpectedSuccess(test)
        self._note(test, "FAILED")

    def addSubTest(self, test: "Any", subtest: "Any", err: "Any") -> None:  # noqa: N802
        """Report a part of a test that did not pass."""
        super().addSubTest(test, subtest, err)
        if err is not None:
            failed = issubclass(err[0], test.failureException)
            self._note(test, "FAILED" if failed else "ERROR")


class Runner(unittest.TextTestRunner):
    """``unittest``'s own runner, with results that are recorded."""

    resultclass: "Any" = Result


def cases(suite: "Any") -> "Iterator[unittest.TestCase]":
    """Yield the tests of a suite and of the suites in it."""
    for one in suite:
        if isinstance(one, unittest.TestCase):
            yield one
        else:
            yield from cases(one)


class Program(unittest.TestProgram):
    """``python -m unittest``, which tells the recorder when its tests have come to their end."""

    test: "Any"

    def runTests(self) -> None:  # noqa: N802
        """Run the tests; end the process with the exit code that ``unittest`` gives it."""
        self.testRunner = Runner
        if RECORDER is not None:
            RECORDER.guard.expect(
                [(getattr(type(one), one._testMethodName, None), type(one)) for one in cases(self.test)]
            )
        try:
            super().runTests()
        except SystemExit as end:
            if RECORDER is not None and getattr(self, "result", None) is not None:
                RECORDER.finish(int(end.code or 0))
            raise


# It watches its own classes as well, so they come first.
RECORDER = begin((*UNITTEST, "__main__", "trainyard_recorder", "trainyard_guard"))

if __name__ == "__main__":
    sys.argv[0] = "%s -m unittest" % sys.executable.rpartition("/")[2]
    Program(module=None)
