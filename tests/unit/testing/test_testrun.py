"""Outcomes of node ids from JUnit reports of a real pytest."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.testing.testrun import TestRun, driver_command, junit_address, parse_junit
from engine.types import TestOutcome

TESTS = """
import unittest
import pytest

class TestSub(unittest.TestCase):
    def test_subtests(self):
        for i in range(3):
            with self.subTest(i=i):
                self.assertNotEqual(i, 1)

    @unittest.expectedFailure
    def test_expected(self):
        raise AssertionError

class TestOuter:
    class TestInner:
        def test_nested(self):
            pass

@pytest.fixture
def broken():
    raise RuntimeError("no")

@pytest.fixture
def broken_after():
    yield
    raise RuntimeError("no")

def test_setup(broken): pass
def test_teardown(broken_after): pass
def test_assert(): assert 1 == 2
def test_raises(): raise KeyError("x")
def test_skips(): pytest.skip("no")

@pytest.mark.parametrize("x", ["a::b", "a/b.py", "[", "<&>", "é", "a\\x00b", "\\x1b"])
def test_parametrised(x): pass
"""
EXPECTED = {
    "TestSub::test_subtests": (TestOutcome.FAILED, "AssertionError"),
    "TestSub::test_expected": (TestOutcome.XFAIL, ""),
    "TestOuter::TestInner::test_nested": (TestOutcome.PASSED, ""),
    "test_setup": (TestOutcome.ERROR, "RuntimeError"),
    "test_teardown": (TestOutcome.ERROR, "RuntimeError"),
    "test_assert": (TestOutcome.FAILED, "AssertionError"),
    "test_raises": (TestOutcome.FAILED, "KeyError"),
    "test_skips": (TestOutcome.SKIPPED, ""),
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> TestRun:
    folder = tmp_path_factory.mktemp("project")
    (folder / "sub").mkdir()
    (folder / "sub" / "test_a.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    script = (
        "import pytest\n"
        "class Ids:\n"
        "    def pytest_runtest_logstart(self, nodeid): print('ID ' + ascii(nodeid))\n"
        "pytest.main(['-q', '-s', '-p', 'no:cacheprovider', '--junitxml=r.xml', 'sub'], plugins=[Ids()])\n"
    )
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env=environment)
    ids = [eval(line[line.index("ID ") + 3 :]) for line in done.stdout.split("\n") if "ID '" in line]
    return TestRun(cases=parse_junit((folder / "r.xml").read_text()), ids=tuple(ids))


@pytest.mark.parametrize("name", EXPECTED)
def test_outcomes_and_exceptions_are_read_from_the_report(report: TestRun, name: str) -> None:
    case = report.case(f"sub/test_a.py::{name}")
    assert (case.outcome, case.exception) == EXPECTED[name]


def test_every_collected_test_is_found_with_any_parameters(report: TestRun) -> None:
    assert len(report.ids) == len(EXPECTED) + 7
    assert TestOutcome.MISSING not in report.outcomes(report.ids).values()


def test_an_unreported_required_test_is_missing(report: TestRun) -> None:
    assert report.case("sub/test_a.py::test_gone").outcome is TestOutcome.MISSING


def test_the_worse_of_two_entries_for_one_test_counts() -> None:
    entry = '<testcase classname="a" name="t"/>'
    failed = '<testcase classname="a" name="t"><failure message="x"/></testcase>'
    for xml in (entry + failed, failed + entry):
        assert parse_junit(f"<s>{xml}</s>")[("a", "t")].outcome is TestOutcome.FAILED


def test_junit_addresses_follow_pytest() -> None:
    assert junit_address("tests/test_a.py::TestX::test_y[a::b]") == ("tests.test_a.TestX", "test_y[a::b]")


def test_the_driver_command_quotes_node_ids() -> None:
    assert driver_command(["t.py::test[a b;$(x)]"], ["."]).endswith("-- 't.py::test[a b;$(x)]'")
