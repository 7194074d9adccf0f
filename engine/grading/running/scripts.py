"""Execution of foreign test scripts, and collection of the evidence.

- The script goes to bash through stdin, which is empty before the first command runs: neither a file nor a
  command line holds it.
- The constant markers around the tests are replaced by lines with a nonce of this grading; each must occur
  exactly once. The exit code of the tests follows the end marker.
- If the script, or one that it runs, calls pytest or ``unittest``, a recorder records the tests.
  ``pytest_witness`` is then the parent of the script's shell and alone has the key of the record. It accepts
  recorders from the start of the tests, after everything that builds or installs the project.
- Reports and rewards are read as files, after every process of the script has been killed.
- A script that it runs with bash is sourced instead: bash then reads the whole file at once, and changes to
  it while it runs have no effect. Changed test files and scripts are detected afterwards: ``guarded_files``.
- Test files given as an overlay are written where the tests start: at the start marker, after everything that
  builds the project or places tests itself; without markers before the script.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import Mapping

from engine.errors import ImageError
from engine.grading.evidence import Evidence
from engine.grading.running.guarded_files import GuardedFiles
from engine.grading.running.marked_logs import read_log
from engine.grading.running.nonces import Nonces
from engine.grading.running.placement import place_files, placing_command, remove_bytecode, with_placement
from engine.grading.running.pytest_commands import SCRIPT, SCRIPT_BYTES, runs_pytest
from engine.grading.running.reports import read_reports
from engine.grading.running.request import RunRequest
from engine.grading.running.unittest_commands import with_recorded_unittest
from engine.sandbox.agent.interpreters import launcher
from engine.sandbox.base import Sandbox
from engine.testing.markers import END, START
from engine.testing.testrun import LOG_BYTES, submission
from engine.testing.toolchain import recorder_scripts
from engine.types import TaskAnswer

JUNIT = "{junit}"
_RUNS_SCRIPT = re.compile(r"^((?:exec +)?)bash +(/[\w./-]+\.sh)(?=\s|$)")
_SOURCED = """\\1/bin/bash -c 'source "$0" "$@"' \\2"""
_BASH = "/bin/bash"
_SHELL = 'eval "$(cat)"'
_WITNESS = (
    "sys.argv[1:] = ['{folder}']; sys.path.insert(0, '{folder}'); import trainyard_witness as it; it.main()"
)


async def run_script(box: Sandbox, request: RunRequest) -> Evidence:
    """Run an answer's test command in the sandbox's workdir.

    Raises:
        SandboxError: the sandbox failed; failing, hanging and missing tests are evidence.
        ImageError: the image has no bash.
    """
    await _check_bash(box)
    overlay, nonces = request.overlay, Nonces.fresh()
    answer = with_recorded_unittest(request.answer, nonces.folder)
    changed = frozenset(posixpath.join(box.spec.workdir, path) for path in request.changed)
    with_pytest = await runs_pytest(box, request.answer.test_command, _scripts(box, request.answer), changed)
    if answer is not request.answer or with_pytest:
        nonces = nonces.recording()
        await _install_recorder(box, request, answer, nonces.folder, with_pytest=with_pytest)
    command = await _with_overlay(box, answer, overlay)
    script = prepare(command, nonces, with_pytest=with_pytest)
    recorder = [f"{nonces.folder}/{name}" for name in (*recorder_scripts(), "submission")]
    read_only = [*SCRIPT.findall(answer.test_command), *recorder]
    guarded = await GuardedFiles.hashed(box, answer, scripts=read_only, overlay=overlay)
    result = await box.exec(
        launcher(_WITNESS.format(folder=nonces.folder)) if nonces.key else [_BASH, "-c", _SHELL],
        timeout_s=request.timeout_s,
        stdin=(f"{nonces.key}\n{nonces.token}\n{script}" if nonces.key else script).encode(
            "utf-8", "surrogateescape"
        ),
        output_cap=LOG_BYTES,
    )
    evidence = await asyncio.to_thread(read_log, result, nonces, marked=_marked(answer.test_command))
    if result.timed_out or evidence.problem:
        return evidence
    return await guarded.checked(box, await read_reports(box, answer, nonces, evidence))


async def _check_bash(box: Sandbox) -> None:
    """Check that the image can run test scripts, before the submission's code runs. Raises ImageError."""
    try:
        await box.read_file(_BASH, max_bytes=0)
    except (FileNotFoundError, NotADirectoryError):
        raise ImageError(
            f"image '{box.spec.image}' has no {_BASH}, which runs the test scripts: install bash in the image"
        ) from None
    except (OSError, ValueError):
        return  # it exists, but is larger than the limit or not readable


async def _install_recorder(
    box: Sandbox, request: RunRequest, answer: TaskAnswer, folder: str, *, with_pytest: bool
) -> None:
    """Write the recorder, and the row's scripts extended for it.

    Args:
        answer: answer of the request after ``with_recorded_unittest``.
    """
    for name, source in recorder_scripts().items():
        await box.write_file(f"{folder}/{name}", source)
    await box.write_file(f"{folder}/submission", submission(box.spec.workdir, request.changed))
    before = _scripts(box, request.answer)
    for path, text in _scripts(box, answer).items():
        if (changed := _extended(text, folder) if with_pytest else text) != before[path]:
            await box.write_file(path, changed.encode("utf-8", "surrogateescape"))


def _scripts(box: Sandbox, answer: TaskAnswer) -> dict[str, str]:
    """Return absolute path → text of an answer's shell scripts."""
    return {
        posixpath.join(box.spec.workdir, path): text
        for path, text in answer.test_files.items()
        if path.endswith(".sh")
    }


async def _with_overlay(box: Sandbox, answer: TaskAnswer, overlay: Mapping[str, bytes]) -> str:
    """Return the test command, extended to write the overlay; if it cannot be, write the overlay now.

    If a script that the command runs places the tests, that script is extended instead.
    """
    if not overlay:
        return answer.test_command
    await remove_bytecode(box, overlay)
    placing = await asyncio.to_thread(placing_command, box.spec.workdir, overlay)
    runners = [path for path in answer.test_files if _marked(answer.test_command) and path.endswith(".sh")]
    if (command := with_placement(answer.test_command, placing, runners)) is not None:
        return command
    for path in dict.fromkeys(SCRIPT.findall(answer.test_command)):
        try:
            text = (await box.read_file(path, max_bytes=SCRIPT_BYTES)).decode("utf-8", "surrogateescape")
        except (OSError, ValueError):
            continue
        if (changed := with_placement(text, placing)) is not None:
            await place_files(box, {path: changed.encode("utf-8", "surrogateescape")})
            return answer.test_command
    await place_files(box, overlay)
    return answer.test_command


def _marked(command: str) -> bool:
    return START in command and END in command


def prepare(command: str, nonces: Nonces, *, with_pytest: bool) -> str:
    """Return the script to run: unique markers, unique report path, the recorder.

    Args:
        with_pytest: whether pytest loads the recorder.
    """
    hand_over = f"printf {nonces.token} > {nonces.folder}/begin; " if nonces.key else ""
    # Braces with their own stderr keep the shell's trace (set -x) out of the log.
    begin = f"{{ {hand_over}printf '\\n%s\\n' {nonces.start}; }} 2>/dev/null"
    finish = f"{{ TRAINYARD_CODE=$?; printf '\\n%s %s\\n' {nonces.end} \"$TRAINYARD_CODE\"; }} 2>/dev/null"
    lines = ["exec 2>&1"]
    if with_pytest:
        lines += [
            f"export PYTHONPATH={nonces.folder}${{PYTHONPATH:+:$PYTHONPATH}}",
            'export PYTEST_ADDOPTS="-p trainyard_recorder${PYTEST_ADDOPTS:+ $PYTEST_ADDOPTS}"',
        ]
        command = _extended(command, nonces.folder)
    if not _marked(command):
        lines.append(f"{{ {hand_over}:; }} 2>/dev/null")
    for line in command.replace(JUNIT, nonces.junit).split("\n"):
        if START in line:
            lines.append(begin)
        elif END in line:
            lines.append(finish)
        else:
            lines.append(_RUNS_SCRIPT.sub(_SOURCED, line))
    return "\n".join(lines) + "\n"


def _extended(script: str, folder: str) -> str:
    """Return the script with the recorder added to its settings of PYTHONPATH and PYTEST_ADDOPTS.

    PYTEST_PLUGINS would need no such edit, but pytester removes only PYTEST_ADDOPTS from its own sessions.
    """
    script = re.sub(r"\bPYTHONPATH=([\"']?)(?=[^\"'\s])", rf"PYTHONPATH=\1{folder}:", script)
    return re.sub(
        r"\bPYTEST_ADDOPTS=([\"']?)(?=[^\"'\s]|(?<=[\"'])\s)",
        lambda match: match[0] + (r"-p trainyard_recorder " if match[1] else r"-p\ trainyard_recorder\ "),
        script,
    )
