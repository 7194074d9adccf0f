"""Detection of recordable pytest runs in test commands, as opposed to mentions of pytest."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from engine.grading.running.nonces import Nonces
from engine.grading.running.pytest_commands import runs_pytest
from engine.grading.running.scripts import prepare
from engine.grading.running.shell_commands import runs
from engine.sandbox.base import SandboxSpec
from tests.fakes.memory_sandbox import MemorySandbox, silent

PYTEST = ("pytest", "py.test")
NONCES = Nonces(start="trainyard-s", end="trainyard-e", folder="/tmp/f", key="k", token="t")


async def recorded(
    command: str,
    image: Mapping[str, str] | None = None,
    row: Mapping[str, str] | None = None,
    changed: Collection[str] = (),
) -> bool:
    files = {path: text.encode() for path, text in (image or {}).items()}
    box = MemorySandbox(SandboxSpec(image="i"), 1, files, silent)
    return await runs_pytest(box, command, row or {}, changed)


CALLS = [
    "run() {\n  QT=1 dbus-run-session -- python -bb -m pytest -v\n}",
    "uvx \\\n  -w pytest==8.4.1 \\\n  pytest --ctrf /l /t",
    "if command -v pytest; then pytest -q; fi",
    "bash -lc 'cd x && pytest -q'",
    'timeout 60 env A=1 bash -c "cd /x; pytest"',
    'RUN="pytest -q"\n$RUN x',
    '"$VENV/bin/pytest" x',
    "${PY:-python} -m pytest",
    "(cd a\npytest -x)",
    "A=\"1 2\" B='x' pytest>log",
    'read a <<< "abc"\npytest -q',
    "N=$((1 << 20))\npytest -q",
    "poetry run pytest -q",
    "timeout 60 conda run -n x python -m pytest",
    "find . -name a -exec pytest {} \\;",
    "case $1 in\n a) pytest;;\nesac",
]
NAMES = [
    "pip -q install pytest",
    "pip install \\\n  pytest==8 \\\n  pytest",
    "uvx --with pytest python x.py",
    '[ -x "$(command -v pytest)" ]',
    "case $R in\n pytest) x;;\n py.test|pytest) y;;\nesac",
    "case $R in pytest) x;; esac",
    'log "Running pytest"',
    'echo "now; pytest"',
    'python -c "import pytest"',
    "cat <<E\npytest\nE\n",
    "cat <<-'E'\npytest\nE\n",
    "cat <<\\E\npytest\nE\n",
    "make # pytest",
]


ROW_SCRIPTS = {
    "/tests/test.sh": 'mkdir -p /logs\nbash "$TEST_DIR/run-uv-pytest.sh"\necho $? > /logs/code\n',
    "/tests/run-uv-pytest.sh": "uvx \\\n  -w pytest==8.4.1 \\\n  pytest --ctrf /logs/c.json /tests/t.py\n",
    "/tests/run.sh": 'run() {\n  QT=1 dbus-run-session -- python -bb -m pytest -v "$@"\n}\nrun "$1"\n',
    "/tests/native.sh": 'echo "# pytest would be preferred"\npython bin/ansible-test units -v || true\n',
}
IMAGE = {"/root/tests.sh": ".venv/bin/python -m pytest", "/root/env.sh": "export PATH=/opt/bin:$PATH"}


@pytest.mark.parametrize("script", CALLS)
def test_pytest_calls_are_recognised(script: str) -> None:
    assert runs(f"set -e\n{script}\n", PYTEST)


@pytest.mark.parametrize(
    ("command", "is_due"),
    [
        ("git apply - <<'EOF'\n+import pytest\nEOF\npytest x", True),
        ("pytest -c /x/pytest.ini --cov=pytest.x tests/pytest_plugin.py", True),
        ("tox -epy39 -- pytest tests", False),
        ("bash /root/none.sh\nexec pytest", True),
        ("bash /root/tests.sh", True),
        ("source /root/env.sh; make test", False),
        ("cd /app\nbash /tests/test.sh", True),
        ("bash /tests/run.sh tests/test_a.py > /workspace/stdout.log", True),
        ("bash /tests/native.sh", False),
    ],
)
async def test_scripts_of_the_row_and_of_the_image_are_read(command: str, is_due: bool) -> None:
    assert await recorded(command, IMAGE, ROW_SCRIPTS) is is_due


@pytest.mark.parametrize("script", NAMES)
async def test_mentions_of_pytest_are_not_calls(script: str) -> None:
    assert not runs(f"set -e\n{script}\nmake check\n", PYTEST)
    assert not await recorded(script)


@pytest.mark.parametrize(
    "script",
    [
        "unset A PYTHONPATH\npytest",
        "env -u PYTHONPATH pytest",
        "env -i PATH=$PATH pytest",
        "PYTHONPATH= pytest",
        "PYTEST_ADDOPTS='' pytest",
        "python3 -B -Es -m pytest",
        "tox -e lint\npytest",
    ],
)
async def test_scripts_that_drop_the_recorder_settings_are_not_recordable(script: str) -> None:
    assert not await recorded(script)
    assert not await recorded("bash /tests/test.sh", row={"/tests/test.sh": script})
    assert not await recorded("bash /image/test.sh", {"/image/test.sh": script})


async def test_only_scripts_of_the_row_may_override_recorder_settings() -> None:
    settings = "PYTHONPATH=src pytest"
    assert await recorded(settings)
    assert await recorded("bash /tests/test.sh", row={"/tests/test.sh": settings})
    assert not await recorded("bash /image/test.sh", {"/image/test.sh": settings})
    assert not await recorded("source /image/env.sh\npytest", {"/image/env.sh": "export PYTHONPATH=/opt/lib"})
    kept = {"/image/env.sh": "export PYTHONPATH=/opt/lib:$PYTHONPATH"}
    assert await recorded("source /image/env.sh\npytest", kept)


BUILD = "/testbed/build.sh"
NAMED = "\n".join(f"bash /testbed/{number}.sh" for number in range(30))


@pytest.mark.parametrize(
    "text", ["true tox", "true /testbed/x/run_tests.sh", NAMED, "unset PYTHONPATH", "A=1\nPYTHONPATH=x true"]
)
async def test_a_changed_script_cannot_disable_recording(text: str) -> None:
    image = {BUILD: text, "/testbed/x/run_tests.sh": "true"}
    command = f"bash {BUILD}\nbash /tests/test.sh"
    assert await recorded(f"bash {BUILD}\npytest -q", image, changed=[BUILD])
    assert await recorded(command, image, row={"/tests/test.sh": "pytest -q"}, changed=[BUILD])


async def test_pytest_in_a_changed_script_is_recordable() -> None:
    assert await recorded(f"bash {BUILD}", {BUILD: "pytest -q"}, changed=[BUILD])
    assert not await recorded(f"test -f {BUILD}", {BUILD: "pytest -q"}, changed=[BUILD])


@pytest.mark.parametrize(
    ("line", "extended"),
    [
        ("PYTEST_ADDOPTS='-x' pytest", "PYTEST_ADDOPTS='-p trainyard_recorder -x' pytest"),
        ('export PYTEST_ADDOPTS=" -x"', 'export PYTEST_ADDOPTS="-p trainyard_recorder  -x"'),
        ("PYTEST_ADDOPTS=-x pytest", "PYTEST_ADDOPTS=-p\\ trainyard_recorder\\ -x pytest"),
        ("PYTHONPATH='src' pytest", "PYTHONPATH='/tmp/f:src' pytest"),
    ],
)
def test_script_settings_are_extended_by_the_recorder(line: str, extended: str) -> None:
    assert prepare(line, NONCES, with_pytest=True).splitlines()[-1] == extended
    unrecorded = prepare(line, NONCES, with_pytest=False)
    assert unrecorded.splitlines()[-1] == line
    assert "trainyard_recorder" not in unrecorded
