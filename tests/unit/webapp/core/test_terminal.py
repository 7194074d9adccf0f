"""Escapes of terminal control characters in the output of commands."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from engine.terminal import visible_line, visible_text
from tests.builders.commands import CommandFailedError, command_result, run_command
from tests.builders.web.web_builders import make_run
from webapp.core.cli import escaped_streams, warn
from webapp.core.logs import RedactingFormatter
from webapp.models import Run
from webapp.runs.services import edits
from webapp.supervisor.home import PROJECT

HOSTILE = "a\x1b]0;title\x07\x1b[2K\u202eb\u2066\nrun 99 · succeeded\r\x9bc"
SHOWN = r"a\u001b]0;title\u0007\u001b[2K\u202eb\u2066\nrun 99 · succeeded\r\u009bc"


def test_control_characters_are_shown_as_escapes() -> None:
    assert visible_line(HOSTILE) == SHOWN
    assert visible_text(HOSTILE) == SHOWN.replace(r"\n", "\n")
    assert visible_text("one\r\n\ttwo · 3\u202f%\n") == "one\n\ttwo · 3\u202f%\n"
    assert visible_line("\ud800 \U000e0041 \x7f é 日本") == r"\ud800 \udb40\udc41 \u007f é 日本"


@pytest.mark.django_db
def test_run_list_prints_one_escaped_line_per_run() -> None:
    run = make_run()
    Run.objects.filter(pk=run.pk).update(name=HOSTILE, reason=HOSTILE, reason_detail=HOSTILE)
    line, total = run_command("run", "list").splitlines()
    assert line.endswith(f" · {SHOWN} ({SHOWN}) · {SHOWN}")
    assert total == "1 of 1 runs"
    edits.edit(run=run, changes=edits.Edit(tags=("x\x1b[2J",)))
    assert run_command("run", "edit", run.pk).endswith(" · x\\u001b[2J\n")


@pytest.mark.django_db
def test_errors_and_logs_are_escaped() -> None:
    with pytest.raises(CommandFailedError, match=r"'\\u001b\[2J'"):
        run_command("account", "unlock", "\x1b[2J")
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "said %s", (HOSTILE,), None)
    assert SHOWN.replace(r"\n", "\n") in RedactingFormatter().format(record)


@pytest.mark.parametrize("arguments", [["run", "\x1b[2J"], ["pool", "show", "--run", "\x1b[2J"], ["\x1b[2J"]])
def test_argument_errors_are_escaped(arguments: list[str]) -> None:
    result = command_result(*arguments)
    assert result.status == 2
    assert "\x1b" not in result.output + result.errors
    assert "Usage: trainyard" in result.errors


def test_escaped_streams_escape_text_and_hide_byte_buffers(capsys: pytest.CaptureFixture[str]) -> None:
    """``execute`` runs all commands within these streams; a byte buffer would bypass them."""
    with escaped_streams():
        print(HOSTILE)
        warn(HOSTILE)
        assert not hasattr(sys.stdout, "buffer")
        assert not hasattr(sys.stderr, "buffer")
    printed = capsys.readouterr()
    assert printed.out == printed.err == SHOWN.replace(r"\n", "\n") + "\n"


def test_command_process_escapes_its_output() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "webapp", "grade", "log", "--row", "\x1b[2J", "--log", "\x1b[2J"],
        cwd=PROJECT, env=os.environ | {"PYTHONIOENCODING": "utf-8"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "\\u001b[2J" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
