"""Commands that start the services: ``up`` serves, ``demo`` also trains the quickstart agent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Annotated

import typer
from django.conf import settings as django_settings

from webapp.core.cli import Settings, print_json
from webapp.supervisor import interrupts
from webapp.supervisor.embedded import stop_process
from webapp.supervisor.home import PROJECT
from webapp.supervisor.stack import Stack, running_stack

Port = Annotated[int | None, typer.Option(help="Port of the web server (default: the last one, or 8000).")]


def up(port: Port = None) -> None:
    """Start PostgreSQL, Redis, the web server, a worker and the scheduler; Ctrl-C stops them all."""
    interrupts.raise_on_signals()
    try:
        with running_stack(django_settings.TRAINYARD_HOME, web_port=port, say=_say) as stack:
            _serve(stack)
    except KeyboardInterrupt:
        _say("Stopped.")


def demo(
    port: Port = None,
    headless: Annotated[
        bool, typer.Option("--headless", help="End when the run ends; print one line of JSON.")
    ] = False,
    settings: Settings = None,
) -> None:
    """Start the services, train the quickstart agent and show its progress.

    With --headless the command ends with the run and its last line is JSON; else it serves until Ctrl-C.
    The exit status is 0 only if the run succeeds.
    """
    interrupts.raise_on_signals()
    started = time.monotonic()
    try:
        with running_stack(django_settings.TRAINYARD_HOME, web_port=port, say=_say) as stack:
            code, summary = _quickstart(stack, fresh=headless, settings=settings or ())
            if not headless:
                _say(f"Still serving at {stack.url} - Ctrl-C stops everything.")
                _serve(stack)
    except KeyboardInterrupt:
        _say("Stopped.")
        raise typer.Exit(130 if headless else 0) from None
    if summary:
        print_json(json.loads(summary) | {"seconds": round(time.monotonic() - started, 1)})
    raise typer.Exit(code)


def _say(line: str) -> None:
    if line:
        print(line, flush=True)


def _serve(stack: Stack) -> None:
    """Keep the services running until interrupted."""
    while True:
        _report_changes(stack)
        time.sleep(0.5)


def _report_changes(stack: Stack) -> None:
    """Restart services that died; print state changes with the time."""
    for note in stack.check():
        _say(f"{time.strftime('%H:%M:%S')}  {note}")


def _quickstart(stack: Stack, *, fresh: bool, settings: Sequence[str]) -> tuple[int, str]:
    """Run the quickstart command and forward its output; return its exit status and its line of JSON."""
    command = [sys.executable, "-m", "webapp", "quickstart", "--url", stack.url]
    command += ["--fresh"] if fresh else []
    command += [part for setting in settings for part in ("--set", setting)]
    with interrupts.starting_a_process():
        process = subprocess.Popen(
            command, env=stack.environment, stdout=subprocess.PIPE, cwd=PROJECT, start_new_session=True
        )
    lines: list[str] = []
    reader = threading.Thread(target=_forward, args=(process, lines), daemon=True)
    reader.start()
    try:
        while process.poll() is None:
            _report_changes(stack)
            time.sleep(0.3)
    finally:
        stop_process(process, first=signal.SIGTERM, seconds=3.0)
    reader.join(5)
    return process.returncode, lines[-1] if lines and lines[-1].startswith("{") else ""


def _forward(process: subprocess.Popen[bytes], lines: list[str]) -> None:
    assert process.stdout is not None
    for raw in process.stdout:
        line = raw.decode(errors="replace").rstrip()
        lines.append(line)
        if not line.startswith("{"):
            _say(line)
