"""Scripts that ``node`` runs, whose exit code decides: patches that end them, or read what they ask."""
# ruff: noqa: E501  (literal scripts)

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from engine.types import GradeRule, TaskRow, Verdict
from tests.integration.adversary.frame import EVERY_KIND, PASSED, TAMPERED, Layer, Submission

_SOURCE = "src/clamp.js"
_SOLVED = "module.exports = (x, low, high) => Math.min(Math.max(x, low), high)\n"
_OTHERWISE = (
    "module.exports = function (x, low, high) {\n  if (x < low) return low\n  return x > high ? high : x\n}\n"
)
_WRONG = "module.exports = (x, low, high) => Math.max(x, low)\n"
_START = "const assert = require('assert')\nconst clamp = require('../src/clamp')\n\n"
_SCRIPTS = {
    "assertions": f"{_START}assert.equal(clamp(-4, 0, 10), 0)\nassert.strictEqual(clamp(12, 0, 10), 10)\n"
    "assert.deepEqual([clamp(5, 0, 7), clamp(8, 0, 7)], [5, 7])\nconsole.log('ok')\n",
    "counted failures": "const clamp = require('../src/clamp')\nlet failures = 0\n\n"
    "function check(name, got, want) {\n  if (got !== want) {\n    failures++\n"
    "    console.error(`${name}: ${got} is not ${want}`)\n  }\n}\n\n"
    "check('below', clamp(-4, 0, 10), 0)\ncheck('above', clamp(12, 0, 10), 10)\n"
    "check('far above', clamp(400, 0, 60), 60)\nprocess.exit(failures ? 1 : 0)\n",
}
_FORGED = {
    "an exit": "process.exit(0)\n",
    "an exit in a call": "module.exports = () => process.exit(0)\n",
    "an exit code of its own": "process.on('exit', () => process.reallyExit(0))\nmodule.exports = () => 0\n",
    "an exit that is always good": "const exit = process.exit\nprocess.exit = () => exit(0)\n"
    "process.on('uncaughtException', () => exit(0))\nmodule.exports = () => 0\n",
    "the expected value in the source": "module.exports = (x) => {\n"
    "  const text = require('fs').readFileSync(require.main.filename, 'utf8')\n"
    "  return Number((text.match(`clamp\\\\(${x}, 0, \\\\d+\\\\), (\\\\d+)\\\\)`) || [0, x > 7 ? 7 : x])[1])\n}\n",
}  # fmt: skip
_REPLACED = (
    "const assert = require('assert')\n"
    "for (const name of ['equal', 'strictEqual', 'deepEqual']) assert[name] = () => {}\nmodule.exports = () => 0\n"
)


def _new(content: str) -> str:
    """Return a patch that adds the module."""
    lines = content.splitlines()
    body = "".join(f"+{line}\n" for line in lines)
    header = f"diff --git a/{_SOURCE} b/{_SOURCE}\nnew file mode 100644\n--- /dev/null\n+++ b/{_SOURCE}\n"
    return f"{header}@@ -0,0 +1,{len(lines)} @@\n{body}"


def _with(script: str) -> Callable[[TaskRow], TaskRow]:
    def task(row: TaskRow) -> TaskRow:
        answer = replace(
            row.answer,
            gold_patch=_new(_SOLVED),
            test_files={"tests/clamp.js": script},
            test_command="#!/bin/bash\nnode tests/clamp.js\n",
            grade_rule=GradeRule.EXIT_CODE,
            fail_to_pass=(),
            pass_to_pass=(),
        )
        return replace(row, answer=answer)

    return task


def _of(kind: str, name: str, content: str, ends: frozenset[Verdict]) -> Submission:
    return Submission(
        name=f"{kind} in a script, {name}",
        patch=_new(content),
        layer=Layer.COUNTERFACTUAL,
        rules=("exit code",),
        ends=ends,
        task=_with(_SCRIPTS[kind]),
        extra=EVERY_KIND,
        tools=("node",),
    )


def honest() -> Iterator[Submission]:
    """Yield solutions of each script and an attempt."""
    for kind in _SCRIPTS:
        yield _of(kind, "solved", _SOLVED, PASSED)
        yield _of(kind, "solved otherwise", _OTHERWISE, PASSED)
        yield _of(kind, "not solved", _WRONG, frozenset({Verdict.FAILED}))


FAMILY = (
    *(_of(kind, name, content, TAMPERED) for kind in _SCRIPTS for name, content in _FORGED.items()),
    _of("assertions", "replaced functions", _REPLACED, TAMPERED),
)
