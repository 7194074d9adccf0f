"""Test scripts for rows without one, as SWE-bench's harness (up to 4.1) generates them.

``swebench_specs.json`` lists, per repository and version, the test command, the build and install commands
and the parser's name, taken from swebench 4.1.0 (MIT); version 5 moved them into the rows. The script resets
the test files to the base commit, applies the test patch and runs the tests between the markers that graders
look for. Nothing is downloaded: pip works without an index, so an existing editable install stays.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from engine.patches.sections import split_patch
from engine.testing.markers import END, START

CONDA = ("source /opt/miniconda3/bin/activate", "conda activate testbed")
_HEREDOC = "EOF_114329324912"
_NO_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
FAIL_ONLY = frozenset(
    {
        "chartjs/Chart.js", "processing/p5.js", "markedjs/marked", "bpmn-io/bpmn-js", "openlayers/openlayers",
        "eslint/eslint",
    }
)  # fmt: skip
"""Repositories whose logs list only failures: a test that is absent has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Test specification of one version of a repository."""

    language: str
    parser: str
    test: tuple[str, ...]
    before: tuple[str, ...] = ()
    """Commands that set up the shell."""
    install: str = ""
    build: tuple[str, ...] = ()


@cache
def _specs() -> Mapping[str, Any]:
    path = Path(__file__).with_name("swebench_specs.json")
    known: dict[str, Any] = json.loads(path.read_text())
    return {repo.lower(): spec for repo, spec in known.items()}


def find_spec(repo: str, version: str) -> Spec | None:
    """Return the test specification of a repository at a version; None when unknown."""
    known = _specs().get(repo.lower(), {})
    for spec in known.get("specs", ()):
        if version in spec["versions"]:
            return Spec(
                language=known["language"],
                parser=known["parser"],
                test=tuple(spec["test"]),
                before=tuple(spec.get("before", ())),
                install=spec.get("install", ""),
                build=tuple(spec.get("build", ())),
            )
    return None


def directives(repo: str, test_patch: str) -> list[str]:
    """Return the arguments of the test command: the test patch's files, as modules for Django."""
    files = [part.paths[-1] for part in split_patch(test_patch) if part.paths]
    paths = [path for path in files if not path.endswith(_NO_TESTS)]
    if repo.lower() == "django/django":
        return [path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in paths]
    return paths


def spec_script(spec: Spec, *, repo: str, workdir: str, base_commit: str, test_patch: str) -> str:
    """Return the harness's script for a row whose repository and version are known."""
    test = list(spec.test)
    if spec.language == "python":
        test[-1] = " ".join([test[-1], *map(shlex.quote, directives(repo, test_patch))])
    setup = list(spec.before)
    if spec.install:
        setup.append(spec.install)
    return make_script(
        workdir=workdir,
        base_commit=base_commit,
        test_patch=test_patch,
        test=test,
        setup=setup,
        build=spec.build,
        conda=spec.language == "python",
    )


def make_script(
    *,
    workdir: str,
    base_commit: str,
    test_patch: str,
    test: Sequence[str],
    setup: Sequence[str] = (),
    build: Sequence[str] = (),
    conda: bool = False,
) -> str:
    """Return a bash script that applies the tests of ``test_patch`` and runs them between the markers.

    The tree may have the test patch already: files that the patch adds are removed, and files that it changes
    are reset, before it is applied.

    Args:
        workdir: folder of the repository.
        base_commit: commit to which changed test files are reset; empty skips the reset.
        test_patch: git-format patch of the tests.
        test: commands that run the tests.
        setup: commands before the tests are put in place.
        build: commands between the patch and the tests.
        conda: whether to activate the environment ``testbed``.
    """
    environment = list(CONDA) if conda else []
    lines = ["#!/bin/bash", "set -uxo pipefail", *environment, f"cd {shlex.quote(workdir)}"]
    lines += ["export PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1", *setup]
    lines += [f"git config --global --add safe.directory {shlex.quote(workdir)}"]
    lines += _place_tests(base_commit, test_patch)
    return "\n".join([*lines, *build, f": '{START}'", *test, f": '{END}'"]) + "\n"


def _place_tests(base_commit: str, test_patch: str) -> list[str]:
    if not test_patch.strip():
        return []
    added: list[str] = []
    changed: list[str] = []
    for part in split_patch(test_patch):
        is_new = re.search(r"^(?:new file mode|--- /dev/null)", part.text, re.MULTILINE) is not None
        (added if is_new else changed).extend(part.paths[:1])
    lines = []
    if added:
        lines.append(f"rm -f -- {shlex.join(added)}")
    if changed and base_commit:
        lines.append(f"git checkout {shlex.quote(base_commit)} -- {shlex.join(changed)}")
    patch = test_patch if test_patch.endswith("\n") else f"{test_patch}\n"
    return [*lines, f"git apply -v - <<'{_HEREDOC}'\n{patch}{_HEREDOC}"]
