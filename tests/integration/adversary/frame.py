"""Hostile and honest submissions, graded in real sandboxes.

Each module of ``families`` defines one family in ``FAMILY``. ``make test`` grades the first submission of
each family under its first rule; ``make drills ONLY=adversary`` grades every submission under all of its
rules, and some in Docker. To add a submission, append it to a family with the rules under which its verdict
may differ. ``ends`` lists the expected verdicts; a hostile submission never lists ``PASSED``. ``task``
derives another task from the toy task.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.health import row_content
from engine.datasets.importers.formats.swe_bench_pro import PARSER
from engine.grading.counterfactual.base import Reference
from engine.grading.grader import Grader
from engine.sandbox.base import SandboxBackend
from engine.testing.markers import END, START
from engine.testing.toolchain import MOUNT
from engine.types import Grade, GradeRule, TaskRow, Verdict
from tests.builders.dataset_builders import BROKEN, NO_PLUGINS, NUMBERS, MemoryStore, patched
from tests.integration.adversary import families

STILL_BROKEN = NUMBERS.replace(*BROKEN)
PYTEST = (
    f"PYTHONPATH={MOUNT} python3 -m pytest -rA -c {MOUNT}/pytest.ini --rootdir=/testbed "
    f"-p no:cacheprovider {NO_PLUGINS} tests/test_numbers.py"
)
IDS = (
    *(f"tests/test_numbers.py::test_clamp[{case}]" for case in ("-1-0", "5-5", "11-10", "0-0")),
    "tests/test_numbers.py::TestMean::test_mean",
    "tests/test_numbers.py::test_positives",
)
REWARD = "/tmp/verifier/reward.txt"
WORKSPACE = "/tmp/workspace"
_LOGS = (f"{WORKSPACE}/stdout.log", f"{WORKSPACE}/stderr.log")
_PARSE = """
import json, re, sys
found = re.findall(r"^(PASSED|FAILED|ERROR) (\\S+)", open(sys.argv[1]).read(), re.MULTILINE)
tests = {name: status for status, name in found}
json.dump({"tests": [{"name": n, "status": s} for n, s in tests.items()]}, open(sys.argv[3], "w"))
"""
_TEST_SH = (
    f"mkdir -p /tmp/verifier\n{PYTEST}\nif [ $? -eq 0 ]; then echo 1 > {REWARD}; else echo 0 > {REWARD}; fi\n"
)


def _script(rule: GradeRule, command: str, **fields: Any) -> dict[str, Any]:
    return {"grade_rule": rule, "test_command": f"#!/bin/bash\n{command}\n", **fields}


RULES: dict[str, dict[str, Any]] = {
    "signed": {},
    "log": _script(
        GradeRule.F2P_P2P,
        f"set -uxo pipefail\necho ready\n: '{START}'\n{PYTEST}\n: '{END}'\ngit checkout -- tests || true",
        log_parser="parse_log_pytest",
    ),
    "map": _script(
        GradeRule.MAP_EQUAL,
        PYTEST,
        expected={".".join(test.split("::")[1:]): "PASSED" for test in IDS},
        log_parser="r2e_pytest",
    ),
    "exit code": _script(GradeRule.EXIT_CODE, PYTEST),
    "junit": _script(GradeRule.JUNIT, f"{PYTEST} --junitxml={{junit}}"),
    "reward": _script(
        GradeRule.REWARD_FILE,
        "bash /tmp/tests/test.sh",
        test_files={"/tmp/tests/test.sh": _TEST_SH},
        metadata={"reward_files": [REWARD]},
    ),
    "parser": _script(
        GradeRule.F2P_P2P,
        f"echo '{START}'\nbash {WORKSPACE}/run_script.sh > {_LOGS[0]} 2> {_LOGS[1]}\necho '{END}'",
        test_files={f"{WORKSPACE}/run_script.sh": f"{PYTEST}\n", f"{WORKSPACE}/parser.py": _PARSE},
        log_parser=PARSER,
        metadata={
            "parser": {
                "script": f"{WORKSPACE}/parser.py",
                "command": f"python3 {WORKSPACE}/parser.py {' '.join(_LOGS)} {WORKSPACE}/output.json",
                "logs": list(_LOGS),
                "result": f"{WORKSPACE}/output.json",
            }
        },
    ),
}
"""Grading variants of the toy task by name: fields of its answer. ``reward`` has the layout of Harbor,
``parser`` that of SWE-bench Pro."""
EVERY = tuple(RULES)
SIGNED = ("signed",)
"""Rule for submissions whose verdict is the same under every rule."""
BOTH = ("signed", "log")

STOPPED = frozenset({Verdict.FAILED, Verdict.TAMPERED, Verdict.PATCH_FAILED})
TAMPERED = frozenset({Verdict.TAMPERED})
FAILED = frozenset({Verdict.FAILED})
PASSED = frozenset({Verdict.PASSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A patch, the grade rules to grade it under, and its expected verdicts."""

    name: str
    patch: str
    """Diff against the toy task, in which ``clamp`` is broken."""
    rules: tuple[str, ...] = EVERY
    ends: frozenset[Verdict] = STOPPED
    task: Callable[[TaskRow], TaskRow] | None = None
    """Function that derives another task from the toy task with its grade rule."""
    audited: bool = False
    """Whether mutated tests must stop the patch; otherwise it is graded without them."""


def submissions() -> Iterator[tuple[str, Submission]]:
    """Yield every submission with the name of its family."""
    for module in pkgutil.iter_modules(families.__path__):
        family = importlib.import_module(f"{families.__name__}.{module.name}").FAMILY
        yield from ((module.name, submission) for submission in family)


def find(name: str) -> Submission:
    """Return the submission with this name."""
    return next(submission for _, submission in submissions() if submission.name == name)


def under(row: TaskRow, rule: str) -> TaskRow:
    """Return the task graded by another rule."""
    return replace(row, answer=replace(row.answer, **RULES[rule]))


class _ProcessReferences(MemoryStore):
    """In-memory reference store of this process; many submissions share a row."""

    _made: ClassVar[dict[str, Reference]] = {}

    async def load(self, row: TaskRow) -> Reference | None:
        return self._made.get(row_content(row))

    async def save(self, row: TaskRow, reference: Reference) -> None:
        self._made[row_content(row)] = reference


async def grade(backend: SandboxBackend, row: TaskRow, submission: Submission, rule: str) -> Grade:
    """Grade a submission under a rule, as in evaluations if it is audited."""
    row = under(row, rule)
    if submission.task is not None:
        row = submission.task(row)
    config = GradingConfig(timeout_s=60.0, counterfactual="always" if submission.audited else "off")
    grader = Grader(
        backend=backend,
        config=config,
        sandbox=SandboxConfig(memory_mb=256),
        run_id="adversary",
        store=_ProcessReferences(),
    )
    return await grader.grade(row, submission.patch, evaluation=submission.audited)


async def assert_ends_right(backend: SandboxBackend, row: TaskRow, submission: Submission, rule: str) -> None:
    """Grade a submission and check its verdict and its reward."""
    result = await grade(backend, row, submission, rule)
    assert result.verdict in submission.ends, f"{result.verdict}: {result.detail}\n{result.log[-3000:]}"
    assert bool(result.reward) is (submission.ends == PASSED), f"it got {result.reward}: {result.detail}"


def code(text: str) -> str:
    """Return a patch whose module runs ``text`` when it is imported and stays broken."""
    return patched(text + STILL_BROKEN)


def in_call(text: str) -> str:
    """Return a patch in which the broken function runs ``text`` whenever it is called."""
    body = "".join(f"    {line}\n" if line else "\n" for line in text.strip("\n").split("\n"))
    return patched(STILL_BROKEN.replace('    """Value within bounds."""\n', body, 1))
