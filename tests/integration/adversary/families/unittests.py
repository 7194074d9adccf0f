"""Tests of ``unittest``, whose exit code decides: patches that end it, or alter it."""

from __future__ import annotations

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
FAMILY = (
    *(
        Submission(name=f"unittest, {name}", patch=code(text), rules=_ON, ends=TAMPERED, task=with_unittest)
        for name, text in _TAMPERED.items()
    ),
    *(
        Submission(name=f"unittest, {name}", patch=code(text), rules=_ON, task=with_unittest)
        for name, text in _AT_IMPORT.items()
    ),
    *(
        Submission(name=f"unittest, {name}", patch=in_call(text), rules=_ON, task=with_unittest)
        for name, text in _IN_CALLS.items()
    ),
    Submission(
        name="unittest, a skip",
        patch=in_call("import unittest\nraise unittest.SkipTest('later')\n"),
        rules=_ON,
        task=with_unittest,
        audited=True,
    ),
)
