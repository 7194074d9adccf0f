"""The command ``doctor``: check this installation."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from engine.terminal import visible_line
from webapp.core.cli import AsJson, Settings, one_of, print_json
from webapp.supervisor.checks import check_installation

_BACKENDS = ("local", "docker", "kubernetes")


def doctor(
    backend: Annotated[
        list[str] | None,
        typer.Option(
            callback=one_of(_BACKENDS),
            metavar="|".join(_BACKENDS),
            help="Sandbox backend to check; may be repeated (default: local and docker).",
        ),
    ] = None,
    recipe: Annotated[str, typer.Option(help="Also check the launcher of this recipe.")] = "",
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Check this installation: Python, disk, parts, services, database, Redis and sandboxes.

    Each finding has a reason and what to do. The exit status is 1 if something needed is broken.
    """
    findings = check_installation(backend or ["local", "docker"], recipe=recipe, overrides=settings or ())
    if as_json:
        print_json([asdict(finding) for finding in findings], indent=2)
    else:
        for finding in findings:
            remedy = f" → {finding.remedy}" if finding.remedy else ""
            print(visible_line(f"{finding.state:<8} {finding.name}: {finding.reason}{remedy}"))
    if any(finding.state == "error" for finding in findings):
        raise typer.Exit(1)
