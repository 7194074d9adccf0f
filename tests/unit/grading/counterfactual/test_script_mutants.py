"""False scripts in JavaScript whose exit code is the verdict, proven false by running them."""
# ruff: noqa: E501  (literal scripts)

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from engine.grading.counterfactual.base import SCRIPT, Mutant, MutantKind, apply_mutants
from engine.grading.counterfactual.languages import mutator_of

RIGHT = (
    "exports.square = (n) => n * n\nexports.list = (n) => [n, n * n]\n"
    "exports.fail = () => { throw new TypeError('x') }\n"
)
OTHER = (
    "exports.square = (n) => n ** 2\nexports.list = function (n) { return [n].concat(n * n) }\n"
    "exports.fail = () => null.x\n"
)
HEADER = "const assert = require('assert')\nconst { square, list, fail } = require('./answer.js')\n"
MODULE = "import assert from 'node:assert/strict'\nimport { square, list, fail } from './answer.js'\n"
COUNTED = "let failures = 0, passed = 0\n"
CHECK = "function check(name, got, want) {\n  if (got !== want) {\n    failures++\n    console.error(name, got, want)\n  } else {\n    passed++\n  }\n}\n"
CALLS = "check('of three', square(3), 9)\ncheck('of two', square(2), 4)\n"

QUIET = {
    "assertions": HEADER + "assert.equal(square(3), 9)\nassert.deepStrictEqual(list(3), [3, 9], 'of three')\nconsole.log('ok')\n",
    "strict": "'use strict'\nvar assert = require('node:assert').strict\nvar a = require('./answer.js')\nassert.equal(a.square(3), 9)\n",
    "function of the package": "const eq = require('assert').deepEqual\nconst { list } = require('./answer.js')\neq(list(3), [3, 9])\n",
    "functions of the package": (
        "const { equal, deepStrictEqual: same } = require('assert')\nconst { square, list } = require('./answer.js')\n"
        "equal(square(3), 9)\nsame(list(3), [3, 9])\n"
    ),
    "member of the package": HEADER + "const is = assert.strictEqual\nis(square(3), 9)\n",
    "another name": "const t = require('assert')\nconst { square } = require('./answer.js')\nt.strictEqual(square(3), 9)\n",
    "condition": HEADER + "assert(square(3) === 9)\nassert.ok(square(2) == 4)\n",
    "name": HEADER + "const wanted = [3, 9]\nassert.deepEqual(list(3), wanted)\n",
    "error": HEADER + "assert.throws(() => fail(), TypeError)\n",
    "blocks": HEADER + "{\n  const got = square(3)\n  assert.equal(got, 9)\n}\nfor (const n of [2, -2]) {\n  assert.equal(square(n), 4)\n}\n",
    "functions called": (
        HEADER + "testSquare()\nfunction testSquare() {\n  assert.equal(square(3), 9)\n}\n"
        "const testList = () => {\n  assert.deepEqual(list(3), [3, 9])\n}\ntestList()\n"
    ),
    "main": HEADER + "function main() {\n  assert.equal(square(3), 9)\n}\nif (require.main === module) {\n  main()\n}\n",
    "function written in place": HEADER + ";(function () {\n  assert.equal(square(3), 9)\n})();\n(() => {\n  assert.equal(square(2), 4)\n})()\n",
    "handler that ends": HEADER + "try {\n  assert.equal(square(3), 9)\n} catch (error) {\n  console.error(error)\n  process.exit(1)\n}\n",
    "handler that throws": HEADER + "try {\n  assert.equal(square(3), 9)\n} catch (error) {\n  console.error(error)\n  throw error\n}\n",
    "success at the end": HEADER + "assert.equal(square(3), 9)\nconsole.log('ok')\nprocess.exit(0)\n",
    "exit handler": HEADER + "process.on('exit', () => { console.log('done') })\nassert.equal(square(3), 9)\n",
    "counter": HEADER + COUNTED + CHECK + CALLS + "console.log(`${passed} passed, ${failures} failed`)\nprocess.exit(failures ? 1 : 0)\n",
    "counter as the code": HEADER + COUNTED + CHECK + CALLS + "process.exitCode = failures\n",
    "counter compared": HEADER + COUNTED + CHECK + CALLS + "process.exit(failures > 0 ? 1 : 0)\n",
    "counter of nothing": HEADER + COUNTED + CHECK + CALLS + "if (failures === 0) {\n  console.log('ok')\n} else {\n  process.exit(1)\n}\n",
    "counter in a condition": HEADER + COUNTED + CHECK + CALLS + "if (failures) process.exitCode = 1\n",
    "counter that throws": HEADER + COUNTED + CHECK + CALLS + "if (failures > 0) {\n  throw new Error(`${failures} failed`)\n}\n",
    "counter at the end of a function": (
        HEADER + COUNTED + CHECK + "function finish() {\n  process.exit(failures === 0 ? 0 : 1)\n}\n" + CALLS + "finish()\n"
    ),
    "flag": (
        HEADER + "let ok = true\nconst check = (got, want) => {\n  if (got === want) return\n  console.log(got)\n  ok = false\n}\n"
        "check(square(3), 9)\nprocess.exit(ok ? 0 : 1)\n"
    ),
    "other flag": (
        HEADER + "var failed = false\nfunction check(got, want) {\n  const same = JSON.stringify(got) === JSON.stringify(want)\n"
        "  if (!same) {\n    failed = true\n  }\n}\ncheck(list(3), [3, 9])\nif (failed) {\n  process.exit(1)\n}\n"
    ),
    "list of failures": (
        HEADER + "const failures = []\nfunction check(name, got, want) {\n  const a = JSON.stringify(got)\n"
        "  const b = JSON.stringify(want)\n  if (a !== b) failures.push(`${name}: ${a} is not ${b}`)\n}\n"
        "check('of three', list(3), [3, 9])\nif (failures.length > 0) {\n  console.error(failures.join('\\n'))\n  process.exit(1)\n}\n"
    ),
    "code": HEADER + "function check(got, want) {\n  if (got != want) process.exitCode = 1\n}\ncheck(square(3), 9)\n",
    "helper that ends": (
        HEADER + "function die(message) {\n  console.error(message)\n  process.exit(2)\n}\n"
        "function check(got, want) {\n  if (got !== want) die(`${got} is not ${want}`)\n}\ncheck(square(3), 9)\n"
    ),
    "helper that throws": (
        HEADER + "function check(got, want, note = '') {\n  if (!(got === want)) {\n    throw new Error(`${note} ${got} is not ${want}`)\n  }\n}\n"
        "check(square(3), 9, 'of three')\n"
    ),
    "helper that asserts": HEADER + "const squares = (n, want) => assert.strictEqual(square(n), want)\nsquares(3, 9)\nsquares(2, 4)\n",
    "helper of a helper": (
        HEADER + "function same(got, want) {\n  assert.strictEqual(got, want)\n}\nfunction squares(n, want) {\n  same(square(n), want)\n}\n"
        "squares(3, 9)\n"
    ),
    "helper that catches": (
        HEADER + COUNTED + "function check(name, got, want) {\n  try {\n    assert.deepStrictEqual(got, want)\n    passed++\n"
        "  } catch (error) {\n    failures += 1\n    console.error(name, error.message)\n  }\n}\n"
        "check('of three', list(3), [3, 9])\nprocess.exit(failures ? 1 : 0)\n"
    ),
    "conditions of a helper": (
        COUNTED + "const { square } = require('./answer.js')\nfunction assert(name, holds) {\n  if (holds) {\n    passed++\n"
        "  } else {\n    failures++\n    console.log(name)\n  }\n}\nassert('three', square(3) === 9 && square(2) === 4)\n"
        "process.exit(failures > 0 ? 1 : 0)\n"
    ),
    "callbacks": (
        HEADER + COUNTED + "function check(name, run) {\n  try {\n    run()\n    passed++\n  } catch (error) {\n    failures++\n"
        "    console.error(name, error)\n  }\n}\ncheck('of three', () => {\n  assert.equal(square(3), 9)\n})\n"
        "check('of two', function () {\n  assert.equal(square(2), 4)\n})\nif (failures) process.exit(1)\n"
    ),
    "sections": (
        HEADER + "function section(title, run) {\n  console.log(title)\n  run()\n}\nsection('squares', () => {\n"
        "  assert.equal(square(3), 9)\n})\n"
    ),
}  # fmt: skip
MODULES = {
    "module": MODULE + "assert.equal(square(3), 9)\nassert.deepEqual(list(3), [3, 9])\n",
    "waits": MODULE + "assert.equal(await square(3), 9)\nawait Promise.resolve(square(2)).then((got) => {\n  assert.equal(got, 4)\n})\n",
    "waits for a function": MODULE + "async function main() {\n  const got = await square(3)\n  assert.equal(got, 9)\n}\nawait main()\n",
    "waits in place": MODULE + "await (async () => {\n  assert.equal(await square(3), 9)\n})()\n",
    "named imports": (
        "import { strict as check, equal as is } from 'assert'\nimport process from 'node:process'\nimport answer from './answer.js'\n"
        "check.equal(answer.square(3), 9)\nis(answer.square(2), 4)\nprocess.exit()\n"
    ),
}  # fmt: skip


def mutants_of(script: str, path: str = "test.js") -> list[Mutant]:
    mutator = mutator_of(path)
    assert mutator is not None
    return [*mutator.mutants(script.encode(), path)]


def status(folder: Path, script: str, answer: str, path: str = "test.js") -> int:
    (folder / path).write_text(script)
    (folder / "answer.js").write_text(answer)
    run = subprocess.run(["node", path], cwd=folder, capture_output=True, text=True, check=False)
    return run.returncode


@pytest.mark.skipif(shutil.which("node") is None, reason="not on this machine: node")
@pytest.mark.parametrize("name", [*QUIET, *MODULES])
def test_every_solution_that_passes_a_script_fails_its_false_versions(tmp_path: Path, name: str) -> None:
    path = "test.mjs" if name in MODULES else "test.js"
    script = {**QUIET, **MODULES}[name]
    found = mutants_of(script, path)
    assert {mutant.function for mutant in found} == {SCRIPT}
    assert {MutantKind.VALUE, MutantKind.ADDED} <= {mutant.kind for mutant in found}
    for answer in (RIGHT, OTHER):
        assert status(tmp_path, script, answer, path) == 0
    for number, mutant in enumerate(found):
        false = apply_mutants(script.encode(), [mutant]).decode()
        assert status(tmp_path, false, (RIGHT, OTHER)[number % 2], path) > 0, false


UNCERTAIN = {
    "branch": HEADER + "if (process.env.X) {\n  assert.equal(square(3), 9)\n}\n",
    "loop": HEADER + "for (const n of list(3)) assert.equal(square(n), 9)\n",
    "swallowed": HEADER + "try {\n  assert.equal(square(3), 9)\n} catch (error) {\n  console.log(error)\n}\n",
    "handler of every error": HEADER + "process.on('uncaughtException', () => process.exit())\nassert.equal(square(3), 9)\n",
    "handler that sets the code": HEADER + "process.on('exit', () => { process.exitCode = 0 })\nassert.equal(square(3), 9)\n",
    "process elsewhere": HEADER + "const p = process\np.exitCode = 0\nassert.equal(square(3), 9)\n",
    "left before": HEADER + "if (square(1)) process.exit()\nassert.equal(square(3), 9)\n",
    "left in a function": HEADER + "list(() => process.exit(0))\nassert.equal(square(3), 9)\n",
    "left in a function that others call": (
        HEADER + "function finish() {\n  process.exit(0)\n}\nif (square(1) === 2) finish()\n"
        "assert.equal(square(3), 9)\nfinish()\n"
    ),
    "callback of the code under test": HEADER + "list((got) => {\n  assert.equal(got, 9)\n})\n",
    "function that nobody waits for": HEADER + "(async () => {\n  assert.equal(await square(3), 9)\n})()\n",
    "main that nobody waits for": (
        HEADER + "async function main() {\n  assert.equal(await square(3), 9)\n}\n"
        "main().catch(() => process.exit(1))\n"
    ),
    "promise": HEADER + "square(3).then((got) => {\n  assert.equal(got, 9)\n})\n",
    "function that is never called": HEADER + "function test1() {\n  assert.equal(square(3), 9)\n}\n",
    "other package": "const assert = require('./assert')\nassert.equal(f(3), 9)\n",
    "replaced": HEADER + "assert.equal = near\nassert.equal(square(3), 9)\n",
    "bound twice": HEADER + "function f(assert) {\n  return assert\n}\nassert.equal(square(3), 9)\n",
    "counter without an end": HEADER + COUNTED + CHECK + CALLS + "console.log(failures)\n",
    "counter that is set back": HEADER + COUNTED + CHECK + CALLS + "failures = 0\nprocess.exit(failures ? 1 : 0)\n",
    "counter of another": HEADER + COUNTED + CHECK + CALLS + "process.exit(passed ? 0 : 1)\n",
    "counter with excuses": HEADER + COUNTED + CHECK + CALLS + "process.exit(failures > 1 ? 1 : 0)\n",
    "end before": HEADER + COUNTED + CHECK + "process.exit(failures ? 1 : 0)\n" + CALLS,
    "code with another end": HEADER + "let a = 0\nfunction check(got, want) {\n  if (got !== want) process.exitCode = 1\n}\n"
    "check(square(3), 9)\nprocess.exitCode = a ? 1 : 0\n",
    "helper with excuses": HEADER + COUNTED + "function check(got, want) {\n  if (got !== want && passed) failures++\n}\n"
    "check(square(3), 9)\nprocess.exit(failures ? 1 : 0)\n",
    "helper that may return": HEADER + "function check(got, want) {\n  if (!got) return\n  assert.equal(got, want)\n}\n"
    "check(square(3), 9)\n",
    "helper that uses the value": HEADER + "function check(n, want) {\n  assert.equal(square(n, want), want)\n}\ncheck(3, 9)\n",
    "helper that compares text": HEADER + "function check(got, want) {\n  assert.equal(String(got), String(want))\n}\n"
    "check(square(3), { a: 9 })\n",
    "helper bound twice": HEADER + "let check = (a, b) => assert.equal(a, b)\ncheck = () => {}\ncheck(square(3), 9)\n",
    "async callback": HEADER + "function check(run) {\n  run()\n}\ncheck(async () => {\n  assert.equal(await square(3), 9)\n})\n",
    "counter of callbacks without an end": (
        HEADER + COUNTED + "function check(run) {\n  try {\n    run()\n  } catch (error) {\n    failures++\n  }\n}\n"
        "check(() => {\n  assert.equal(square(3), 9)\n})\n"
    ),
}  # fmt: skip


OTHERWISE = ("helper that uses the value", "helper that compares text")
"""Scripts whose values stay, but whose assertions can be false."""


@pytest.mark.parametrize("name", UNCERTAIN)
def test_assertions_that_need_not_decide_have_no_mutant(name: str) -> None:
    found = mutants_of(UNCERTAIN[name])
    assert not [one for one in found if name not in OTHERWISE or one.before.startswith("check(")]


def test_a_file_with_tests_or_among_the_data_of_tests_is_no_script() -> None:
    script = QUIET["assertions"]
    assert not mutants_of(script, "test/fixtures/input.js")
    assert SCRIPT not in {
        mutant.function for mutant in mutants_of(f"{script}it('a', () => {{ assert(f()) }})\n")
    }


def test_a_script_has_one_quiet_mutant_of_each_assertion_the_last_one_first() -> None:
    checks = "".join(f"assert.deepEqual([square({n}), 1], [{n * n}, 1])\n" for n in range(2, 30))
    quiet = [mutant for mutant in mutants_of(HEADER + checks) if mutant.kind is MutantKind.VALUE]
    assert quiet[0].line == 30
    assert len({mutant.line for mutant in quiet}) == len(quiet) == 28


def test_what_a_helper_only_shows_tells_of_the_new_value() -> None:
    script = HEADER + COUNTED + CHECK + "check('of 3 is 9', square(3), 9)\nprocess.exit(failures)\n"
    assert "check('of 3 is 8', square(3), 8)" in [mutant.after for mutant in mutants_of(script)]


def test_a_script_stands_for_tests_named_like_its_file_alone() -> None:
    mutator = mutator_of("test.js")
    assert mutator is not None
    found = mutator.tests_by_function([("test/a.js", SCRIPT)], ["test/a.js", "test/b.js", "runs the script"])
    assert found == {("test/a.js", SCRIPT): ["test/a.js"]}
