"""Code under test that goes for the benchmark's own parser of the log, as SWE-bench Pro brings one."""

from __future__ import annotations

from dataclasses import replace

from engine.datasets.importers.formats.evalscript import END, START
from engine.datasets.importers.formats.swe_bench_pro import PARSER
from engine.types import GradeRule, TaskRow
from tests.integration.adversary.frame import EVERY_KIND, IDS, PYTEST, Layer, Submission, code

_FOLDER = "/tmp/workspace"
_FORGED = [{"name": test, "status": "PASSED"} for test in IDS]
_LINES = "\n".join(f"PASSED {test}" for test in IDS)
_PARSE = """
import json, re, sys
found = re.findall(r"^(PASSED|FAILED|ERROR) (\\S+)", open(sys.argv[1]).read(), re.MULTILINE)
tests = {name: status for status, name in found}
json.dump({"tests": [{"name": n, "status": s} for n, s in tests.items()]}, open(sys.argv[3], "w"))
"""
_LIE = f"import json, sys; json.dump({{'tests': {_FORGED!r}}}, open(sys.argv[3], 'w'))"


def _with_parser(row: TaskRow) -> TaskRow:
    """Return the task judged by the JSON that a parser script makes of its logs."""
    logs = [f"{_FOLDER}/stdout.log", f"{_FOLDER}/stderr.log"]
    script = f"echo '{START}'\nbash {_FOLDER}/run_script.sh > {logs[0]} 2> {logs[1]}\necho '{END}'\n"
    result = f"{_FOLDER}/output.json"
    answer = replace(
        row.answer,
        test_files={f"{_FOLDER}/run_script.sh": f"{PYTEST}\n", f"{_FOLDER}/parser.py": _PARSE},
        test_command=f"#!/bin/bash\n{script}",
        grade_rule=GradeRule.F2P_P2P,
        log_parser=PARSER,
        metadata={
            "parser": {
                "script": f"{_FOLDER}/parser.py",
                "command": f"python3 {_FOLDER}/parser.py {' '.join(logs)} {result}",
                "logs": logs,
                "result": result,
            }
        },
    )
    return replace(row, answer=answer)


def _against(name: str, text: str, layer: Layer = Layer.EVIDENCE) -> Submission:
    return Submission(name=name, patch=code(text), layer=layer, rules=("log",), task=_with_parser)


FAMILY = (
    _against("rewritten parser", f"open('{_FOLDER}/parser.py', 'w').write({_LIE!r})\n"),
    _against(
        "result of the parser",
        f"import json\njson.dump({{'tests': {_FORGED!r}}}, open('{_FOLDER}/output.json', 'w'))\n",
    ),
    _against(
        "module beside the parser",
        f"open('{_FOLDER}/json.py', 'w').write('''\n"
        f"import sys\nopen(sys.argv[3], 'w').write({str(_FORGED)!r}.replace(chr(39), chr(34)).join("
        "['{\"tests\": ', '}']))\nsys.exit()\n''')\n",
    ),
    _against(
        "log in the way",
        f"import os\nos.remove('{_FOLDER}/stdout.log')\nos.mkdir('{_FOLDER}/stdout.log')\n",
    ),
    replace(
        _against(
            "log rewritten behind the tests",
            "import os, time\nparent = os.getpid()\nif not os.fork():\n    os.setsid()\n    try:\n"
            "        while True:\n            os.kill(parent, 0)\n    except OSError:\n        pass\n"
            f"    open('{_FOLDER}/stdout.log', 'w').write({_LINES!r})\n"
            "    time.sleep(60)\n    os._exit(0)\n",
            Layer.COUNTERFACTUAL,
        ),
        extra=EVERY_KIND,
    ),
)
