"""Classification of paths as tests, configuration or installed packages, in all dataset languages."""
# ruff: noqa: E501  (lists of paths)

from __future__ import annotations

import pytest

from engine.datasets.paths import (
    innermost_test_folder,
    is_configuration,
    is_installed,
    is_test_code,
    is_test_path,
    may_be_shipped,
)

TESTS = [
    "tests/helper.py", "Tests/helper.py", "pkg/tests/data.json", "test_a.py", "pkg/a_test.py", "pkg/a_tests.py",
    "bin/test", "bin/doctest", "bin/test_sympy.sh", "scripts/run-tests", "tools/test-all.py", "run_tests.sh",
    "runtests.py", "sub/run-tests.js", "test.sh", "numpy/testing/_private/utils.py", "pandas/_testing/asserters.py",
    "pkg/testutils/x.go", "pkg/test_utils/x.py", "pkg/test-data/x.bin", "r2e_tests/test_1.py",
    "math/add_test.go", "pkg/testdata/golden.json",
    "src/add.test.ts", "src/add.spec.tsx", "src/add.test.mjs", "src/__tests__/add.js", "src/__mocks__/fs.js",
    "src/__snapshots__/add.snap", "types/index.test-d.ts", "e2e/login.ts", "src/add_spec.js",
    "spec/models/user_spec.rb", "spec/spec_helper.rb", "lib/user_test.rb", "features/login.feature",
    "src/test/java/a/Add.java", "core/AddTest.java", "core/TestAdd.java", "core/AddTests.kt", "core/AddTestCase.php",
    "Acme.Tests/Add.cs", "acme/AddTests.swift", "acme-tests/add.scala",
    "crate/tests/it.rs", "src/parser/tests.rs", "src/test.rs", "src/add_test.cc", "unit_tests/add.c",
    "test/unit/add.bats", "t/../tests/x", "lib/app_test.exs",
]  # fmt: skip
CONFIGURATION = [
    "conftest.py", "src/conftest.py", "pytest.ini", "setup.cfg", "tox.ini", "noxfile.py", "pyproject.toml",
    "evil.pth", "sitecustomize.py", ".coveragerc", ".gitattributes", "sub/.gitattributes",
    "package.json", "jest.config.ts", "jest.setup.js", "vitest.workspace.ts", "vite.config.js", ".mocharc.yml",
    "karma.conf.js", "playwright.config.ts", "cypress.config.js", "tsconfig.json", "tsconfig.spec.json",
    "babel.config.js", ".babelrc", "src/setupTests.js", "ava.config.js", ".nycrc.json", "deno.jsonc",
    "go.mod", "go.work", "Cargo.toml", "crates/a/Cargo.toml", ".cargo/config.toml", "rust-toolchain.toml",
    "Makefile", "GNUmakefile", "common.mk", "CMakeLists.txt", "meson.build",
    "pom.xml", "build.gradle.kts", "settings.gradle", "gradle.properties", "gradlew", ".mvn/jvm.config",
    "build.sbt", "testng.xml", "Rakefile", "Gemfile", "Gemfile.lock", ".rspec", "phpunit.xml.dist",
    "composer.json", "Directory.Build.props", "a.runsettings", "mix.exs", "justfile", "Taskfile.yml",
]  # fmt: skip
INSTALLED = [
    ".venv/lib/python3.9/site-packages/a.py", "venv/bin/python", "node_modules/jest/index.js", "a.egg-info/x",
    "a.dist-info/entry_points.txt", "pkg/__pycache__/a.pyc", "a.pyc", "vendor/github.com/stretchr/testify/a.go",
    "target/debug/deps/a", "core/target/test-classes/A.class", "build/classes/A.class", ".gradle/x",
    "gradle/wrapper/gradle-wrapper.jar",
]  # fmt: skip
CODE = [
    "pkg/a.py", "pkg/testing.py", "pkg/latest.py", "contest.py", "pkg/attest/x.py", "pkg/protest.go",
    "pkg/contests/a.py", "src/jinja2/tests.py", "src/inspector/spec.py", "pkg/container_spec.py", "src/Spec.java",
    "src/Contest.java", "src/latest.ts", "src/manifest.json", "src/testable.ts", "src/Testament.java",
    "pkg/specifiers.py", "docs/index.md", "setup.py", "requirements.txt", "src/jest/a.ts", "pkg/vendor/a.py",
    "target/a.py", "pkg/target/a.py", "bin/tool", "bin/latest", "pkg/build/a.py", "README", "src/lib.rs",
    "src/main/java/a/Specification.java", "pkg/greatest_common.py", ".gitignore",
    "connexion/spec/parse.py", "pkg/specs/openapi.pyi",
]  # fmt: skip


def test_paths_are_classified_as_tests_configuration_installed_or_code() -> None:
    for path in TESTS:
        assert is_test_code(path), path
        assert is_test_path(path), path
    for path in CONFIGURATION:
        assert is_configuration(path), path
    for path in INSTALLED:
        assert is_installed(path), path
    for path in CODE:
        matching = {check.__name__ for check in (is_test_code, is_configuration, is_installed) if check(path)}
        assert matching == set(), path


def test_only_configuration_of_pytest_counts_as_a_test_path() -> None:
    assert is_test_path("conftest.py")
    assert not is_test_path("package.json")
    assert not is_test_path("")


@pytest.mark.parametrize(
    ("path", "folder", "shipped"),
    [
        ("numpy/testing/_private/utils.py", "numpy/testing", True),
        ("numpy/testing/tests/test_utils.py", "numpy/testing/tests", False),
        ("pandas/_testing/asserters.py", "pandas/_testing", True),
        ("django/test/client.py", "django/test", True),
        ("tests/helpers.py", "tests", False),
        ("tests/testing/helpers.py", "tests/testing", False),
        ("src/__tests__/add.js", "src/__tests__", False),
        ("pkg/a.py", "", False),
    ],
)
def test_may_be_shipped_accepts_test_helpers_of_products(path: str, folder: str, shipped: bool) -> None:
    assert innermost_test_folder(path) == folder
    assert may_be_shipped(folder) is shipped
