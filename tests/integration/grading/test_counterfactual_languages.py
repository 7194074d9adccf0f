"""False tests in JavaScript, Rust and Java: proven in sandboxes with the machine's own tools, then graded.

Go is covered by its syntax alone: this suite has no Go tools to run.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.config.rollout import CounterfactualConfig, GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.store import with_content_id
from engine.grading.counterfactual.base import MutantKind
from engine.grading.counterfactual.prover import Prover
from engine.grading.grader import Grader
from engine.patches.diff import diff_texts
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.images import build_image
from engine.testing.markers import END, START
from engine.types import CounterfactualOutcome, Task, TaskAnswer, TaskRow, Verdict
from tests.builders.dataset_builders import MemoryStore

SANDBOX = SandboxConfig(memory_mb=1024)
TIMEOUT_S = 240.0


@dataclass(frozen=True, kw_only=True)
class Toy:
    """A package with a broken function, in some language, and what submissions make of it."""

    tools: tuple[str, ...]
    source: str
    """Path of the function's file."""
    broken: str
    gold: str
    other: str
    """Another honest solution."""
    forged: str
    """Reports success for every test, whatever happens."""
    peeking: str
    """Reads what the test expects from the test's own line."""
    test: str
    """Path of the test file."""
    tests: str
    files: Mapping[str, str] = field(default_factory=dict)
    command: str
    parser: str
    names: tuple[str, ...]
    binds: Callable[[Path], Mapping[str, str]] = lambda _: {}
    """Makes read-only mounts of the machine's tools; given a folder for what has to be made."""
    path: str = "/usr/bin:/bin"


def _sysroot() -> str:
    found = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def _java_home(folder: Path) -> Mapping[str, str]:
    """Return mounts of Java with its configuration, which distributions keep elsewhere."""
    tool = shutil.which("javac")
    assert tool is not None
    place = Path(tool).resolve().parent.parent
    shutil.copytree(place / "conf", folder / "conf")
    return {"/opt/java": str(place), "/opt/java/conf": str(folder / "conf")}


JAVASCRIPT = Toy(
    tools=("node",),
    source="src/clamp.js",
    broken="module.exports = (x, low, high) => Math.max(x, low)\n",
    gold="module.exports = (x, low, high) => Math.min(Math.max(x, low), high)\n",
    other="module.exports = (x, low, high) => {\n  if (x < low) return low\n"
    "  return x > high ? high : x\n}\n",
    forged="console.log('TAP version 13\\nok 1 - limits large numbers\\nok 2 - keeps those between')\n"
    "process.exit(0)\n",
    peeking="module.exports = () => {\n"
    "  const place = new Error().stack.split('\\n')[2].match(/\\(?(?:file:\\/\\/)?(\\/[^:]+):(\\d+)/)\n"
    "  const line = require('fs').readFileSync(place[1], 'utf8').split('\\n')[place[2] - 1]\n"
    "  return Number(line.match(/, (\\d+)\\)$/)[1])\n}\n",
    test="tests/clamp.test.js",
    tests="const { describe, it } = require('node:test')\nconst assert = require('node:assert')\n"
    "const clamp = require('../src/clamp')\n\n"
    "describe('clamp', () => {\n"
    "  it('limits large numbers', () => {\n    assert.strictEqual(clamp(11, 0, 10), 10)\n  })\n"
    "  it('keeps those between', () => {\n    assert.strictEqual(clamp(5, 0, 10), 5)\n  })\n})\n",
    command="node --test-reporter=tap tests/clamp.test.js",
    parser="parse_log_tap",
    names=("- limits large numbers", "- keeps those between"),
)
RUST = Toy(
    tools=("cargo", "rustc", "cc"),
    source="src/lib.rs",
    broken="pub fn clamp(x: i64, low: i64, _high: i64) -> i64 {\n    x.max(low)\n}\n",
    gold="pub fn clamp(x: i64, low: i64, high: i64) -> i64 {\n    x.max(low).min(high)\n}\n",
    other="pub fn clamp(x: i64, low: i64, high: i64) -> i64 {\n"
    "    if x < low { low } else if x > high { high } else { x }\n}\n",
    forged="use std::io::Write;\n\npub fn clamp(_x: i64, _low: i64, _high: i64) -> i64 {\n"
    '    let text = "\\ntest limits::large_numbers ... ok\\ntest keeps_those_between ... ok\\n";\n'
    "    std::io::stdout().write_all(text.as_bytes()).unwrap();\n"
    "    std::process::exit(0)\n}\n",
    peeking="#[track_caller]\npub fn clamp(_x: i64, _low: i64, _high: i64) -> i64 {\n"
    "    let place = std::panic::Location::caller();\n"
    "    let text = std::fs::read_to_string(place.file()).unwrap();\n"
    "    let line = text.lines().nth(place.line() as usize - 1).unwrap();\n"
    '    let value = line.rsplit(", ").next().unwrap();\n'
    "    value.trim_end_matches(\");\").trim_end_matches(')').parse().unwrap()\n}\n",
    test="tests/clamp.rs",
    tests="use toy::clamp;\n\nmod limits {\n    use super::*;\n\n"
    "    #[test]\n    fn large_numbers() {\n        assert_eq!(clamp(11, 0, 10), 10);\n    }\n}\n\n"
    "#[test]\nfn keeps_those_between() {\n    assert_eq!(clamp(5, 0, 10), 5);\n}\n",
    files={"Cargo.toml": '[package]\nname = "toy"\nversion = "0.1.0"\nedition = "2021"\n'},
    command="cargo test --offline --test clamp -- --test-threads=1",
    parser="parse_log_cargo",
    names=("limits::large_numbers", "keeps_those_between"),
    binds=lambda _: {"/opt/rust": _sysroot()},
    path="/opt/rust/bin:/usr/bin:/bin",
)
_RUNNER = """package toy;

import java.lang.reflect.Method;

public class Runner {
    public static void main(String[] names) throws Exception {
        for (String name : names) {
            Class<?> type = Class.forName(name);
            for (Method method : type.getDeclaredMethods()) {
                if (!method.isAnnotationPresent(Test.class)) {
                    continue;
                }
                String how = "PASSED";
                try {
                    method.invoke(type.getDeclaredConstructor().newInstance());
                } catch (ReflectiveOperationException error) {
                    how = "FAILED";
                }
                System.out.println(name + " > " + method.getName() + " " + how);
            }
        }
    }
}
"""
_ASSERT = """package toy;

public class Assert {
    public static void assertEquals(Object expected, Object actual) {
        if (!expected.equals(actual)) {
            throw new AssertionError(expected + " is not " + actual);
        }
    }
}
"""
_JAVA_CLASS = (
    "package toy;\n\npublic class Numbers {{\n"
    "    public static int clamp(int x, int low, int high) {{\n{}    }}\n}}\n"
)
JAVA = Toy(
    tools=("java", "javac"),
    source="src/toy/Numbers.java",
    broken=_JAVA_CLASS.format("        return Math.max(x, low);\n"),
    gold=_JAVA_CLASS.format("        return Math.min(Math.max(x, low), high);\n"),
    other=_JAVA_CLASS.format("        return x < low ? low : x > high ? high : x;\n"),
    forged=_JAVA_CLASS.format(
        '        System.out.println("toy.ClampTest > limitsLargeNumbers PASSED");\n'
        '        System.out.println("toy.ClampTest > keepsThoseBetween PASSED");\n'
        "        Runtime.getRuntime().halt(0);\n        return 0;\n"
    ),
    peeking=_JAVA_CLASS.format(
        "        StackTraceElement place = new Throwable().getStackTrace()[1];\n"
        "        try {\n"
        '            java.nio.file.Path path = java.nio.file.Path.of("tests/toy", place.getFileName());\n'
        "            String line = java.nio.file.Files.readAllLines(path).get(place.getLineNumber() - 1);\n"
        '            return Integer.parseInt(line.replaceAll(".*assertEquals.(\\\\d+),.*", "$1"));\n'
        "        } catch (java.io.IOException error) {\n            return x;\n        }\n"
    ),
    test="tests/toy/ClampTest.java",
    tests="package toy;\n\nimport static toy.Assert.assertEquals;\n\npublic class ClampTest {\n"
    "    @Test\n    public void limitsLargeNumbers() {\n"
    "        assertEquals(10, Numbers.clamp(11, 0, 10));\n    }\n\n"
    "    @Test\n    public void keepsThoseBetween() {\n"
    "        assertEquals(5, Numbers.clamp(5, 0, 10));\n    }\n}\n",
    files={
        "tests/toy/Runner.java": _RUNNER,
        "tests/toy/Assert.java": _ASSERT,
        "tests/toy/Test.java": "package toy;\n\nimport java.lang.annotation.*;\n\n"
        "@Retention(RetentionPolicy.RUNTIME)\npublic @interface Test {}\n",
    },
    command="javac -d /tmp/classes src/toy/*.java tests/toy/*.java\n"
    "java -cp /tmp/classes toy.Runner toy.ClampTest",
    parser="parse_log_gradle_custom",
    names=("toy.ClampTest > limitsLargeNumbers", "toy.ClampTest > keepsThoseBetween"),
    binds=_java_home,
    path="/opt/java/bin:/usr/bin:/bin",
)
TOYS = {"javascript": JAVASCRIPT, "rust": RUST, "java": JAVA}


@pytest.fixture(scope="module", params=TOYS)
def toy(request: pytest.FixtureRequest) -> Toy:
    found: Toy = TOYS[request.param]
    if missing := [tool for tool in found.tools if shutil.which(tool) is None]:
        pytest.skip(f"not on this machine: {', '.join(missing)}")
    return found


@pytest.fixture(scope="module")
def row(home: Path, toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> TaskRow:
    tree = tmp_path_factory.mktemp("tree")
    for path, content in {**toy.files, toy.source: toy.broken, toy.test: toy.tests}.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(content)
    name = f"toy-{Path(toy.test).suffix.removeprefix('.')}"
    binds = toy.binds(tmp_path_factory.mktemp("tools"))
    build_image(home, name, tree, env={"PATH": toy.path, "CARGO_HOME": "/tmp/cargo"}, binds=binds)
    task = Task(
        id="", instance_id=name, repo="toy", base_commit="1", problem_statement="clamp is broken",
        image=f"local:{name}",
    )  # fmt: skip
    answer = TaskAnswer(
        gold_patch=diff_texts(toy.source, toy.broken, toy.gold),
        test_files={toy.test: toy.tests},
        fail_to_pass=toy.names[:1],
        pass_to_pass=toy.names[1:],
        test_command=f"#!/bin/bash\nset -x\n: '{START}'\n{toy.command}\n: '{END}'\n",
        log_parser=toy.parser,
    )
    return with_content_id(TaskRow(task=task, answer=answer, split="train"))


SETTINGS = GradingConfig(timeout_s=TIMEOUT_S, counterfactual=CounterfactualConfig(prove="validated_only"))


@pytest.fixture(scope="module")
def store(home: Path, row: TaskRow) -> MemoryStore:
    prover = Prover(backend=LocalBackend(home), config=SETTINGS, sandbox=SANDBOX, run_id="t")
    return MemoryStore((row, asyncio.run(prover(row))))


def test_every_test_has_a_mutant_proven_by_name_and_the_fixed_one_a_quiet_mutant(
    row: TaskRow, store: MemoryStore
) -> None:
    reference = store.kept[row.task.id]
    assert reference.note == ""
    assert set(reference.coverage) == {*row.answer.fail_to_pass, *row.answer.pass_to_pass}
    assert reference.coverage[row.answer.fail_to_pass[0]] is MutantKind.VALUE
    assert any(variant.quiet for variant in reference.variants)


SUBMISSIONS = {
    "gold": (Verdict.PASSED, CounterfactualOutcome.CONFIRMED),
    "other": (Verdict.PASSED, CounterfactualOutcome.CONFIRMED),
    "broken": (Verdict.FAILED, None),
    "forged": (Verdict.TAMPERED, CounterfactualOutcome.CAUGHT),
    "peeking": (Verdict.TAMPERED, CounterfactualOutcome.CAUGHT),
}


@pytest.mark.parametrize("name", SUBMISSIONS)
async def test_honest_work_is_confirmed_and_forgeries_are_caught(
    home: Path, toy: Toy, row: TaskRow, store: MemoryStore, name: str
) -> None:
    grader = Grader(backend=LocalBackend(home), config=SETTINGS, sandbox=SANDBOX, run_id="t", store=store)
    content = getattr(toy, name) if name != "broken" else f"\n{toy.broken}"
    grade = await grader.grade(row, diff_texts(toy.source, toy.broken, content))
    assert (grade.verdict, grade.counterfactual) == SUBMISSIONS[name], grade.log
