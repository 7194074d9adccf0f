"""SWE-bench Pro: lists as Python literals, images at Docker Hub, scripts outside of the rows.

Each instance's ``run_script.sh`` and ``parser.py`` are in the benchmark's repository (``run_scripts/<id>/``).
If the row or the source folder includes them, they become hidden test files; the parser runs in a sandbox
without the submission, and its JSON is the result. Otherwise the row is imported and marked as ungradable.
See ``swe_bench_pro_eval.py`` of scaleapi/SWE-bench_Pro-os.
"""

from __future__ import annotations

import re
import shlex

from engine.datasets.importers.base import Imported
from engine.datasets.importers.fields import Row, names, optional_text, select_fields
from engine.datasets.importers.formats.swe_row import SweRow, read_row
from engine.testing.markers import END, START

WORKDIR = "/app"
PARSER = "swe_bench_pro"
REPOSITORY = "jefzda/sweap-images"
_LOGS = ("/workspace/stdout.log", "/workspace/stderr.log")
_RESULT = "/workspace/output.json"
_PARSER = {
    "script": "/workspace/parser.py",
    "command": f"python3 /workspace/parser.py {' '.join(_LOGS)} {_RESULT}",
    "logs": list(_LOGS),
    "result": _RESULT,
}
"""See ``engine.grading.running.log_parser``."""
_ODD = "instance_element-hq__element-web-ec0f940ef0e8e3b61078f145f34dc40d1938e6c5-vnan"
_MAX_TAG = 128


def convert(row: Row) -> Imported:
    """Convert one row. Raises DatasetError with the field."""
    published = read_row(row)
    tag = optional_text(row, "dockerhub_tag")
    image = published.image or f"{REPOSITORY}:{tag or image_tag(published)}"
    scripts = {name: optional_text(row, name) for name in ("run_script.sh", "parser.py")}
    gradable = all(scripts.values())
    language = optional_text(row, "repo_language", "language").lower()
    task = published.task(
        image=image,
        workdir=WORKDIR,
        problem_statement=_statement(published, row),
        metadata={
            "format": "swe-bench-pro",
            "language": {"js": "javascript", "ts": "typescript"}.get(language, language),
        },
    )
    answer = published.answer(
        test_files={f"/workspace/{name}": content for name, content in scripts.items()} if gradable else {},
        test_command=_script(row) if gradable else "",
        log_parser=PARSER if gradable else "",
        metadata={
            **select_fields(
                row,
                "issue_specificity",
                "issue_categories",
                "before_repo_set_cmd",
                "selected_test_files_to_run",
            ),
            **({"parser": _PARSER} if gradable else {}),
        },
    )
    missing = (
        "" if gradable else "run_script.sh and parser.py are in the benchmark's repository, not in the row"
    )
    return Imported(task=task, answer=answer, ungradable=missing)


def _statement(published: SweRow, row: Row) -> str:
    """Return the issue with the requirements and interfaces that the benchmark shows to agents."""
    parts = [published.problem_statement]
    for title, field in (("Requirements:", "requirements"), ("New interfaces introduced:", "interface")):
        given = optional_text(row, field)
        if given:
            parts.append(f"{title}\n{given}")
    return "\n\n".join(parts)


def image_tag(published: SweRow) -> str:
    """Return the tag that the benchmark derives from instance and repository."""
    owner, _, name = published.repo.lower().partition("/")
    rest = published.instance_id.replace("instance_", "")
    if published.instance_id != _ODD:
        if (owner, name) == ("element-hq", "element-web"):
            name = "element"
        rest = rest.removesuffix("-vnan")
    return f"{owner}.{name}-{rest}"[:_MAX_TAG]


def _script(row: Row) -> str:
    """Return a script that checks out the row's tests and runs them; the logs are parsed elsewhere."""
    commands = [line for line in optional_text(row, "before_repo_set_cmd").strip().split("\n") if line]
    files = ",".join(names(row, "selected_test_files_to_run", required=False))
    # The last command checks out the tests; earlier ones reset the repository.
    checkout = commands[-1:] if commands and re.match(r"git (?:checkout|restore)", commands[-1]) else []
    lines = ["#!/bin/bash", f"cd {WORKDIR}", "git config --global --add safe.directory '*'", *checkout]
    lines += [
        f"echo '{START}'",
        f"bash /workspace/run_script.sh {shlex.quote(files)} > {_LOGS[0]} 2> {_LOGS[1]}",
        f"echo '{END}'",
    ]
    return "\n".join(lines) + "\n"
