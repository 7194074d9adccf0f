"""Changes of build files: product changes are graded, changes that may affect tests are not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.grading.submission.build_files import is_product_change

PACKAGE: dict[str, Any] = {
    "name": "a",
    "scripts": {"test": "jest"},
    "dependencies": {"left-pad": "^1.0.0"},
    "devDependencies": {"jest": "^29.0.0"},
}
CARGO = """[package]
name = "a"
version = "0.1.0"

[dependencies]
serde = { version = "1.0", features = ["derive"] }
local = { path = "../local" }

[target.'cfg(unix)'.dependencies]
libc = "0.2"

[dev-dependencies]
proptest = "1.0"
"""
LOCK = """version = 3

[[package]]
name = "a"
version = "0.1.0"
dependencies = ["serde"]

[[package]]
name = "serde"
version = "1.0.0"
source = "registry+https://example.org/index"
checksum = "aa"
"""
GO = """module example.org/a

go 1.21

require github.com/stretchr/testify v1.8.0

require (
\tgolang.org/x/text v0.3.0 // indirect
)
"""
CMAKE = """project(a)
# the library
add_library(a STATIC src/a.cpp src/b.cpp)
set(SOURCES
    src/c.cpp
)
enable_testing()
add_executable(a_test tests/a_test.cpp)
add_test(NAME a COMMAND ${PYTHON} run.c)
"""
MESON = """project('a', 'c')
sources = ['a.c', 'b.c']
lib = static_library('a', sources, files('c.c'))
test('a', exe, args: ['data.c'])
"""


def package(**changes: Any) -> str:
    return json.dumps({**PACKAGE, **changes}, indent=2)


PRODUCT = {
    "a dependency": ("package.json", package(), package(dependencies={"left-pad": "^1.1.0", "got": "12"})),
    "entry points": ("sub/package.json", package(), package(exports={".": "./a.js"}, main="a.js")),
    "a crate": ("Cargo.toml", CARGO, CARGO.replace("[dependencies]", '[dependencies]\nrand = "0.8"')),
    "a feature": ("Cargo.toml", CARGO, CARGO + "[features]\nfast = []\n"),
    "features of a crate": ("Cargo.toml", CARGO, CARGO.replace('"derive"', '"derive", "rc"')),
    "a crate of a platform": (
        "Cargo.toml",
        CARGO,
        CARGO.replace('libc = "0.2"', 'libc = "0.2"\nnix = "0.2"'),
    ),
    "a locked crate": (
        "Cargo.lock",
        LOCK,
        LOCK.replace('["serde"]', '["rand", "serde"]')
        + '[[package]]\nname = "rand"\nversion = "0.8.0"\nsource = "registry+https://example.org/index"\n',
    ),
    "a module": ("go.mod", GO, GO.replace("(\n", "(\n\tgithub.com/pkg/errors v0.9.1\n")),
    "a module's sum": ("go.sum", "a v1 h1:x\n", "a v1 h1:x\nb v1 h1:y\n"),
    "a source file": ("CMakeLists.txt", CMAKE, CMAKE.replace("src/b.cpp", "src/b.cpp src/new.cpp")),
    "a source file for meson": ("meson.build", MESON, MESON.replace("'b.c'", "'b.c', 'new.c'")),
}
HOSTILE = {
    "a script": ("package.json", package(), package(scripts={"test": "true"})),
    "a runner's settings": ("package.json", package(), package(jest={"testMatch": []})),
    "a runner of its own": ("package.json", package(), package(dependencies={"jest": "file:./evil"})),
    "another runner": ("package.json", package(), package(devDependencies={"jest": "^28.0.0"})),
    "no object": ("package.json", package(), "[]"),
    "too deep": ("package.json", package(), "[" * 100_000),
    "no harness": ("Cargo.toml", CARGO, CARGO + "[lib]\nharness = false\n"),
    "a crate of its own": ("Cargo.toml", CARGO, CARGO.replace('version = "1.0", f', 'path = "evil", f')),
    "a new crate of its own": (
        "Cargo.toml",
        CARGO,
        CARGO.replace("[dependencies]", '[dependencies]\nx.path = "x"'),
    ),
    "a crate of a platform's tests": (
        "Cargo.toml",
        CARGO,
        CARGO + "[target.'cfg(unix)'.dev-dependencies]\nproptest = \"0.9\"\n",
    ),
    "a crate of tests": ("Cargo.toml", CARGO, CARGO.replace('proptest = "1.0"', 'proptest = "0.9"')),
    "a patched crate": ("Cargo.toml", CARGO, CARGO + '[patch.crates-io]\nproptest = { path = "evil" }\n'),
    "no format": ("Cargo.toml", CARGO, "="),
    "another locked crate": ("Cargo.lock", LOCK, LOCK.replace('"1.0.0"', '"0.9.0"')),
    "a locked crate from elsewhere": (
        "Cargo.lock",
        LOCK,
        LOCK + '[[package]]\nname = "x"\nversion = "1.0.0"\nsource = "git+https://example.org/x"\n',
    ),
    "a replaced module": ("go.mod", GO, GO + "replace github.com/stretchr/testify => ./evil\n"),
    "another version of a module": ("go.mod", GO, GO.replace("v1.8.0", "v1.7.0")),
    "fewer sums": ("go.sum", "a v1 h1:x\n", "a v1 h1:y\n"),
    "a test of its own": ("CMakeLists.txt", CMAKE, CMAKE + "add_test(NAME b COMMAND true)\n"),
    "no test": ("CMakeLists.txt", CMAKE, CMAKE.replace("enable_testing()\n", "")),
    "another command of a test": ("CMakeLists.txt", CMAKE, CMAKE.replace("run.c", "evil.c run.c")),
    "a test's source": ("CMakeLists.txt", CMAKE, CMAKE.replace("src/b.cpp", "src/b.cpp tests/b_test.cpp")),
    "a comment over tests": ("CMakeLists.txt", CMAKE, CMAKE.replace("# the", "#[[ the")),
    "a comment": ("CMakeLists.txt", CMAKE, CMAKE + "# ]]\n"),
    "a word that grew": ("CMakeLists.txt", CMAKE, CMAKE.replace("a_test tests", '"x.c"a_test tests')),
    "code of CMake": ("evil.cmake", "set(A a.c)\n", "set(A a.c)\nfunction(add_test)\nendfunction()\n"),
    "arguments of a test": ("meson.build", MESON, MESON.replace("'data.c'", "'data.c', 'evil.c'")),
    "a test for meson": ("meson.build", MESON, MESON.replace("test('a', exe", "test('a', other")),
    "a recipe": ("Makefile", "test:\n\tpython run.c\n", "test:\n\tpython evil.c run.c\n"),
    "a build for Maven": ("pom.xml", "<project/>", "<project><build/></project>"),
}


@pytest.mark.parametrize("name", PRODUCT)
def test_product_changes_of_build_files_are_recognised(name: str) -> None:
    path, old, new = PRODUCT[name]
    assert old != new
    assert is_product_change(path, old.encode(), new.encode())


@pytest.mark.parametrize("name", HOSTILE)
def test_changes_that_may_replace_or_skip_tests_are_not_product_changes(name: str) -> None:
    path, old, new = HOSTILE[name]
    assert old != new
    assert not is_product_change(path, old.encode(), new.encode())
    assert not is_product_change(path, old.encode(), b"\xfe"), "no text"
