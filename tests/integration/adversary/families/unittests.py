"""Patches that end or alter ``unittest`` in tasks graded by its exit code."""

from __future__ import annotations

from typing import Any

from tests.integration.adversary.frame import TAMPERED, Submission, code, in_call
from tests.integration.adversary.tasks import with_unittest

_IN_CALLS = {
    "an exit": "import os\nos._exit(0)\n",
    "an exception that ends it": "raise SystemExit(0)\n",
    "outcomes that it reports itself": "import gc\nfor found in gc.get_objects():\n"
    "    if type(found).__name__ == 'Recorder':\n"
    "        found.note('tests.test_numbers.NumbersTest.test_c_above', 'PASSED')\n"
    "import os\nos._exit(0)\n",
}
_AT_IMPORT = {
    "tests that do nothing": "import unittest\n"
    "unittest.TestCase._callTestMethod = lambda self, method: None\n",
    "an exit at the end": "import atexit, os\natexit.register(lambda: os._exit(0))\n",
    "an exit when it is imported": "raise SystemExit(0)\n",
    "a result without failures": "import unittest\n"
    "unittest.TextTestResult.wasSuccessful = lambda self: True\n",
    "assertions that check nothing": "import unittest\nunittest.TestCase.assertEqual = lambda *_: None\n",
}
_TAMPERED = {
    "failures that the recorder takes for passes": "import __main__\n"
    "__main__.Result.addFailure = lambda self, test, _: self.addSuccess(test)\n",
    "a recorder that notes passes alone": "import atexit, os, trainyard_recorder\n"
    "trainyard_recorder.Recorder.note = lambda self, test, _: self._send(b'PASSED', test)\n"
    "atexit.register(os._exit, 0)\n",
}
_ON = ("exit code",)


def _unittest(name: str, patch: str, **fields: Any) -> Submission:
    return Submission(name=f"unittest, {name}", patch=patch, rules=_ON, task=with_unittest, **fields)


FAMILY = (
    *(_unittest(name, code(text), ends=TAMPERED) for name, text in _TAMPERED.items()),
    *(_unittest(name, code(text)) for name, text in _AT_IMPORT.items()),
    *(_unittest(name, in_call(text)) for name, text in _IN_CALLS.items()),
    _unittest("a skip", in_call("import unittest\nraise unittest.SkipTest('later')\n"), audited=True),
)
