"""Imported trajectories of other agents: their pages violate no guideline and do not scroll sideways.

What the sample files say is what no builder thinks of: R2E-Gym's runs of many steps with XML calls, native
calls of SWE-agent, its demonstration without calls, and mini-SWE-agent's shell blocks.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client
from playwright.sync_api import BrowserContext, Page

from tests.builders.commands import run_command
from tests.builders.web_builders import make_user
from tests.e2e.accessibility.audit import Walk
from tests.e2e.conftest import aside
from webapp.core.contexts.frame import group_url, run_url, trajectory_url
from webapp.core.permissions import Role
from webapp.models import Run, Trajectory

DATA = Path(__file__).parents[3].parent / "shared" / "data"
MOST_OF_R2E = 2
CONVERSATIONS = (
    "trajectories/mini_swe_agent/local.traj.json",
    "trajectories/swe_agent/function_calling_simple.traj",
    "trajectories/swe_agent/pydicom__pydicom-1458.traj",
)
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not DATA.exists(), reason="the sample trajectories are not on this machine"),
]


def messages_of(path: Path) -> list[object]:
    """The messages of a file of SWE-agent (``history``) or mini-SWE-agent (a list)."""
    document = json.loads(path.read_text(encoding="utf-8"))
    found = document["history"] if isinstance(document, dict) else document
    assert isinstance(found, list)
    return found


def imported(folder: Path) -> dict[str, str]:
    """Import the files; returns the addresses of their runs, of a group and of each trajectory."""
    r2e, conversations = folder / "r2e.jsonl", folder / "conversations.jsonl"
    with (DATA / "r2e_gym" / "trajectories.jsonl").open(encoding="utf-8") as lines:
        r2e.write_text("".join(islice(lines, MOST_OF_R2E)), encoding="utf-8")
    conversations.write_text(
        "".join(json.dumps({"messages": messages_of(DATA / name)}) + "\n" for name in CONVERSATIONS)
    )
    run_command("trajectories", "import", r2e, "--format", "r2e-gym")
    run_command("trajectories", "import", conversations, "--format", "conversations")
    found = {f"run {run.name}": run_url(run) for run in Run.objects.all()}
    for one in Trajectory.objects.select_related("run"):
        group = (one.run_id, one.phase, one.iteration, one.task_key)
        found[f"trajectory {one.run.name} {one.pk}"] = trajectory_url(*group, one.index)
        found["group"] = group_url(*group)
    return found


def signed_in() -> str:
    client = Client()
    client.force_login(make_user("admin", Role.ADMIN))
    return client.cookies[settings.SESSION_COOKIE_NAME].value


def test_pages_of_real_trajectories_fit_and_violate_no_guideline(
    context: BrowserContext, page: Page, server: str, tmp_path: Path
) -> None:
    addresses = aside(imported, tmp_path)
    assert len(addresses) == 2 + MOST_OF_R2E + len(CONVERSATIONS) + 1
    session = aside(signed_in)
    context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": server}])
    walk = Walk(page)
    for name, address in addresses.items():
        walk.visit(name, address)
    assert not walk.findings, "\n".join(walk.findings)
