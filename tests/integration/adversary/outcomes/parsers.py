"""Code under test that goes for the benchmark's own parser of the log, as SWE-bench Pro brings one."""

from __future__ import annotations

from dataclasses import replace

from tests.integration.adversary.frame import EVERY_KIND, IDS, WORKSPACE, Layer, Submission, code

_FORGED = [{"name": test, "status": "PASSED"} for test in IDS]
_LINES = "\n".join(f"PASSED {test}" for test in IDS)
_LIE = f"import json, sys; json.dump({{'tests': {_FORGED!r}}}, open(sys.argv[3], 'w'))"


def _against(name: str, text: str, layer: Layer = Layer.EVIDENCE) -> Submission:
    return Submission(name=name, patch=code(text), layer=layer, rules=("parser",))


FAMILY = (
    _against("rewritten parser", f"open('{WORKSPACE}/parser.py', 'w').write({_LIE!r})\n"),
    _against(
        "result of the parser",
        f"import json\njson.dump({{'tests': {_FORGED!r}}}, open('{WORKSPACE}/output.json', 'w'))\n",
    ),
    _against(
        "module beside the parser",
        f"open('{WORKSPACE}/json.py', 'w').write('''\n"
        f"import sys\nopen(sys.argv[3], 'w').write({str(_FORGED)!r}.replace(chr(39), chr(34)).join("
        "['{\"tests\": ', '}']))\nsys.exit()\n''')\n",
    ),
    _against(
        "log in the way",
        f"import os\nos.remove('{WORKSPACE}/stdout.log')\nos.mkdir('{WORKSPACE}/stdout.log')\n",
    ),
    replace(
        _against(
            "log rewritten behind the tests",
            "import os, time\nparent = os.getpid()\nif not os.fork():\n    os.setsid()\n    try:\n"
            "        while True:\n            os.kill(parent, 0)\n    except OSError:\n        pass\n"
            f"    open('{WORKSPACE}/stdout.log', 'w').write({_LINES!r})\n"
            "    time.sleep(60)\n    os._exit(0)\n",
            Layer.COUNTERFACTUAL,
        ),
        extra=EVERY_KIND,
    ),
)
