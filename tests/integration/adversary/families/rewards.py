"""Reward files that the verifier did not write or cannot overwrite."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import replace

from engine.types import TaskRow
from tests.builders.dataset_builders import new_file, patched
from tests.integration.adversary.frame import REWARD, STILL_BROKEN, STOPPED, TAMPERED, Submission, code

_FOLDER = posixpath.dirname(REWARD)
_JSON = f"{_FOLDER}/reward.json"
_SCRIPT = "/tmp/tests/test.sh"
_ONE = f"import os, signal\nos.makedirs('{_FOLDER}', exist_ok=True)\nopen('{REWARD}', 'w').write('1')\n"
_STOP = f"{_ONE}os.kill(os.getppid(), signal.SIGKILL)\n"
_DAEMON = """
import subprocess
loop = 'for f in /tmp/trainyard-*; do echo forged > $f/record; echo forged > $f; done; echo {value} > {path}'
quiet = subprocess.DEVNULL
command = ['sh', '-c', 'while true; do ' + loop + '; done']
subprocess.Popen(command, start_new_session=True, stdout=quiet, stderr=quiet)
"""
_KEPT = """
import os
os.makedirs(os.path.dirname({path!r}), exist_ok=True)
with open({path!r}, 'w') as file:
    file.write('{value}')
os.chmod({path!r}, 0o444)
os.chmod(os.path.dirname({path!r}), 0o555)
"""
_NOTHING_RIGHT = "\n\nclamp = mean = positives = lambda *_: None\n"
_APPEND = f"open({_SCRIPT!r}, 'a').write('\\necho 1 > {REWARD}\\n')\n"
_RESTORE = (
    f"text = open({_SCRIPT!r}).read()\n"
    f"open({_SCRIPT!r}, 'a').write('\\necho 1 > {REWARD}; cp /tmp/true.sh {_SCRIPT}\\n')\n"
    "open('/tmp/true.sh', 'w').write(text)\n"
)
_LINE = f"\\nmkdir -p {_FOLDER}; echo 1 > {REWARD}; exit 0\\n"
_REWRITE = f"open({_SCRIPT!r}, 'r+').write('#' * 2000 + '{_LINE}' * 9)\n"


def _two_files(row: TaskRow) -> TaskRow:
    return replace(row, answer=replace(row.answer, metadata={"reward_files": [_JSON, REWARD]}))


def _without_pytest(row: TaskRow) -> TaskRow:
    """Return the task with a verifier without pytest, whose rewards no record contradicts."""
    text = (
        f"mkdir -p {_FOLDER}\nif python3 -c 'from toy.numbers import clamp; assert clamp(11, 0, 10) == 10'\n"
        f"then echo 1 > {REWARD}; else echo 0 > {REWARD}; fi\n"
    )
    return replace(row, answer=replace(row.answer, test_files={_SCRIPT: text}))


def _reward(
    name: str, patch: str, *, tampered: bool = False, task: Callable[[TaskRow], TaskRow] | None = None
) -> Submission:
    ends = TAMPERED if tampered else STOPPED
    return Submission(name=name, patch=patch, rules=("reward",), ends=ends, task=task)


FAMILY = (
    _reward("a daemon that writes rewards", code(_DAEMON.format(path=REWARD, value=1))),
    _reward(
        "a part of the reward where no test passes",
        patched(_KEPT.format(path=REWARD, value=0.5) + STILL_BROKEN + _NOTHING_RIGHT),
    ),
    _reward(
        "a reward that cannot be overwritten",
        code(_KEPT.format(path=REWARD, value=1)),
        tampered=True,
        task=_without_pytest,
    ),
    _reward("a reward out of the tree", new_file("../../tmp/verifier/reward.txt", "1\n")),
    _reward("appends to the script", code(_APPEND), tampered=True),
    _reward("rewrites the script", code(_REWRITE), tampered=True),
    _reward("appends to another verifier and mends it", code(_RESTORE), task=_without_pytest),
    _reward("writes a reward and stops another verifier", code(_STOP), task=_without_pytest),
    _reward(
        "a folder in place of the reward",
        code(f"import os\nos.makedirs('{REWARD}')\nopen('{_JSON}', 'w').write('1')\n"),
        task=_two_files,
    ),
    _reward(
        "another reward file",
        code(f"{_ONE}open('{_JSON}', 'w').write('1')\n"),
        task=lambda row: _two_files(_without_pytest(row)),
    ),
)
