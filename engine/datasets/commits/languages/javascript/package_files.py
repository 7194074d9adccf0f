"""Reader of ``package.json``: dependencies from the registry, and the runner of the tests.

Dependencies from git, addresses and folders are left out, and so are tools that neither code nor tests name.
A script never runs: its words name the runner and a few harmless options.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from engine.reading import read_bounded

_MAX_BYTES = 1 << 20
_MAX_DEPENDENCIES = 300
_NAME = re.compile(r"(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*", re.IGNORECASE)
_VERSIONS = re.compile(r"[\w.^~<>=|*+ -]{0,200}", re.ASCII)
_SCANNED = re.compile(
    r"(?!(?:.*/)?(?:node_modules/|\.|[^/]*\.(?:config|min)\.)).*\.[cm]?js"
    r"|(?:.*/)?(?:(?:babel|jest|ava)\.config\.[cm]?js|\.babelrc.*|\.mocharc.*|mocha\.opts)"
)
"""Files whose words name packages that tests may need: code, and settings of runners."""
_SETTINGS = ("mocha", "jest", "ava", "babel")
"""Settings of runners in ``package.json``."""
_WORD = re.compile(r"(?:@[a-z0-9~-][\w.~-]*/)?[a-z0-9~-][\w.~-]*", re.ASCII | re.IGNORECASE)
_QUOTED = re.compile(rf"""["'`]({_WORD.pattern})""", re.ASCII | re.IGNORECASE)
_MAX_FILES, _MAX_FILE_BYTES = 1_000, 256 << 10
_RUNNERS = {"mocha": "mocha", "_mocha": "mocha", "jest": "jest", "ava": "ava", "tape": "tape"}
_KEPT = {
    "mocha": ({"-r", "--require", "-u", "--ui", "-t", "--timeout"}, {"--check-leaks", "-A", "--async-only"}),
    "tape": ({"-r", "--require"}, set[str]()),
    "node": ({"-r", "--require", "--import"}, set[str]()),
}
"""Runner → options with a value and without one that a test command keeps."""
_VALUE = re.compile(r"(?!/|-)[\w@./-]{1,200}", re.ASCII)
_SEPARATORS = frozenset({"&&", "||", ";", "|", "&"})
_MAX_SCRIPT = 2_000
"""Part of a script that is read, characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageFile:
    """Declarations of a package: requirements, test script, runner."""

    name: str = ""
    runtime: tuple[str, ...] = ()
    """Requirements of its code, ``NAME@VERSIONS``."""
    optional: tuple[str, ...] = ()
    """Requirements that may be left out, e.g. on other platforms."""
    tests: tuple[str, ...] = ()
    """Further requirements that its files name."""
    others: tuple[str, ...] = ()
    """Requirements of its development that no file names."""
    script: str = ""
    """Its test script."""
    runner: str = ""
    """``mocha``, ``jest``, ``ava``, ``tape`` or ``node`` (its test runner); empty if there is none."""
    options: tuple[str, ...] = ()
    """Options of the runner."""


def read_package(tree: Path) -> PackageFile | None:
    """Return what ``package.json`` at the root of a tree declares; None without a readable one."""
    try:
        package = json.loads(read_bounded(tree / "package.json", _MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(package, dict):
        return None
    scripts = _strings(package.get("scripts"))
    runner, options = _runner(scripts)
    own = package.get("name")
    name = own if isinstance(own, str) else ""
    further = list(_requirements(package, ("devDependencies", "peerDependencies"), name))
    optional = _strings(package.get("optionalDependencies"))
    runtime = _requirements(package, ("dependencies",), name)
    declared = frozenset(line.rpartition("@")[0] for line in further)
    settings = json.dumps({key: package.get(key) for key in _SETTINGS})
    named = {runner, *declared.intersection(_WORD.findall(" ".join([*options, settings])))}
    named |= _named(tree, declared)
    if runner == "jest":  # it loads its transformation and that one its parser without naming them
        named |= {other for other in declared if "babel" in other}
    return PackageFile(
        name=name,
        runtime=tuple(line for line in runtime if line.rpartition("@")[0] not in optional),
        optional=tuple(_requirements(package, ("optionalDependencies",), name)),
        tests=tuple(line for line in further if line.rpartition("@")[0] in named),
        others=tuple(line for line in further if line.rpartition("@")[0] not in named),
        script=scripts.get("test", "")[:_MAX_SCRIPT],
        runner=runner,
        options=options,
    )


def _named(tree: Path, names: Set[str]) -> set[str]:
    """Return the names that quoted words of code or words of settings have."""
    present: set[str] = set()
    paths = (
        path for path in sorted(tree.rglob("*")) if _SCANNED.fullmatch(path.relative_to(tree).as_posix())
    )
    for path in islice(paths, _MAX_FILES):
        try:
            text = read_bounded(path, _MAX_FILE_BYTES).decode()
        except (OSError, ValueError):
            continue
        word = _QUOTED if path.suffix in (".js", ".cjs", ".mjs") else _WORD
        present |= names & set(word.findall(text))
    return present


def _requirements(package: Mapping[str, Any], tables: tuple[str, ...], own: str) -> Iterator[str]:
    lines = [pair for table in tables for pair in _strings(package.get(table)).items()]
    for name, versions in lines[:_MAX_DEPENDENCIES]:
        if len(name) <= 214 and _NAME.fullmatch(name) and _VERSIONS.fullmatch(versions) and name != own:
            yield f"{name}@{versions.strip() or '*'}"


def _strings(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {key: text for key, text in value.items() if isinstance(text, str)}


def _runner(scripts: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the first test runner that the test script calls, with its options; empty without one."""
    pending, known = [_commands(scripts.get("test", ""))], {"test"}
    while pending:
        command = next(pending[-1], None)
        if command is None:
            pending.pop()
        elif name := _called_script(command):
            if name not in known:
                known.add(name)
                pending.append(_commands(scripts.get(name, "")))
        else:
            for at, word in enumerate(command):
                program = word.rpartition("/")[2].removesuffix(".js")
                is_node = program == "node" and "--test" in command[at:]
                if runner := "node" if is_node else _RUNNERS.get(program, ""):
                    return runner, _options(runner, command[at + 1 :])
    return "", ()


def _commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each command of a script."""
    try:
        words = shlex.split(script[:_MAX_SCRIPT])
    except ValueError:
        return
    command: list[str] = []
    for word in [*words, ";"]:
        if word in _SEPARATORS:
            if command:
                yield command
            command = []
        else:
            command.append(word)


def _called_script(command: list[str]) -> str:
    """Return the script of the package that ``npm run NAME`` calls; empty for other commands."""
    words = [word for word in command if not word.startswith("-")]
    if words[:1] not in (["npm"], ["yarn"], ["pnpm"]):
        return ""
    words = words[2:] if words[1:2] in (["run"], ["run-script"]) else words[1:]
    return words[0] if words else ""


def _options(runner: str, words: list[str]) -> tuple[str, ...]:
    """Return the options that a test command keeps; files, reporters and unknown options are dropped."""
    with_value, alone = _KEPT.get(runner, (set[str](), set[str]()))
    options: list[str] = []
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in alone:
            options.append(name)
        elif name in with_value:
            value = value if equals else next(iter(words[at + 1 : at + 2]), "")
            if _VALUE.fullmatch(value) and ".." not in value:
                options += [name, value]
    return tuple(options)
