"""Trees and processes that exhaust resources: they get a reward of 0 and are never excluded."""

from __future__ import annotations

from dataclasses import replace

from engine.types import TaskRow, Verdict
from tests.integration.adversary.families.output import FORGED
from tests.integration.adversary.families.patches import link
from tests.integration.adversary.frame import BOTH, SIGNED, STOPPED, Submission, code

_FILL = """
def _fill(folder):
    try:
        with open(folder + '/fill', 'wb', buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
    except OSError:
        pass
    try:
        for number in range(1 << 16):
            open(f'{folder}/fill{number}', 'wb').close()
    except OSError:
        pass
_fill('/tmp')
"""
_MANY = "import os\nos.mkdir('many')\nfor _n in range(30000): open(f'many/{_n}.py', 'w').close()\n"
_FIFOS = """
import glob, os
for _path in glob.glob('/tmp/trainyard-*') + glob.glob('/tmp/trainyard-*/*'):
    for _change in (os.unlink, os.mkfifo):
        try:
            _change(_path)
        except OSError:
            pass
for _name in ('record-0', 'junit.xml'):
    for _folder in glob.glob('/tmp/trainyard-*'):
        try:
            os.mkfifo(f'{_folder}/{_name}')
        except OSError:
            pass
"""
_SAY = f"import os\nos.write(1, b'''{FORGED}''')\nos._exit(0)\n"
_FLOOD = f"import os\nfor _ in range(2000): os.write(1, b'x' * 65536)\n{_SAY}"


def _runs(name: str, text: str, rules: tuple[str, ...] = BOTH) -> Submission:
    return Submission(name=name, patch=code(text), rules=rules, ends=STOPPED | {Verdict.TEST_TIMEOUT})


def _with_new_test(row: TaskRow) -> TaskRow:
    files = {"toy/checks/check_clamp.py": "def test(): pass\n"}
    return replace(row, answer=replace(row.answer, test_files=files))


def _in_the_way(name: str, patch: str) -> Submission:
    return Submission(name=f"{name} of a test", patch=patch, rules=SIGNED, task=_with_new_test)


FAMILY = (
    _runs("130 MB of output", _FLOOD, ("log",)),
    _runs("pipes where reports go", _FIFOS),
    _runs("a full disk", _FILL),
    _runs("a full disk and forged lines", f"{_FILL}{_SAY}"),
    _runs("30,000 new files", _MANY),
    _runs("all memory", "x = []\nwhile True: x.append(bytes(1 << 24))\n", SIGNED),
    _runs(
        "all processes",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: os._exit(0)\n",
        SIGNED,
    ),
    _in_the_way("a link in place of the folder", link("toy/checks", "/proc")),
)
