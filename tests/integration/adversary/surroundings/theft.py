"""Attempts on the recorder, its key, its socket and the processes around it."""

from __future__ import annotations

from dataclasses import replace

from tests.integration.adversary.frame import IDS, STOPPED, TAMPERED, Layer, Submission, code
from tests.integration.adversary.outcomes.output import FORGED

_TELL = f"""
import sys
sys.stdout.write('{FORGED}'); sys.stdout.flush()
"""
_EXIT = "import os\nos._exit(0)\n"
_FAKE_REPORTS = f"""
from _pytest.reports import TestReport
def _send(config):
    for test in {list(IDS)!r}:
        for when in ('setup', 'call', 'teardown'):
            report = TestReport(test, ('', 0, ''), dict(), 'passed', None, when)
            config.hook.pytest_runtest_logreport(report=report)
"""
_FIND_SESSION = """
import gc
from _pytest.main import Session
_session = next(one for one in gc.get_objects() if type(one) is Session)
"""
_FIND_RECORDER = """
import sys
_plugins = _session.config.pluginmanager.get_plugins()
_recorder = next(one for one in _plugins if type(one).__name__ == 'Recorder')
"""
_SEARCH = """
import os
def _read(pid):
    found = b''
    for line in open('/proc/%d/maps' % pid):
        start, end = (int(part, 16) for part in line.split()[0].split('-'))
        if ' rw' in line:
            with open('/proc/%d/mem' % pid, 'rb') as memory:
                memory.seek(start)
                found += memory.read(end - start)
    return found
pid, stolen = os.getppid(), b''
while pid > 1:
    try:
        stolen += _read(pid)
    except OSError:
        pass
    pid = int(open('/proc/%d/stat' % pid).read().rpartition(')')[2].split()[1])
if stolen:  # only what holds a secret is worth a false reward
    open('/tmp/stolen', 'wb').write(stolen)
    os.makedirs('/tmp/verifier', exist_ok=True)
"""
_CALLED = "the recorder's own methods"
_STOLEN = {
    "fake reports through the hooks": f"{_FIND_SESSION}{_FAKE_REPORTS}_send(_session.config)\n"
    f"_session.config.hook.pytest_sessionfinish(session=_session, exitstatus=0)\n{_TELL}{_EXIT}",
    _CALLED: f"{_FIND_SESSION}{_FIND_RECORDER}"
    f"for test in {list(IDS)!r}:\n    _recorder.note(test, 'PASSED')\n_recorder.finish(0)\n{_TELL}{_EXIT}",
    "the recorder found through sys.modules": "import sys\n_m = sys.modules.get('trainyard_recorder')\n"
    f"_m._RECORDER and _m._RECORDER.finish(0)\n{_TELL}{_EXIT}",
    "lines on the recorder's socket": f"import os\nfor fd in range(3, 40):\n    for test in {list(IDS)!r}:\n"
    "        try:\n            os.write(fd, b'0' * 16 + b' PASSED ' + test.encode() + b'\\n')\n"
    f"        except OSError:\n            pass\n{_TELL}{_EXIT}",
    "a session of its own": "import glob, _socket, subprocess, sys\n"
    f"for path in glob.glob('/tmp/trainyard-*/witness'):\n    s = _socket.socket(_socket.AF_UNIX)\n"
    f"    s.connect(path)\n    s.recv(32)\n    s.sendall(b'forged\\n')\n{_TELL}{_EXIT}",
    "a run of other tests in a child": "import os, subprocess, sys\n"
    "os.makedirs('/tmp/o/tests', exist_ok=True)\n"
    'text = \'import pytest\\n@pytest.mark.parametrize("value", ["-1-0","5-5","11-10","0-0"])\\n\'\n'
    "text += 'def test_clamp(value): pass\\nclass TestMean:\\n    def test_mean(self): pass\\n'\n"
    "text += 'def test_positives(): pass\\n'\nopen('/tmp/o/tests/test_numbers.py', 'w').write(text)\n"
    "subprocess.run([sys.executable, '-m', 'pytest', '-rA', 'tests'], cwd='/tmp/o')\n" + _EXIT,
    "a run of other tests in its place": "import os, sys\nos.makedirs('/tmp/o/tests', exist_ok=True)\n"
    "open('/tmp/o/tests/test_numbers.py', 'w').write('def test_positives(): pass\\n')\nos.chdir('/tmp/o')\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'pytest', '-rA', 'tests'])\n",
    "a run of other tests after the parent": "import os, sys, time\nif not os.fork():\n    os.setsid()\n"
    "    if os.fork(): os._exit(0)\n    time.sleep(0.3)\n    os.makedirs('/tmp/o/tests', exist_ok=True)\n"
    "    open('/tmp/o/tests/test_numbers.py', 'w').write('def test_positives(): pass\\n')\n"
    "    os.chdir('/tmp/o')\n    os.execv(sys.executable, [sys.executable, '-m', 'pytest', 'tests'])\n"
    + _EXIT,
}
_KILLED = {
    "the parent killed": f"import os, signal\nos.kill(os.getppid(), 9)\n{_TELL}{_EXIT}",
    "everything killed": f"{_TELL}import os\nos.kill(-1, 9)\n",
    "the parent's memory": f"{_SEARCH}{_TELL}{_EXIT}",
    "the parent stopped": "import os, signal\nos.kill(os.getppid(), signal.SIGCONT)\n" + _TELL + _EXIT,
}


def _tried(name: str, text: str) -> Submission:
    return Submission(
        name=name, patch=code(text), layer=Layer.EVIDENCE, rules=("signed", "log"), ends=STOPPED
    )


FAMILY = (
    *(_tried(name, text) for name, text in (_STOLEN | _KILLED).items() if name != _CALLED),
    # One that fails by itself would end as failed.
    replace(_tried(_CALLED, _STOLEN[_CALLED]), ends=TAMPERED),
)
