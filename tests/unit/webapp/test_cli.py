"""Command tree: names, help and JSON output, exit statuses of errors, and the doctor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer
from django.db import OperationalError

from engine.errors import PreflightError
from tests.builders.commands import command_result, run_command
from tests.builders.web.web_builders import make_run, signed_in
from webapp.cli import app
from webapp.core.cli import at_most_one
from webapp.core.permissions import Role
from webapp.models import Run
from webapp.supervisor import checks
from webapp.supervisor.cli import services
from webapp.supervisor.status import ServiceState, ServiceStatus, save_status

SERVING = ("demo", "up")
"""Commands that serve until they are interrupted and print no JSON."""
COMMANDS = {
    "demo", "up", "quickstart", "doctor", "plan", "collect", "search",
    *(f"run {name}" for name in (
        "launch", "list", "stop", "token", "pause", "resume", "clone", "edit", "log", "compare", "timeline",
        "what-if", "export", "regrade", "flips", "tasks", "behaviours", "system", "files", "view list",
        "view save", "view remove", "checkpoints", "recipe list", "recipe save", "recipe remove", "steps",
        "task", "delete",
    )),
    *(f"dataset {name}" for name in (
        "import", "export", "sync", "validate", "curate", "harden", "quarantine", "difficulty", "disk",
    )),
    *(f"model {name}" for name in ("fetch", "list", "try")),
    *(f"trajectories {name}" for name in (
        "import", "export", "count", "compare", "tokens", "label", "comment", "annotations",
        "remove-annotation",
    )),
    "searches list", "searches remove",
    *(f"scanner {name}" for name in (
        "list", "add", "remove", "scan", "judge", "judgements", "stop-judgement",
    )),
    *(f"evaluation {name}" for name in ("report", "compare", "models", "predictions", "submission")),
    "grade predictions", "grade log",
    *(f"experiment {name}" for name in (
        "list", "create", "edit", "launch", "show", "results", "power", "stop", "archive",
    )),
    "alert list", "alert acknowledge",
    *(f"endpoint {name}" for name in ("add", "list", "test", "remove", "rotate")),
    *(f"notification {name}" for name in ("add", "list", "remove", "test", "log")),
    "pool show", "pool reap",
    *(f"account {name}" for name in (
        "create", "token", "reset-password", "unlock", "sign-out", "quota", "ensure-admin",
    )),
    "ingest spool",
}  # fmt: skip


def leaves(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Yield every command below a group with its full name."""
    children = getattr(command, "commands", None)
    if children is None:
        yield " ".join(path), command
        return
    for name, child in children.items():
        yield from leaves(child, *path, name)


TREE = dict(leaves(typer.main.get_command(app)))


def test_command_tree_has_exactly_the_expected_commands() -> None:
    assert set(TREE) == COMMANDS


@pytest.mark.parametrize("name", sorted(TREE))
def test_every_command_has_help_and_json(name: str) -> None:
    shown = run_command(*name.split(), "--help")
    assert shown.startswith(f"Usage: trainyard {name} ")
    assert ("--json" in shown) is (name not in SERVING)
    for parameter in TREE[name].params:
        about = getattr(parameter, "help", "")
        assert about or parameter.name == "help", f"{name} says nothing about {parameter.name}"


@pytest.mark.django_db
def test_runs_are_printed_as_the_api_returns_them() -> None:
    run = make_run()
    answer = signed_in(Role.VIEWER).get("/api/v1/runs").json()
    assert json.loads(run_command("run", "list", "--json")) == answer
    (launched,) = json.loads(run_command("run", "launch", "quickstart", "--draft", "--json"))
    assert (launched["recipe"], launched["state"]) == ("quickstart", "draft")
    cloned = json.loads(run_command("run", "clone", run.pk, "--set", "seed=5", "--json"))
    assert cloned["parent_id"] == run.pk
    assert Run.objects.get(pk=cloned["id"]).config["seed"] == 5


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["alert list", "experiment list", "endpoint list", "search x", "pool show"])
def test_lists_are_printed_as_json(path: str) -> None:
    json.loads(run_command(*path.split(), "--json"))


@pytest.mark.django_db
def test_errors_have_a_message_and_an_exit_status() -> None:
    result = command_result("run", "stop", "999999")
    assert (result.status, result.output) == (1, "")
    assert result.errors == "Error: there is no run 999999; `trainyard run list` lists them\n"
    refused = command_result("run", "edit", make_run().pk, "--archive", "--restore")
    assert refused.status == 2
    assert "--archive and --restore exclude each other" in refused.errors
    malformed = command_result("run", "launch", "quickstart", "--set", "seed")
    assert malformed.errors == "Error: --set seed: expected KEY=VALUE\n"
    unknown_choice = command_result("search", "x", "--place", "moon")
    assert unknown_choice.status == 2
    assert "'moon' is not one of thoughts, actions" in unknown_choice.errors


def test_mutually_exclusive_switches_are_refused() -> None:
    at_most_one(no_key=True, keep_key=False)
    with pytest.raises(typer.BadParameter, match="--no-key and --keep-key"):
        at_most_one(no_key=True, keep_key=True)


def test_unreachable_database_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OperationalError("connection refused\ndetails")

    monkeypatch.setattr("webapp.runs.cli.control.read_table", fail)
    result = command_result("run", "list")
    assert result.status == 1
    assert "the database does not answer (connection refused)" in result.errors
    assert "`trainyard up`" in result.errors


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("DATABASE_URL", "nonsense", "it must look like postgresql://USER:PASSWORD@HOST:PORT/NAME"),
        ("DATABASE_URL", "postgresql://me:secret@host:port/name", "it must look like postgresql://USER"),
        ("DATABASE_URL", "postgresql://me:secret@[host/name", "it must look like postgresql://USER"),
        ("EMAIL_URL", "mail.example.org", "it must look like smtp+tls://USER:PASSWORD@HOST:PORT"),
        ("EMAIL_URL", "smtp://me:secret@host:port", "it must look like smtp+tls://USER"),
        ("TRAINYARD_RUNS_AT_ONCE", "many", "is 'many': it must be a whole number"),
    ],
)
def test_a_wrong_environment_variable_is_named_without_a_traceback(
    variable: str, value: str, message: str
) -> None:
    command = [sys.executable, "-m", "webapp", "run", "list"]
    result = subprocess.run(command, env={**os.environ, variable: value}, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Error: {variable} ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.stderr


@pytest.mark.django_db
def test_wrong_limits_in_the_environment_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_LIMITS", "1")
    result = command_result("run", "launch", "quickstart", "--draft")
    assert result.status == 2
    assert result.errors.startswith("Error: TRAINYARD_LIMITS must be an object of numbers")


# --- doctor --------------------------------------------------------------------------------------


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Any) -> dict[str, Any]:
    """Replace subprocess checks by results per sandbox backend; database and Redis respond."""
    results: dict[str, Any] = {"local": [], "docker": [{"severity": "error", "message": "no daemon"}]}

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        if "engine.sandbox" not in command:
            return subprocess.CompletedProcess(command, 1, "", "no cluster\n")
        result = results[command[command.index("--backend") + 1]]
        if isinstance(result, Exception):
            raise result
        return subprocess.CompletedProcess(command, int(bool(result)), json.dumps(result), "")

    settings.TRAINYARD_HOME = tmp_path
    for name in ("postgres_probe", "redis_probe"):
        monkeypatch.setattr(checks, name, lambda _url: lambda: "")
    monkeypatch.setattr(checks, "_run", run)
    monkeypatch.setattr(checks, "_gpu", lambda: checks.Finding("gpu", "absent", "none"))
    return results


def run_doctor() -> tuple[int, dict[str, tuple[str, str, str]]]:
    result = command_result("doctor", "--json")
    rows = json.loads(result.output)
    return result.status, {row["name"]: (row["state"], row["reason"], row["remedy"]) for row in rows}


@pytest.mark.django_db
def test_doctor_accepts_one_working_sandbox_backend(checked: dict[str, Any]) -> None:
    status, findings = run_doctor()
    assert status == 0, findings
    assert findings["sandboxes: local"][0] == "ok"
    assert findings["sandboxes: docker"][:2] == ("warning", "no daemon")
    assert findings["python"][0] == findings["disk"][0] == findings["migrations"][0] == "ok"
    assert findings["services"][0] == "warning"
    assert "trainyard up" in findings["services"][2]
    assert "warning  sandboxes: docker: no daemon → " in run_command("doctor")


@pytest.mark.django_db
def test_doctor_fails_when_a_required_service_is_broken(
    checked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checked["local"] = PreflightError("the check did not end within 90 s")
    status, findings = run_doctor()
    assert (status, findings["sandboxes: local"][:2]) == (1, ("error", "the check did not end within 90 s"))
    checked["local"] = []
    down = ServiceStatus(name="worker", state=ServiceState.DOWN, since=0.0, reason="exit code 1")
    save_status(tmp_path, [down])
    status, findings = run_doctor()
    assert (status, findings["service: worker"][:2]) == (1, ("error", "exit code 1"))
    save_status(tmp_path, [])
    monkeypatch.setattr(checks, "postgres_probe", lambda _url: lambda: "refused")
    monkeypatch.setenv("DATABASE_URL", "postgresql://elsewhere/x")
    status, findings = run_doctor()
    assert (status, findings["database"][:2]) == (1, ("error", "refused"))
    assert "migrations" not in findings


@pytest.mark.django_db
def test_the_doctor_checks_the_launcher_of_a_recipe(checked: dict[str, Any]) -> None:
    result = command_result("doctor", "--recipe", "quickstart", "--set", "launcher.backend=ray")
    assert result.status == 1
    assert "error    launcher of quickstart: no cluster" in result.output


# --- services ------------------------------------------------------------------------------------


def test_demo_forwards_the_quickstart_output_and_exit_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/sh\necho "$@" >{tmp_path}/arguments\necho line\necho \'{{"run_id": 1}}\'\nexit 3\n'
    )
    program.chmod(0o700)

    class FakeStack:
        url = "http://127.0.0.1:1/"
        environment = dict(os.environ)

        def check(self) -> list[str]:
            return []

    monkeypatch.setattr(services, "running_stack", lambda *_, **__: nullcontext(FakeStack()))
    monkeypatch.setattr("webapp.supervisor.interrupts.raise_on_signals", lambda: None)
    monkeypatch.setattr(sys, "executable", str(program))
    result = command_result("demo", "--headless", "--set", "seed=1")
    assert result.status == 3
    line, summary = result.output.splitlines()
    assert line == "line"
    assert json.loads(summary)["run_id"] == 1
    assert json.loads(summary)["seconds"] >= 0
    arguments = (tmp_path / "arguments").read_text().strip()
    assert arguments == "-m webapp quickstart --url http://127.0.0.1:1/ --fresh --set seed=1"
