"""SWE-smith: the published ``patch`` is the bug; the fix is its reverse.

One image per repository contains the intact tree. An instance is that tree with the bug and without the files
of the failing tests; upstream stores both in a git branch, which only a network could fetch. So the bug
becomes the answer's ``setup_patch``, and those files are hidden. Test commands and parsers are code
(``swesmith.profiles``), not data. The default of the Python profiles is used; rows of other languages are
ungradable unless they include ``test_cmd`` and ``log_parser``.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from engine.datasets.importers.base import Imported, difficulty
from engine.datasets.importers.fields import (
    Row,
    command_list,
    find,
    names,
    optional_text,
    select_fields,
    text,
)
from engine.datasets.importers.formats.evalscript import make_script
from engine.errors import DatasetError, PatchError
from engine.patches.reverse import reverse_patch
from engine.types import Task, TaskAnswer

WORKDIR = "/testbed"
PARSER = "swesmith_pytest"
_PYTEST = "pytest --disable-warnings --color=no --tb=no --verbose"
_TEST_FILE = re.compile(r"[^\s:]+\.py")


def convert(row: Row) -> Imported:
    """Convert one row. Raises DatasetError with the field."""
    bug = text(row, "patch")
    try:
        gold = reverse_patch(bug)
    except PatchError as error:
        raise DatasetError(str(error), field="patch") from None
    fail_to_pass, pass_to_pass = names(row, "FAIL_TO_PASS"), names(row, "PASS_TO_PASS", required=False)
    if not fail_to_pass:
        raise DatasetError("no test fails because of the bug", field="FAIL_TO_PASS")
    repo, commit = repository(text(row, "repo"))
    script, parser, ungradable = _tests(row, fail_to_pass, pass_to_pass)
    files = sorted({name.partition("::")[0] for name in fail_to_pass if _is_file(name)})
    task = Task(
        id="",
        instance_id=text(row, "instance_id"),
        repo=repo,
        base_commit=optional_text(row, "base_commit") or commit,
        problem_statement=text(row, "problem_statement"),
        image=image_name(text(row, "image_name", "docker_image")),
        workdir=WORKDIR,
        difficulty=difficulty(gold, len(fail_to_pass) + len(pass_to_pass), len(fail_to_pass)),
        metadata={
            "format": "swe-smith",
            "language": _language(row, fail_to_pass),
            **select_fields(row, "created_at"),
        },
    )
    answer = TaskAnswer(
        gold_patch=gold,
        setup_patch=bug if bug.endswith("\n") else f"{bug}\n",
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        test_command=script,
        log_parser=parser,
        hidden_paths=tuple(files),
        metadata=select_fields(row, "strategy", "cost", "rewrite"),
    )
    return Imported(task=task, answer=answer, ungradable=ungradable)


def _tests(row: Row, fail_to_pass: tuple[str, ...], pass_to_pass: tuple[str, ...]) -> tuple[str, str, str]:
    """Return the script, the parser, and the reason when neither is known."""
    given: dict[str, Any] = {"command": find(row, "test_cmd")[1], "parser": optional_text(row, "log_parser")}
    if given["command"] and given["parser"]:
        commands = command_list(given["command"], "test_cmd")
        return _script(commands, conda=False), given["parser"], ""
    if all(_is_file(name) for name in fail_to_pass):
        files = sorted({name.partition("::")[0] for name in fail_to_pass + pass_to_pass if _is_file(name)})
        return _script([f"{_PYTEST} {shlex.join(files)}"], conda=True), PARSER, ""
    return "", "", "test command and parser are code of SWE-smith's profiles: only Python's default is known"


def _script(commands: list[str], *, conda: bool) -> str:
    return make_script(workdir=WORKDIR, base_commit="", test_patch="", test=commands, conda=conda)


def _is_file(name: str) -> bool:
    """Return whether a test name starts with its file, as pytest's do."""
    file, separator, _ = name.partition("::")
    return bool(separator) and _TEST_FILE.fullmatch(file) is not None


def _language(row: Row, fail_to_pass: tuple[str, ...]) -> str:
    given = optional_text(row, "language").lower()
    return given or ("python" if all(_is_file(name) for name in fail_to_pass) else "")


def repository(published: str) -> tuple[str, str]:
    """Split ``swesmith/<owner>__<repo>.<sha8>`` into ``<owner>/<repo>`` and ``<sha8>``; keep other names."""
    match = re.fullmatch(r"(?:swesmith/)?(.+?)__(.+)\.([0-9a-f]{8})", published)
    return (f"{match[1]}/{match[2]}", match[3]) if match else (published, "")


def image_name(published: str) -> str:
    """Return the image name at Docker Hub; bare names of the first releases get the namespace prefix."""
    if "/" in published or ":" in published:
        return published
    return f"swebench/{published.replace('__', '_1776_')}".lower()
