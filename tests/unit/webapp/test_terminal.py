"""Names and reasons in the output of commands cannot act on the terminal."""

from __future__ import annotations

import logging
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command, get_commands

from engine.terminal import visible_line, visible_text
from tests.builders.web_builders import make_run
from webapp.core.logs import RedactingFormatter
from webapp.management import commands
from webapp.management.commands._terminal import TerminalCommand
from webapp.models import Run
from webapp.runs.services import edits

HOSTILE = "a\x1b]0;title\x07\x1b[2K\u202eb\u2066\nrun 99 · succeeded\r\x9bc"
SHOWN = r"a\u001b]0;title\u0007\u001b[2K\u202eb\u2066\nrun 99 · succeeded\r\u009bc"


def test_active_characters_are_shown_as_escapes() -> None:
    assert visible_line(HOSTILE) == SHOWN
    assert visible_text(HOSTILE) == SHOWN.replace(r"\n", "\n")
    assert visible_text("one\r\n\ttwo · 3\u202f%\n") == "one\n\ttwo · 3\u202f%\n"
    assert visible_line("\ud800 \U000e0041 \x7f é 日本") == r"\ud800 \udb40\udc41 \u007f é 日本"


@pytest.mark.django_db
def test_lists_of_runs_show_one_line_a_run() -> None:
    run = make_run()
    Run.objects.filter(pk=run.pk).update(name=HOSTILE, reason=HOSTILE, reason_detail=HOSTILE)
    out = StringIO()
    call_command("runs", stdout=out)
    line, total = out.getvalue().splitlines()
    assert line.endswith(f" · {SHOWN} ({SHOWN}) · {SHOWN}")
    assert total == "1 of 1 runs"
    edits.edit(run=run, changes=edits.Edit(tags=("x\x1b[2J",)))
    out = StringIO()
    call_command("edit_run", run.pk, stdout=out)
    assert out.getvalue().endswith(" · x\\u001b[2J\n")


@pytest.mark.django_db
def test_errors_and_logs_are_escaped_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_of("unlock_user").run_from_argv(["manage.py", "unlock_user", "\x1b[2J"])
    assert "'\\u001b[2J'" in capsys.readouterr().err
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "said %s", (HOSTILE,), None)
    assert SHOWN.replace(r"\n", "\n") in RedactingFormatter().format(record)


def command_of(name: str) -> TerminalCommand:
    found = import_module(f"webapp.management.commands.{name}").Command()
    assert isinstance(found, TerminalCommand)
    return found


def test_every_command_escapes_its_output() -> None:
    names = [name for name, app in get_commands().items() if app == "webapp"]
    assert len(names) == len(list(Path(commands.__path__[0]).glob("[a-z]*.py")))
    for name in names:
        command_of(name)
