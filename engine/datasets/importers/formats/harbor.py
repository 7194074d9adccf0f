"""Harbor task folders: instruction, ``task.toml``, environment, test script and solution script.

The verifier writes ``/logs/verifier/reward.txt`` (a number) or ``reward.json`` (names → numbers). The
solution is a script, not a patch; it is kept in the answer's metadata. A task with a Dockerfile instead of an
image includes its build context. A task is ungradable if it needs compose, several steps, a separate verifier
environment, or a network for its verifier. If it explicitly shares the agent's environment with the verifier,
it is graded there (``own_box``); all others are graded in a fresh sandbox. Working directory and user are the
image's, as stated in its Dockerfile. Schema 1.4: ``harbor.models.task`` of harbor 0.25.
"""

from __future__ import annotations

import posixpath
import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.build_contexts import image_of, pack_context
from engine.datasets.answer_files import split_contents
from engine.datasets.importers.base import Imported, with_difficulty
from engine.datasets.importers.fields import Row, number, optional_mapping, optional_text, plain, text
from engine.errors import DatasetError
from engine.reading import read_bounded
from engine.types import GradeRule, Task, TaskAnswer

MARKER = "task.toml"
REWARD_FILES = ("/logs/verifier/reward.txt", "/logs/verifier/reward.json")
_WORKDIR = "/app"
"""Working directory if neither ``task.toml`` nor a Dockerfile states one, as in Harbor's own tasks."""
_MAX_MARKER, _MAX_FILE, _MAX_TESTS, _MAX_CONTEXT = 1 << 20, 4 << 20, 32 << 20, 96 << 20
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
_TEMPLATE = re.compile(r"\$\{\w+(?::-(.*))?\}")
_INSTRUCTION = re.compile(r"^[ \t]*(FROM|WORKDIR|USER)[ \t]+(.+?)[ \t\r]*$", re.IGNORECASE | re.MULTILINE)
_DOWNLOAD = re.compile(
    r"\b(?:apt|apt-get|apk|yum|dnf)\s+(?:-\S+\s+)*(?:update|install|add)\b"
    r"|\b(?:pip3?|conda|mamba|npm|yarn|pnpm|gem|cargo|go)\s+(?:-\S+\s+)*(?:install|add|ci)\b(?!.*--no-index)"
    r"|\buv\s+(?:sync|add|run|tool)\b(?!.*--offline)|\b(?:uvx|npx)\b"
    r"|\b(?:curl|wget|git\s+clone)\b.*\bhttps?://(?!localhost|127\.|0\.0\.0\.0|\[)"
)
"""Commands that need the network."""
_DIFFICULTIES = {"easy": 1.0, "medium": 2.0, "hard": 3.0}


def read_folder(folder: Path) -> Row:
    """Return one task as a row. Raises DatasetError with the missing or malformed file as field."""
    try:
        config = tomllib.loads(read_bounded(folder / MARKER, _MAX_MARKER).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise DatasetError(f"cannot be read: {error}", field=MARKER) from None
    instruction = folder / "instruction.md"
    if not instruction.is_file() and not config.get("steps"):
        raise DatasetError("missing", field="instruction.md")
    solution = folder / "solution" / "solve.sh"
    compose = sorted(path.name for path in (folder / "environment").glob("*compose*.y*ml"))
    return {
        "name": folder.name,
        "config": config,
        "instruction": _text(instruction, "instruction.md") if instruction.is_file() else "",
        "tests": _files(folder / "tests"),
        "solution": _text(solution, "solution/solve.sh") if solution.is_file() else "",
        "compose": compose,
        "context": _context(folder / "environment"),
        "dockerfile": _dockerfile(folder / "environment"),
    }


def convert(row: Row) -> Imported:
    """Convert one task. Raises DatasetError with the field."""
    config: Mapping[str, Any] = row["config"]
    package, meta = optional_mapping(config, "task"), optional_mapping(config, "metadata")
    environment, verifier = optional_mapping(config, "environment"), optional_mapping(config, "verifier")
    name = str(package.get("name") or row["name"])
    stated_workdir, image_user = _image_settings(row["dockerfile"])
    workdir = str(environment.get("workdir") or stated_workdir or _WORKDIR)
    texts, binaries = split_contents({f"/tests/{path}": data for path, data in row["tests"].items()})
    context: bytes = b"" if environment.get("docker_image") else row["context"]
    ungradable = _obstacle(row, config, environment, verifier) or _other_user(config, image_user)
    task = Task(
        id="",
        instance_id=name.replace("/", "__"),
        repo=str(package.get("source") or meta.get("repo") or name.partition("/")[0]),
        base_commit=str(meta.get("base_commit") or ""),
        problem_statement=text(row, "instruction"),
        image=str(environment.get("docker_image") or (image_of(context) if context else "")),
        workdir=workdir,
        env={name: value or "" for name, value in _variables(environment, "environment").items()},
        difficulty={"num_tests": 1, "num_fail_to_pass": 1},
        metadata={"format": "harbor", "language": str(meta.get("language") or "").lower(), **_visible(meta)},
    )
    answer = TaskAnswer(
        gold_patch="",
        test_files=texts,
        binary_files=binaries,
        test_command=_script(verifier, workdir),
        grade_rule=GradeRule.REWARD_FILE,
        hidden_paths=("/tests", "/solution", "/logs/verifier"),
        timeout_s=number(verifier, "timeout_sec") or 600.0,
        own_box=verifier.get("environment_mode") == "shared",
        metadata=plain({"reward_files": list(REWARD_FILES), "solution": optional_text(row, "solution")}),
    )
    imported = Imported(task=task, answer=answer, context=context, ungradable=ungradable)
    numbers = {
        "memory_mb": number(environment, "memory_mb"),
        "cpus": number(environment, "cpus"),
        "level": _DIFFICULTIES.get(str(meta.get("difficulty") or "").lower()),
    }
    return with_difficulty(imported, numbers)


def _visible(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain(meta[name]) for name in ("category", "tags", "difficulty") if meta.get(name)}


def _obstacle(
    row: Row, config: Mapping[str, Any], environment: Mapping[str, Any], verifier: Mapping[str, Any]
) -> str:
    """Return the reason why the task cannot be graded on this installation; empty when it can."""
    if config.get("steps"):
        return "tasks of several steps are not supported"
    if not environment.get("docker_image") and not row["context"]:
        return "task.toml names no docker_image and there is no environment/Dockerfile"
    if row["compose"]:
        return f"it needs several containers ({', '.join(row['compose'])})"
    if verifier.get("environment_mode") == "separate" or verifier.get("environment"):
        return "its verifier needs a separate environment"
    if environment.get("os") not in (None, "linux"):
        return f"it needs the system {environment['os']}"
    if "test.sh" not in row["tests"]:
        raise DatasetError("missing", field="tests/test.sh")
    for where, section in (("verifier", verifier), ("environment", environment)):
        wanted = [name for name, value in _variables(section, where).items() if value is None]
        if wanted:
            return f"its {where} takes {', '.join(wanted)} from the machine that grades"
    return _download(row["tests"])


def _other_user(config: Mapping[str, Any], image_user: str) -> str:
    """Return the reason why a task's agent cannot run as its stated user; empty if it is the image's."""
    user = optional_mapping(config, "agent").get("user")
    if user is None or str(user) == image_user or {str(user), image_user} <= {"root", "0", ""}:
        return ""
    return f"its agent must run as user '{user}'; sandboxes use the image's user ('{image_user or 'root'}')"


def _download(tests: Mapping[str, bytes]) -> str:
    """Return the command of a verifier's script that needs the network, which grading lacks; else empty."""
    for path, content in tests.items():
        if not path.endswith(".sh"):
            continue
        for place, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
            if not line.lstrip().startswith("#") and _DOWNLOAD.search(line):
                return (
                    "its verifier needs the network, which grading does not have "
                    f"(tests/{path}, line {place}: {line.strip()[:100]}); put what it installs into the image"
                )
    return ""


def _image_settings(dockerfile: str) -> tuple[str, str]:
    """Return working directory and user of a Dockerfile's last stage; empty if not stated."""
    stages: dict[str, tuple[str, str]] = {}
    name, workdir, user = "", "", ""
    for instruction, value in _INSTRUCTION.findall(dockerfile):
        match instruction.upper():
            case "FROM":
                base, *words = [word for word in value.split() if not word.startswith("--")] or [""]
                workdir, user = stages.get(base.lower(), ("", ""))
                name = words[1].lower() if len(words) == 2 and words[0].lower() == "as" else ""
            case "WORKDIR":
                stated = value.strip("\"'")
                resolvable = "$" not in stated and (stated.startswith("/") or workdir)
                workdir = posixpath.normpath(posixpath.join(workdir, stated)) if resolvable else ""
            case "USER":
                user = value.partition(":")[0]
        stages[name] = (workdir, user)
    return workdir, user


def _script(verifier: Mapping[str, Any], workdir: str) -> str:
    exports = [
        f"export {name}={shlex.quote(value or '')}"
        for name, value in sorted(_variables(verifier, "verifier").items())
    ]
    return (
        "\n".join(
            [
                "#!/bin/bash",
                *exports,
                "rm -rf /logs/verifier",
                "mkdir -p /logs/verifier",
                f"cd {shlex.quote(workdir)}",
                "bash /tests/test.sh",
            ]
        )
        + "\n"
    )


def _variables(section: Mapping[str, Any], where: str) -> dict[str, str | None]:
    """Return a section's variables; None for values that Harbor takes from the host (``${NAME}``).

    This machine's variables are never passed to a task; ``${NAME:-default}`` yields the default.
    """
    given = section.get("env")
    variables: dict[str, str | None] = {}
    for name, value in given.items() if isinstance(given, dict) else ():
        if not _VARIABLE.fullmatch(name):
            raise DatasetError(f"{name!r} is not a variable name", field=f"task.toml: {where}.env")
        if "\0" in str(value):
            raise DatasetError(
                "contains NUL, which environment variables cannot", field=f"task.toml: {where}.env"
            )
        template = _TEMPLATE.fullmatch(str(value))
        variables[name] = template[1] if template else str(value)
    return variables


def _files(folder: Path) -> dict[str, bytes]:
    """Return relative path → content of every file below a folder."""
    contents: dict[str, bytes] = {}
    size = 0
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if not path.is_file():
            continue
        name = path.relative_to(folder).as_posix()
        contents[name] = _content(path, f"tests/{name}")
        size += len(contents[name])
        if size > _MAX_TESTS:
            raise DatasetError(f"more than {_MAX_TESTS >> 20} MiB", field="tests")
    return contents


def _context(folder: Path) -> bytes:
    """Return the build context of a task; empty without a Dockerfile."""
    if not (folder / "Dockerfile").is_file():
        return b""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > _MAX_CONTEXT:
        raise DatasetError(f"{size >> 20} MiB, more than {_MAX_CONTEXT >> 20} MiB", field="environment")
    return pack_context(folder)


def _dockerfile(folder: Path) -> str:
    path = folder / "Dockerfile"
    return _content(path, "environment/Dockerfile").decode("utf-8", "replace") if path.is_file() else ""


def _content(path: Path, field: str) -> bytes:
    try:
        return read_bounded(path, _MAX_FILE)
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", field=field) from None


def _text(path: Path, field: str) -> str:
    try:
        return _content(path, field).decode()
    except UnicodeDecodeError as error:
        raise DatasetError(f"not UTF-8: {error}", field=field) from None
