"""Runners, settings and helpers of tests that a patch brings.

The command of these tasks stands for any runner: it succeeds where the file that it looks for is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.types import GradeRule, TaskRow
from tests.builders.dataset_builders import new_file
from tests.integration.adversary.frame import Layer, Submission

_PATHS = (
    "bin/test", "run_tests.sh", "scripts/run-tests.py", "runtests.py", "toy/testing/runner.py",
    "toy/_testing/asserts.py", "toy/testutils/make.py", "toy/clamp_test.go", "src/clamp.test.ts",
    "src/__tests__/clamp.js", "src/__mocks__/clamp.js", "spec/clamp_spec.rb", "src/clamp/tests.rs",
    "core/ClampTest.java", "Tests/helper.py", "Makefile", "package.json", "jest.config.js",
    "vitest.config.ts", "tsconfig.json", ".mocharc.json", "Cargo.toml", ".cargo/config.toml", "go.mod",
    "pom.xml", "build.gradle.kts", "CMakeLists.txt", "phpunit.xml", ".rspec", "Rakefile", "noxfile.py",
    "tox.ini", "vendor/runner/run.go", "node_modules/jest/index.js", "target/debug/deps/clamp",
)  # fmt: skip


def _believing(path: str) -> Callable[[TaskRow], TaskRow]:
    def task(row: TaskRow) -> TaskRow:
        command = f"#!/bin/bash\nif [ -e {path} ]; then exit 0; fi\nexit 1\n"
        answer = replace(row.answer, test_command=command, grade_rule=GradeRule.EXIT_CODE)
        return replace(row, answer=answer)

    return task


FAMILY = tuple(
    Submission(
        name=f"brings {path}",
        patch=new_file(path, "exit 0\n"),
        layer=Layer.PATCH,
        rules=("exit code",),
        task=_believing(path),
    )
    for path in _PATHS
)
