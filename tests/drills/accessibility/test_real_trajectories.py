"""Imported trajectories of other agents: their pages violate no guideline and do not scroll sideways.

The sample files have content that no builder covers: R2E-Gym's long rollouts with XML calls, SWE-agent's
native calls and its demonstration without calls, and mini-SWE-agent's shell blocks.
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
from tests.builders.web.web_builders import make_user
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
    """Return the messages of a file of SWE-agent (``history``) or mini-SWE-agent (a list)."""
    document = json.loads(path.read_text(encoding="utf-8"))
    messages = document["history"] if isinstance(document, dict) else document
    assert isinstance(messages, list)
    return messages


def imported(folder: Path) -> dict[str, str]:
    """Import the files; return the addresses of their runs, of a group and of each trajectory."""
    r2e, conversations = folder / "r2e.jsonl", folder / "conversations.jsonl"
    with (DATA / "r2e_gym" / "trajectories.jsonl").open(encoding="utf-8") as lines:
        r2e.write_text("".join(islice(lines, MOST_OF_R2E)), encoding="utf-8")
    conversations.write_text(
        "".join(json.dumps({"messages": messages_of(DATA / name)}) + "\n" for name in CONVERSATIONS)
    )
    run_command("trajectories", "import", r2e, "--format", "r2e-gym")
    run_command("trajectories", "import", conversations, "--format", "conversations")
    addresses = {f"run {run.name}": run_url(run) for run in Run.objects.all()}
    for row in Trajectory.objects.select_related("run"):
        group = (row.run_id, row.phase, row.iteration, row.task_key)
        addresses[f"trajectory {row.run.name} {row.pk}"] = trajectory_url(*group, row.index)
        addresses["group"] = group_url(*group)
    return addresses


def signed_in() -> str:
    client = Client()
    client.force_login(make_user("admin", Role.ADMIN))
    return client.cookies[settings.SESSION_COOKIE_NAME].value


def test_pages_of_real_trajectories_violate_no_guideline_and_do_not_scroll_sideways(
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
