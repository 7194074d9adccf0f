"""Execution of foreign test scripts, and collection of the evidence.

- The script goes to bash through stdin, which is empty before the first command runs: neither a file nor a
  command line holds it.
- The constant markers around the tests are replaced by lines with a nonce of this grading; each must come
  exactly once. The exit code of the tests follows the end marker.
- Where the script runs pytest, ``pytest_recorder`` records it, and ``pytest_witness`` is the parent of the
  script's shell: it alone holds the key of the record, and it accepts recorders from where the tests begin,
  after everything that builds or installs the project.
- Reports and rewards are read as files, after every process of the script has been killed.
- A script that it runs with bash is sourced instead: so bash reads the whole file at once, and changes to it
  while it runs have no effect. Changed test files and scripts are found afterwards: ``guarded_files``.
- Test files given as an overlay are put in place where the tests start: at the start marker, after everything
  that builds the project or places tests itself; without markers before the script.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import posixpath
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.datasets.importers.formats.evalscript import END, START
from engine.datasets.testing.testrun import (
    LOG_BYTES,
    Record,
    TestCase,
    log_text,
    parse_junit,
    read_record,
    submission,
)
from engine.datasets.testing.toolchain import recorder_scripts
from engine.grading.evidence import SEVERITY, Evidence
from engine.grading.logs import swebench
from engine.grading.rules.reward_file import parse_rewards, reward_files, reward_of
from engine.grading.running.guarded_files import GuardedFiles
from engine.grading.running.placement import commands, place_files, placed_in, placing_command
from engine.sandbox.agent.interpreters import launcher
from engine.sandbox.base import ExecResult, Sandbox
from engine.types import GradeRule, TaskAnswer

JUNIT = "{junit}"
_PYTEST = re.compile(r"(?<![\w./-])(?:py\.test|pytest)(?![\w.-])|/(?:py\.test|pytest)(?=\s)|-m\s+pytest\b")
_TOX = re.compile(r"(?<![\w./-])(?:tox|nox)(?![\w.-])")
_SCRIPT = re.compile(r"(?<![\w$])/[\w./-]+\.sh\b")
_RUNS_SCRIPT = re.compile(r"^((?:exec +)?)bash +(/[\w./-]+\.sh)(?=\s|$)")
_SOURCED = """\\1bash -c 'source "$0" "$@"' \\2"""
_INSTALLING = re.compile(r"\b(?:pip|conda|uv|apt-get) +(?:\w+ +)?install\b")
_REPORT_BYTES = 64 << 20
_SMALL = 1 << 20
_SHELL = 'eval "$(cat)"'
_WITNESS = (
    "sys.argv[1:] = ['{folder}']; sys.path.insert(0, '{folder}'); import trainyard_witness as it; it.main()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nonces:
    """Secrets known only to this grading."""

    start: str
    end: str
    folder: str
    """Folder of the recorder and reports inside the sandbox."""
    key: str = ""
    """Key of the record; empty where the script does not run pytest."""
    token: str = ""
    """Text that the script writes to ``begin`` when its tests begin."""

    @property
    def junit(self) -> str:
        """Return the path of the JUnit report."""
        return f"{self.folder}/junit.xml"


async def run_script(
    box: Sandbox,
    answer: TaskAnswer,
    *,
    timeout_s: float,
    overlay: Mapping[str, bytes],
    changed: Iterable[str],
) -> Evidence:
    """Run an answer's test command in the sandbox's workdir.

    Args:
        changed: paths, relative to the workdir, that the graded patch changed.
        overlay: path, relative to the workdir or absolute, → content of test files that are in place when
            the tests start.

    Raises:
        SandboxError: the sandbox failed; failing, hanging and vanishing tests are evidence.
    """
    recorded = await _runs_pytest(box, answer.test_command)
    nonces = _Nonces(
        start=f"trainyard-{secrets.token_hex(16)}",
        end=f"trainyard-{secrets.token_hex(16)}",
        folder=f"/tmp/trainyard-{secrets.token_hex(8)}",  # noqa: S108  inside the sandbox
        key=secrets.token_hex(24) if recorded else "",
        token=secrets.token_hex(24) if recorded else "",
    )
    if nonces.key:
        for name, source in recorder_scripts().items():
            await box.write_file(f"{nonces.folder}/{name}", source)
        await box.write_file(f"{nonces.folder}/submission", submission(box.spec.workdir, changed))
        for path, content in answer.test_files.items():
            if path.endswith(".sh") and (extended := _extended(content, nonces.folder)) != content:
                await box.write_file(posixpath.join(box.spec.workdir, path), extended.encode())
    command = await _with_overlay(box, answer, overlay)
    script = prepare(command, nonces)
    recorder = [f"{nonces.folder}/{name}" for name in (*recorder_scripts(), "submission")]
    read_only = [*_SCRIPT.findall(answer.test_command), *recorder]
    guarded = await GuardedFiles.hashed(box, answer, scripts=read_only, overlay=overlay)
    result = await box.exec(
        launcher(_WITNESS.format(folder=nonces.folder)) if nonces.key else ["/bin/bash", "-c", _SHELL],
        timeout_s=timeout_s,
        stdin=(f"{nonces.key}\n{nonces.token}\n{script}" if nonces.key else script).encode(
            "utf-8", "surrogateescape"
        ),
        output_cap=LOG_BYTES,
    )
    evidence = await asyncio.to_thread(read_log, result, nonces, marked=_marked(answer.test_command))
    if result.timed_out or evidence.problem:
        return evidence
    return await guarded.checked(box, await _with_reports(box, answer, nonces, evidence))


async def _with_overlay(box: Sandbox, answer: TaskAnswer, overlay: Mapping[str, bytes]) -> str:
    """Return the test command, which puts the overlay in place, or put it in place now.

    The command may also leave the placing of tests to a script that it runs: then that one is changed.
    """
    if not overlay:
        return answer.test_command
    placing = await asyncio.to_thread(placing_command, box.spec.workdir, overlay)
    runners = [path for path in answer.test_files if _marked(answer.test_command) and path.endswith(".sh")]
    if (command := placed_in(answer.test_command, placing, runners)) is not None:
        return command
    for path in dict.fromkeys(_SCRIPT.findall(answer.test_command)):
        try:
            text = (await box.read_file(path, max_bytes=_SMALL)).decode("utf-8", "surrogateescape")
        except (OSError, ValueError):
            continue
        if (changed := placed_in(text, placing)) is not None:
            await place_files(box, {path: changed.encode("utf-8", "surrogateescape")})
            return answer.test_command
    await place_files(box, overlay)
    return answer.test_command


async def _runs_pytest(box: Sandbox, command: str) -> bool:
    """Return whether the command runs pytest in a way that can be recorded, judged by its text."""
    text = command
    for path in dict.fromkeys(_SCRIPT.findall(command)):
        if not path.endswith("/run_tests.sh"):
            continue
        try:
            text = (await box.read_file(path, max_bytes=_SMALL)).decode("utf-8", "replace")
        except (OSError, ValueError):
            continue
        break
    if _TOX.search(text):
        return False  # tox and nox pass no environment on
    return any(_PYTEST.search(line) for line in _commands(text))


def _commands(text: str) -> list[str]:
    """Return the lines that are commands, without comments, here-documents and installations."""
    lines = [line for _, _, command in commands(text) for line in command.split("\n")]
    return [line for line in lines if not line.startswith("#") and not _INSTALLING.search(line)]


def _marked(command: str) -> bool:
    return START in command and END in command


def prepare(command: str, nonces: _Nonces) -> str:
    """Return the script to run: unique markers, unique report path, the recorder."""
    hand_over = f"printf {nonces.token} > {nonces.folder}/begin; " if nonces.key else ""
    # Braces with their own stderr keep the shell's trace (set -x) out of the log.
    begin = f"{{ {hand_over}printf '\\n%s\\n' {nonces.start}; }} 2>/dev/null"
    finish = f"{{ TRAINYARD_CODE=$?; printf '\\n%s %s\\n' {nonces.end} \"$TRAINYARD_CODE\"; }} 2>/dev/null"
    lines = ["exec 2>&1"]
    if nonces.key:
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
    """Return the script with the recorder's folder kept in its own settings of PYTHONPATH."""
    return re.sub(r"\bPYTHONPATH=([\"']?)(?=[^\"'\s])", rf"PYTHONPATH=\1{folder}:", script)


def read_log(result: ExecResult, nonces: _Nonces, *, marked: bool) -> Evidence:
    """Return the evidence contained in the log alone.

    Args:
        marked: whether the script prints markers.
    """
    text = log_text(result)
    if not marked:
        log = published(text, result.exit_code)
        timed_out = "the tests hit their deadline" if result.timed_out else ""
        return Evidence(
            log=log,
            judged=log,
            shown=text,
            exit_code=result.exit_code,
            seconds=result.seconds,
            timed_out=result.timed_out,
            problem=timed_out,
        )
    starts = [found.span() for found in _lines(nonces.start, text)]
    ends = [
        (found.start(), found.end(), int(found[1])) for found in _lines(rf"{nonces.end} (\d{{1,9}})", text)
    ]
    once = len(starts) == 1 and len(ends) == 1 and starts[0][1] <= ends[0][0]
    before = text[: starts[0][0]] if once else ""
    shown = text[starts[0][1] : ends[0][0]] if once else ""
    after = text[ends[0][1] :] if once else ""
    code = ends[0][2] if once else None
    return Evidence(
        log=published(shown, code, before, after) if once else _neutral(text),
        judged=published(shown, code) if once else "",
        shown=shown,
        exit_code=code,
        seconds=result.seconds,
        timed_out=result.timed_out,
        problem=_problem(result, len(starts), len(ends), once),
        forged=len(starts) > 1 or len(ends) > 1 or (len(ends) == 1 and not once),
    )


def _lines(pattern: str, text: str) -> Iterator[re.Match[str]]:
    """Yield the lines that match ``pattern``, with their ends; fast where it begins with a rare word."""
    for found in re.finditer(rf"{pattern}(?:\n|\Z)", text):
        if found.start() == 0 or text[found.start() - 1] == "\n":
            yield found


def _problem(result: ExecResult, starts: int, ends: int, once: bool) -> str:
    if result.timed_out:
        return "the tests hit their deadline"
    if once:
        return ""
    if starts > 1 or ends > 1 or (starts == 0 and ends == 1):
        return "the markers around the tests were forged"
    if starts == 0:
        return f"the script ended before its tests (exit code {result.exit_code})"
    return f"the script ended during its tests (exit code {result.exit_code})"


def published(shown: str, exit_code: int | None, before: str = "", after: str = "") -> str:
    """Return the log in the official format; constant markers printed by tests are neutralised."""
    code = "" if exit_code is None else f"{swebench.EXIT_CODE}: {exit_code}\n"
    body = shown if shown.endswith("\n") else f"{shown}\n"
    return f"{_neutral(before)}{START}\n{_neutral(body)}{END}\n{code}{_neutral(after)}"


def _neutral(text: str) -> str:
    for marker in (START, END, swebench.EXIT_CODE):
        text = text.replace(marker, marker.replace(">>>>>", "> > >"))
    return text


async def _with_reports(box: Sandbox, answer: TaskAnswer, nonces: _Nonces, evidence: Evidence) -> Evidence:
    record, forged = await _record(box, nonces)
    cases: Mapping[tuple[str, str], TestCase] = {}
    rewards: Mapping[str, float] = {}
    if answer.grade_rule is GradeRule.JUNIT:
        cases = await _cases(box, nonces.junit)
    elif answer.grade_rule is GradeRule.REWARD_FILE:
        rewards = await _rewards(box, answer)
    return replace(
        evidence,
        problem="the test runner's record is not its own" if forged else evidence.problem,
        forged=evidence.forged or forged,
        signs=record.altered if record is not None else (),
        record_wanted=bool(nonces.key),
        record=record,
        cases=cases,
        rewards=rewards,
    )


async def _record(box: Sandbox, nonces: _Nonces) -> tuple[Record | None, bool]:
    """Return the sealed record, and whether there is one that is not sealed."""
    if not nonces.key:
        return None, False
    try:
        data = await box.read_file(f"{nonces.folder}/record", max_bytes=_REPORT_BYTES)
        return await asyncio.to_thread(_unsealed, data, nonces.key.encode()), False
    except FileNotFoundError:
        return None, False
    except (OSError, ValueError):
        return None, True


def _unsealed(data: bytes, key: bytes) -> Record | None:
    """Return the content of a record. Raises ValueError when it is not sealed with the key."""
    signature, _, payload = data.partition(b"\n")
    if not hmac.compare_digest(signature, hmac.new(key, payload, hashlib.sha256).hexdigest().encode()):
        raise ValueError("the seal is broken")
    return _merged([read_record(part) for part in payload.split(b"\n\n") if part])


def _merged(records: Sequence[Record]) -> Record | None:
    """Return several sessions merged into one; of several outcomes of a test the worst counts.

    The outcomes of a session that did not come to its end count for nothing; None where none did.
    """
    ended = [record for record in records if record.exit_status >= 0]
    outcomes: dict[str, str] = {}
    for record in ended:
        for name, outcome in record.outcomes.items():
            outcomes[name] = max(outcomes.get(name, outcome), outcome, key=SEVERITY.index)
    altered = tuple(name for record in records for name in record.altered)
    if not ended and not altered:
        return None
    complete = len(ended) == len(records)
    status = max(record.exit_status for record in ended) if complete else -1
    return Record(exit_status=status, altered=altered, outcomes=outcomes)


async def _cases(box: Sandbox, path: str) -> Mapping[tuple[str, str], TestCase]:
    try:
        data = await box.read_file(path, max_bytes=_REPORT_BYTES)
        return await asyncio.to_thread(parse_junit, data)
    except (OSError, ValueError):
        return {}


async def _rewards(box: Sandbox, answer: TaskAnswer) -> Mapping[str, float]:
    """Return the rewards in the verifier's reward file; of several files the one with the lowest counts.

    None where one is there that cannot be read: what a verifier could not write is not what it meant.
    """
    found: list[Mapping[str, float]] = []
    for path in reward_files(answer):
        try:
            data = await box.read_file(path, max_bytes=_SMALL)
            found.append(await asyncio.to_thread(parse_rewards, path, data.decode("utf-8", "replace")))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError):
            return {}
    return min(found, key=reward_of, default={})
