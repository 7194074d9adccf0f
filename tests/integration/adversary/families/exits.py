"""Processes that exit successfully before the tests have run."""

from __future__ import annotations

from tests.integration.adversary.families.output import FORGED
from tests.integration.adversary.frame import EVERY, Submission, code
from tests.integration.adversary.tasks import NEVER_PASSED, with_ignored_test

EXIT_0 = "import os\nos._exit(0)\n"
_ATEXIT = f"""
import atexit, os, sys
def _leave():
    sys.stdout.write('{FORGED}'); sys.stdout.flush(); os._exit(0)
atexit.register(_leave)
"""
FAMILY = (
    Submission(
        name="os._exit",
        patch=code(EXIT_0),
        rules=("exit code", *(rule for rule in EVERY if rule != "exit code")),
    ),
    Submission(name="SystemExit", patch=code("raise SystemExit(0)\n")),
    Submission(name="pytest.exit", patch=code("import pytest\npytest.exit('done', returncode=0)\n")),
    Submission(name="pytest.skip", patch=code("import pytest\npytest.skip(allow_module_level=True)\n")),
    Submission(name="atexit", patch=code(_ATEXIT)),
    Submission(
        name="atexit where the script ignores a test",
        patch=code(_ATEXIT),
        rules=("exit code", "reward"),
        task=with_ignored_test(NEVER_PASSED),
    ),
)
