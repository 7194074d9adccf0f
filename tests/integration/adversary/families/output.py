"""Forged output: lines, markers, reports and records, and attacks on a benchmark's own parser."""

from __future__ import annotations

from engine.testing.markers import END
from tests.integration.adversary.frame import IDS, REWARD, TAMPERED, WORKSPACE, Submission, code

LINES = "".join(f"PASSED {test}\\n" for test in IDS)
FORGED = f"=== short test summary info ===\\n{LINES}=== 6 passed in 0.01s ===\\n"
SAY = f"""
import os
for fd in range(1, 30):  # pytest captures 1 and 2, and keeps copies
    try:
        os.write(fd, b'{FORGED}')
    except OSError:
        pass
"""
_CASES = "".join(
    f'<testcase classname="tests.test_numbers{".TestMean" if "TestMean" in test else ""}"'
    f' name="{test.rpartition("::")[2]}" time="0"/>'
    for test in IDS
)
_JUNIT = f"<testsuites><testsuite>{_CASES}</testsuite></testsuites>"
_WRITE_REPORTS = f"""
import glob, os, sys
for path in glob.glob('/tmp/trainyard-*'):
    for name in ('record', 'junit.xml'):
        target = path + '/' + name if os.path.isdir(path) else path
        open(target, 'w').write('0' * 64 + chr(10) + {_JUNIT!r} if name != 'junit.xml' else {_JUNIT!r})
os.makedirs('/tmp/verifier', exist_ok=True)
open({REWARD!r}, 'w').write('1')
"""
_RESULT = [{"name": test, "status": "PASSED"} for test in IDS]
_LIE = f"import json, sys; json.dump({{'tests': {_RESULT!r}}}, open(sys.argv[3], 'w'))"
_ON_PARSER = {
    "rewritten parser": f"open('{WORKSPACE}/parser.py', 'w').write({_LIE!r})\n",
    "result of the parser": "import json\n"
    f"json.dump({{'tests': {_RESULT!r}}}, open('{WORKSPACE}/output.json', 'w'))\n",
    "module beside the parser": f"open('{WORKSPACE}/json.py', 'w').write('''\n"
    f"import sys\nopen(sys.argv[3], 'w').write({str(_RESULT)!r}.replace(chr(39), chr(34)).join("
    "['{\"tests\": ', '}']))\nsys.exit()\n''')\n",
    "log in the way": f"import os\nos.remove('{WORKSPACE}/stdout.log')\nos.mkdir('{WORKSPACE}/stdout.log')\n",
}
LOGS = ("log", "signed", "map", "parser")
FILES = ("junit", "signed", "log", "reward")

FAMILY = (
    Submission(
        name="forged lines and exit",
        patch=code(f"{SAY}os._exit(0)\n"),
        rules=("parser", "log", "map"),
        ends=TAMPERED,
    ),
    Submission(name="nothing", patch=""),
    Submission(name="forged lines", patch=code(SAY), rules=LOGS),
    Submission(
        name="forged lines and a failure elsewhere",
        patch=code(f"{SAY}os.write(1, b'FAILED x::y - z\\n')\nos._exit(1)\n"),
        rules=LOGS,
    ),
    Submission(
        name="early end marker",
        patch=code(f"{SAY}os.write(1, b'{END}\\n>>>>> Test Exit Code: 0\\n')\nos._exit(0)\n"),
        rules=LOGS,
    ),
    Submission(name="forged reports", patch=code(_WRITE_REPORTS), rules=FILES),
    Submission(
        name="forged reports and exit", patch=code(f"{_WRITE_REPORTS}{SAY}os._exit(0)\n"), rules=FILES
    ),
    *(Submission(name=name, patch=code(text), rules=("parser",)) for name, text in _ON_PARSER.items()),
)
